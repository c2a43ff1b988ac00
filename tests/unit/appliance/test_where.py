"""Where commands find their data directory without --data: variable, context, the only gateway that runs here."""

from __future__ import annotations

import fcntl
import json
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from edge.appliance import here, main, running, where
from edge.appliance.main import run
from edge.broker.security.operator_token import operator_token
from edge.broker.store.lock import HUB_LOCK_NAME, LOCK_NAME
from edge.output.errors import Exit
from edge.remote import contexts

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Look at no gateway that is installed on the machine of the tests, and at no context of its user."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    paths = here._paths
    monkeypatch.setattr(here, "_paths", lambda current, _installed: paths(current, tmp_path / "installed"))
    return tmp_path


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def make(path: Path, held: ExitStack | None, lock: str = LOCK_NAME) -> Path:
    """Make a data directory, in use if there is a stack."""
    path.mkdir(parents=True)
    operator_token(path)
    (path / lock).touch()
    if held is not None:
        fcntl.flock(held.enter_context((path / lock).open()), fcntl.LOCK_EX)
    return path


def found(monkeypatch: pytest.MonkeyPatch, words: str, *, required: bool = True) -> str | None:
    """Return the data directory that a command gets; the command itself does nothing else."""
    seen: list[str | None] = []

    @click.command()
    @click.option("--data", required=required)
    @click.option("--http")
    @click.option("--hub")
    def command(data: str | None, http: str | None, hub: str | None) -> None:
        seen.append(data)

    where.give_defaults(command, words.split()[:1])
    monkeypatch.setattr(main, "load", lambda _name, _entry: command)
    if run(words.split()) != Exit.DONE:
        return "error"
    return seen[0]


def test_only_gateway_that_runs_here_is_found(monkeypatch: pytest.MonkeyPatch, home: Path, held: ExitStack) -> None:
    make(home / "here" / "gw1", held)
    make(home / "here" / "gw2", None)
    make(home / "here" / "hub", held, HUB_LOCK_NAME)
    assert found(monkeypatch, "get") == "gw1"
    assert found(monkeypatch, "token") == "hub"


def test_option_and_variable_come_first(monkeypatch: pytest.MonkeyPatch, home: Path, held: ExitStack) -> None:
    make(home / "here" / "gw1", held)
    monkeypatch.setenv("WAYPOST_DATA", "/srv/gw")
    assert found(monkeypatch, "get") == "/srv/gw"
    assert found(monkeypatch, "get --data other") == "other"


def test_context_comes_before_what_runs(monkeypatch: pytest.MonkeyPatch, home: Path, held: ExitStack) -> None:
    make(home / "here" / "gw1", held)
    data = make(home / "elsewhere", None)
    assert run(["context", "add", "hall", "--data", str(data)]) == 0
    assert found(monkeypatch, "get") == str(data)


def test_context_of_a_gateway_is_not_for_a_hub(monkeypatch: pytest.MonkeyPatch, home: Path, held: ExitStack) -> None:
    run(["context", "add", "hall", "--data", str(make(home / "elsewhere", None))])
    make(home / "here" / "hub", held, HUB_LOCK_NAME)
    assert found(monkeypatch, "token") == "hub"


def test_several_gateways_are_listed(
    monkeypatch: pytest.MonkeyPatch, home: Path, held: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    make(home / "here" / "gw 1", held)
    make(home / "here" / "gw2", held)
    make(home / "here" / "gw3", None)
    assert found(monkeypatch, "status", required=False) == "error"
    err = capsys.readouterr().err
    assert err.startswith("error[no-data-directory]: Missing option '--data': 2 of them run here\n")
    assert "--data 'gw 1'  (gateway, runs)" in err
    assert "--data gw3  (gateway, does not run)" in err
    assert found(monkeypatch, "doctor", required=False) is None


def test_nothing_found_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(monkeypatch, "status", required=False) is None
    assert found(monkeypatch, "get") == "error"
    assert "error[no-data-directory]: Missing option '--data': no gateway runs here" in capsys.readouterr().err


def test_token_of_this_gateway_goes_to_no_other_address(
    monkeypatch: pytest.MonkeyPatch, home: Path, held: ExitStack
) -> None:
    make(home / "here" / "gw1", held)
    assert found(monkeypatch, "status --http 192.0.2.1:80", required=False) is None


@pytest.mark.parametrize("address", ["--http 127.0.0.1:80", "--hub https://hub.example"])
def test_address_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("WAYPOST_DATA", "/srv/gw")
    assert found(monkeypatch, f"get {address}") is None
    assert found(monkeypatch, f"get {address} --data other") == "other"


@pytest.mark.parametrize("words", [["token", "list"], ["hub", "user", "list"], ["rollout", "status"]])
def test_a_hub_has_one_place(
    words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--data", str(home), "--hub", "http://127.0.0.1:1"]) == Exit.USAGE
    assert "error[wrong-usage]: give --data or --hub, not both" in capsys.readouterr().err
    monkeypatch.setenv("WAYPOST_DATA", str(home))
    assert run([*words, "--hub", "http://127.0.0.1:1"]) == Exit.UNREACHABLE
    assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_token_goes_to_no_address_with_the_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger at the address would read it."""
    seen: list[Path | None] = []
    monkeypatch.setattr(running, "token_of", seen.append)
    monkeypatch.setenv("WAYPOST_DATA", str(make(home / "gw", None)))
    assert run(["status", "--http", "127.0.0.1:1"]) == Exit.UNREACHABLE
    assert not any(seen)


def test_commands_that_create_find_nothing(home: Path, held: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    make(home / "here" / "gw1", held)
    for words in (["run"], ["init"], ["hub", "run"]):
        assert run(words) == Exit.USAGE
        assert "Missing option '--data'.\n" in capsys.readouterr().err


class TestContexts:
    def test_contexts_are_listed_used_and_removed(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("hall", "yard"):
            assert run(["context", "add", name, "--data", str(make(home / name, None))]) == 0
        assert run(["context", "use", "yard"]) == 0
        capsys.readouterr()
        assert run(["context", "list"]) == 0
        assert capsys.readouterr().out == f"  hall  {home}/hall\n* yard  {home}/yard\n"
        assert run(["context", "remove", "yard"]) == 0
        capsys.readouterr()
        run(["context", "list", "--json"])
        assert json.loads(capsys.readouterr().out) == {
            "schema": 1,
            "kind": "context",
            "items": [
                {
                    "name": "hall",
                    "data": f"{home}/hall",
                    "url": None,
                    "role": None,
                    "user": None,
                    "signed_in": False,
                    "current": False,
                }
            ],
        }

    def test_file_is_private(self, home: Path) -> None:
        run(["context", "add", "hall", "--data", str(home)])
        assert stat.S_IMODE(contexts.file().stat().st_mode) == 0o600

    @pytest.mark.parametrize("words", [["use", "nowhere"], ["remove", "nowhere"]])
    def test_unknown_context_is_an_error(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["context", *words]) == Exit.USAGE
        assert "context nowhere not found" in capsys.readouterr().err

    def test_damaged_file_is_an_error_with_the_next_step(self, capsys: pytest.CaptureFixture[str]) -> None:
        contexts.file().parent.mkdir(parents=True)
        contexts.file().write_text("[")
        assert run(["context", "list"]) == Exit.USAGE
        assert "remove it" in capsys.readouterr().err

    def test_number_of_contexts_is_bounded(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(contexts, "CONTEXTS_MAX", 1)
        for name, code in (("a", 0), ("a", 0), ("b", 1), ("n" * 65, 2)):
            assert run(["context", "add", name, "--data", str(home)]) == code
