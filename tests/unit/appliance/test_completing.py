"""Live values for a Tab, and what a Tab never does: wait, fail, or hand a shell what it would interpret."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import click
import pytest

from edge.appliance import completing
from edge.appliance.commands import COMMANDS
from edge.appliance.completing import ANSWER_S, CLIENTS, CONTEXTS, LIVE, ContextName, LiveName
from edge.appliance.loading import load
from edge.remote import contexts
from edge.remote.client import ConsoleClient
from edge.remote.contexts import Context, Contexts


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def completed(kind: click.types.StringParamType, incomplete: str, **params: Any) -> list[str]:
    context = click.Context(click.Command("show"))
    context.params = params
    return [each.value for each in kind.shell_complete(context, click.Argument(["name"]), incomplete)]


def test_every_parameter_with_values_exists() -> None:
    for path, name in (*LIVE, *CONTEXTS):
        first, *rest = path.split()
        command = load(first, COMMANDS[first])
        for word in rest:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        [kind] = [each.type for each in command.params if each.name == name]
        assert isinstance(kind, LiveName | ContextName), (path, name)


def test_names_of_the_node_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeClient:
        def ask(self, route: str, **query: Any) -> dict[str, Any]:
            assert (route, query["answer_s"], query["q"]) == ("clients", ANSWER_S, "p")
            names = ("pump7", "pump 8", "press", "$(reboot)", "p\x1b[31m", "lathe")
            return {"clients": [{"name": name} for name in names]}

    monkeypatch.setattr(completing, "_client", lambda _context, _first: FakeClient())
    assert completed(LiveName(CLIENTS, "client"), "p") == ["pump7", "press"]


def test_silent_node_costs_no_more_than_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ConsoleClient(f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(completing, "_client", lambda _context, _first: client)
        began = time.monotonic()
        assert completed(LiveName(CLIENTS, "client"), "") == []
        assert time.monotonic() - began < 20 * ANSWER_S  # a busy machine; the limit itself is of the socket


def test_absent_node_is_no_error() -> None:
    assert completed(LiveName(CLIENTS, "client"), "", http="127.0.0.1:9") == []
    assert completed(LiveName(CLIENTS, "client"), "", http="no port") == []


def test_contexts_are_completed() -> None:
    contexts.write(Contexts("hall", {"hall": Context(data="/srv/hall"), "yard": Context(url="https://10.0.0.1:8444")}))
    assert completed(ContextName(), "") == ["hall", "yard"]
    assert completed(ContextName(), "y") == ["yard"]
    contexts.file().write_text("[")
    assert completed(ContextName(), "") == []
