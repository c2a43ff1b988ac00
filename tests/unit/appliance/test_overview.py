"""`waypost` without a command: what runs here, what is wrong, what is next."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.appliance import here, opening, overview
from edge.appliance.here import DataDirectory, Role, directories
from edge.appliance.main import run
from edge.broker.security.operator_token import operator_token
from edge.broker.store.lock import HUB_LOCK_NAME, LOCK_NAME
from edge.output.errors import CommandError, Exit

STATUS: dict[str, Any] = {
    "gateway": "hall",
    "uptime_s": 7300.0,
    "clients": {"mqtt": 2, "amqp": 1},
    "uplink": {"state": "connected", "backlog_messages": 12},
    "problems": [
        {
            "name": "clock",
            "what": "the clock is wrong",
            "next_step": "waypost doctor",
            "severity": "warning",
            "since": "",
        }
    ],
}


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Look at no gateway that is installed on the machine of the tests."""
    monkeypatch.chdir(tmp_path)
    paths = here._paths
    monkeypatch.setattr(here, "_paths", lambda current, _installed: paths(current, tmp_path / "installed"))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Path]:
    """Make a data directory that is in use."""
    data = tmp_path / "gw1"
    yield from _held(data, LOCK_NAME)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Path]:
    yield from _held(tmp_path / "data" / "hub1", HUB_LOCK_NAME)


def _held(data: Path, lock: str) -> Iterator[Path]:
    data.mkdir(parents=True)
    operator_token(data)
    with (data / lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield data


def _answer(monkeypatch: pytest.MonkeyPatch, status: dict[str, Any] | CommandError) -> None:
    class FakeClient:
        def ask(self, _path: str, **_options: object) -> dict[str, Any]:
            if isinstance(status, CommandError):
                raise status
            return status

    monkeypatch.setattr(opening, "find_console", lambda _data: opening.ConsoleAddresses("http://127.0.0.1:1", None))
    monkeypatch.setattr(opening, "operator_client", lambda _url, _data: FakeClient())


def test_directories_are_found_below_the_current_one(gateway: Path, hub: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    found = directories()
    assert [(one.path.resolve(), one.role, one.running) for one in found] == [
        (gateway, Role.GATEWAY, True),
        (hub, Role.HUB, True),
    ]


def test_stopped_gateway_is_found(gateway: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "gw2"
    stopped.mkdir()
    operator_token(stopped)
    (stopped / LOCK_NAME).touch()
    assert [one.running for one in directories()] == [True, False]
    assert here.running() == [DataDirectory(Path(gateway.name), Role.GATEWAY, running=True, readable=True)]


def test_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == Exit.DONE
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("No gateway and no hub runs on this machine")
    assert "run --dev --data ./gw1" in out


def test_running_gateway_is_shown_with_its_problems(
    gateway: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, STATUS)
    assert run([]) == Exit.DONE
    out = capsys.readouterr().out
    assert "gateway  hall  up 2 h, 3 clients, 12 messages to forward, uplink connected, data in gw1" in out
    assert "warning hall: clock: the clock is wrong\n  next: waypost doctor\n" in out
    assert f"--data {gateway.name}" in out


def test_running_hub_is_shown(hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _answer(monkeypatch, {"now": 600_000, "started_at": 0, "gateways": {"known": 3, "connected": 2}, "problems": []})
    assert run([]) == Exit.DONE
    out = capsys.readouterr().out
    assert "hub      hub1  up 10 min, 2 of 3 gateways connected, data in data/hub1" in out


def test_gateway_that_does_not_answer_is_shown_with_the_reason(
    gateway: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, CommandError("no gateway answers at http://127.0.0.1:1: timed out", error="unreachable"))
    assert run([]) == Exit.DONE
    assert "gateway  gw1: no gateway answers at http://127.0.0.1:1: timed out" in capsys.readouterr().out


def test_more_problems_are_counted(
    gateway: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, {**STATUS, "problems": STATUS["problems"] * 7})
    run([])
    out = capsys.readouterr().out
    assert out.count("the clock is wrong") == overview.PROBLEMS_SHOWN_MAX
    assert "2 more problems of hall" in out
