"""Mutes of problems: kept, ended by time, and what a muted problem still does."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from edge.appliance.main import run
from edge.appliance.muting import cli
from edge.appliance.muting import mutes as muting
from edge.appliance.muting.limits import MUTE_S_MAX, MUTES_MAX, REASON_CHARACTERS_MAX
from edge.appliance.muting.mutes import FILE, MutesFull, ProblemMuteRecord, ProblemMutes
from edge.appliance.muting.routes import mute_routes
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import application
from edge.health.problems import HealthProblem, Severity

NOW_S = 1_800_000_000.0


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mutes(tmp_path: Path, clock: Clock) -> ProblemMutes:
    return ProblemMutes(tmp_path, clock)


def found(name: str, what: str = "it fails", severity: Severity = Severity.ERROR) -> HealthProblem:
    return HealthProblem(name, what, "2026-01-01T00:00:00+00:00", "look", severity)


def record(
    name: str, what: str = "", *, seconds: float = 60.0, severity: Severity = Severity.ERROR
) -> ProblemMuteRecord:
    return ProblemMuteRecord(
        name=name, what=what, severity=severity, until_s=NOW_S + seconds, reason="works", by="anna", made_at_s=NOW_S
    )


def muted(mutes: ProblemMutes, *problems: HealthProblem) -> list[tuple[str, str, bool]]:
    return [(each.name, each.what, each.muted is not None) for each in mutes.apply(problems)]


def test_one_problem_or_all_of_its_name(mutes: ProblemMutes) -> None:
    silent = [found("device silent", f"{name} is silent") for name in ("pump7", "pump8")]
    mutes.add(record("device silent", "pump7 is silent"))
    assert muted(mutes, *silent, found("clock")) == [
        ("device silent", "pump8 is silent", False),
        ("clock", "it fails", False),
        ("device silent", "pump7 is silent", True),
    ], "muted ones are last"
    mutes.add(record("device silent"))
    assert [each[2] for each in muted(mutes, *silent)] == [True, True]
    assert mutes.remove("device silent", "", "anna")
    assert not mutes.remove("device silent", "", "anna")
    assert [each[2] for each in muted(mutes, *silent)] == [False, True]


def test_it_comes_back_when_the_time_is_over(
    mutes: ProblemMutes, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mutes.add(record("clock"))
    [shown] = mutes.apply([found("clock")])
    assert shown.muted is not None
    assert (shown.muted.by, shown.muted.reason, shown.muted.until) == ("anna", "works", "2027-01-15T08:01:00+00:00")
    clock.now_s += 60
    with caplog.at_level("INFO"):
        assert muted(mutes, found("clock")) == [("clock", "it fails", False)]
        assert muted(mutes, found("clock")) == [("clock", "it fails", False)]
    assert caplog.text.count("problem clock is no longer muted: its time is over") == 1
    assert ProblemMutes(tmp_path, clock).all() == []


@pytest.mark.parametrize("what", ["", "it fails"])
def test_problem_that_gets_worse_is_shown_again(mutes: ProblemMutes, what: str) -> None:
    mutes.add(record("medium", what, severity=Severity.WARNING))
    medium = [found("medium", severity=each) for each in Severity]
    assert [(each.severity, each.muted is not None) for each in mutes.apply(medium)] == [
        (Severity.ERROR, False),
        (Severity.WARNING, True),
        (Severity.NOTICE, True),
    ]
    mutes.add(record("medium", severity=Severity.ERROR))
    assert all(each.muted is not None for each in mutes.apply(medium)), "the mute of the name covers it"


def test_mute_that_is_added_while_others_end_stays(
    mutes: ProblemMutes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is shown between the two steps of a change, while a mute ends."""
    mutes.add(record("clock", seconds=30))
    write = muting.replace_file

    def shown_meanwhile(file: Path, text: str) -> None:
        clock.now_s += 40
        assert muted(mutes, found("clock")) == [("clock", "it fails", False)]
        write(file, text)

    monkeypatch.setattr(muting, "replace_file", shown_meanwhile)
    mutes.add(record("store"))
    assert [each.name for each in mutes.all()] == ["store"]


def test_command_mutes_what_is_there(
    mutes: ProblemMutes, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not what it may become; and no unseen error."""
    there = [found("medium", severity=Severity.NOTICE), found("medium", "it wears", Severity.WARNING)]

    class Client:
        def ask(self, place: str, *, method: str = "GET", body: Any = None) -> Any:
            if place == "status":
                return {"problems": msgspec.to_builtins(there)}
            return ask(mutes, clock, method, f"/api/v1/{place}", body).json()

    monkeypatch.setattr(cli, "gateway_client", lambda *_: Client())
    for name, *arguments in (("medium",), ("medium", "--what", "fails"), ("store", "--severity", "error"), ("clock",)):
        assert run(["problem", "mute", name, "--until", "1m", "--reason", "works", *arguments]) == 0
    assert [(each.name, each.what, each.severity) for each in mutes.all()] == [
        ("clock", "", Severity.WARNING),
        ("medium", "", Severity.WARNING),
        ("medium", "it fails", Severity.NOTICE),
        ("store", "", Severity.ERROR),
    ]
    assert "up to severity warning" in capsys.readouterr().err


def test_restart_keeps_mutes(mutes: ProblemMutes, clock: Clock, tmp_path: Path) -> None:
    mutes.add(record("clock", seconds=30))
    mutes.add(record("store", seconds=90))
    clock.now_s += 60
    again = ProblemMutes(tmp_path, clock)
    assert [each.name for each in again.all()] == ["store"]
    assert muted(again, found("clock"), found("store")) == [("clock", "it fails", False), ("store", "it fails", True)]
    (tmp_path / FILE).write_bytes(b"[7")
    assert ProblemMutes(tmp_path, clock).all() == [], "what is muted is shown again"


def test_limit_of_mutes(mutes: ProblemMutes, clock: Clock) -> None:
    for number in range(MUTES_MAX):
        mutes.add(record(f"address {number}"))
    with pytest.raises(MutesFull, match="waypost problem unmute"):
        mutes.add(record("one more"))
    mutes.add(record("address 7", seconds=120))
    clock.now_s += 60
    mutes.add(record("one more", seconds=120))
    assert [each.name for each in mutes.all()] == ["address 7", "one more"]


def ask(mutes: ProblemMutes, clock: Clock, method: str, path: str, body: Any = None) -> httpx.Response:
    access = HttpAccess()

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(
            app=application(mute_routes(mutes, access, clock), access), client=("127.0.0.1", 1)
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://gw:8080") as client:
            return await client.request(method, path, json=body)

    return asyncio.run(run())


def test_over_http(mutes: ProblemMutes, clock: Clock) -> None:
    body = {"name": "address a/b", "what": "it is full", "seconds": 60, "reason": "works"}
    made = ask(mutes, clock, "POST", "/api/v1/mutes", body)
    assert (made.status_code, made.json()) == (
        201,
        {
            "name": "address a/b",
            "what": "it is full",
            "severity": "error",
            "until": "2027-01-15T08:01:00+00:00",
            "reason": "works",
            "by": "",
        },
    )
    assert ask(mutes, clock, "GET", "/api/v1/mutes").json() == {"mutes": [made.json()]}
    assert ask(mutes, clock, "DELETE", "/api/v1/mutes?name=address%20a/b").status_code == 404
    ended = ask(mutes, clock, "DELETE", "/api/v1/mutes?name=address%20a/b&what=it%20is%20full")
    assert (ended.status_code, ended.json()) == (200, {"mutes": []})


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"seconds": 0},
        {"seconds": MUTE_S_MAX + 1},
        {"reason": ""},
        {"reason": "x" * (REASON_CHARACTERS_MAX + 1)},
        {"forever": True},
        {"severity": "fatal"},
    ],
)
def test_invalid_mute_is_refused(mutes: ProblemMutes, clock: Clock, change: dict[str, Any]) -> None:
    answer = ask(mutes, clock, "POST", "/api/v1/mutes", {"name": "clock", "seconds": 60, "reason": "works", **change})
    assert answer.status_code == 400
    assert "mute is not valid" in answer.json()["error"]
    assert mutes.all() == []


def test_full_card_mutes_nothing(mutes: ProblemMutes, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, _: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(muting, "replace_file", full)
    answer = ask(mutes, clock, "POST", "/api/v1/mutes", {"name": "clock", "seconds": 60, "reason": "works"})
    assert answer.status_code == 503
    assert "the disk is full: free space there" in answer.json()["error"]
    assert mutes.all() == []
