"""Events of a real hub: pages, a stream that goes on after a restart, and the command line."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import PROGRAM, run_waypost
from tests.support.event_stream import EVENTS, read_messages, stream
from tests.support.http_client import ask, document, status
from tests.support.processes import Waypost, edge, hub, wait_until

WITHIN_S = 60.0


def connect_once(folder: Path, server: Waypost, name: str) -> None:
    options = ("--hub", f"amqp://127.0.0.1:{server.port('amqp')}", "--gateway", name, "--forward", "plant/#")
    with edge(folder, name, *options) as gateway:
        wait_until(lambda: status(server)["gateways"]["connected"] == 1, timeout_s=WITHIN_S, what="it is connected")
        gateway.stop()
    wait_until(lambda: status(server)["gateways"]["connected"] == 0, timeout_s=WITHIN_S, what="it is gone")


def test_stream_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    with hub(tmp_path) as server:
        with stream(server.port("http"), "?type=gateway&after=0") as answer:
            connect_once(tmp_path, server, "hall")
            first = read_messages(answer, "gateway.disconnected")
        assert [(kind, each["gateway"]) for _, kind, each in first] == [
            ("gateway.connected", "hall"),
            ("gateway.disconnected", "hall"),
        ]
        number, _, seen = first[0]
        assert (number, seen["tenant"]) == (seen["number"], "default")
        server.stop()
        server.start()
        connect_once(tmp_path, server, "door")
        with stream(server.port("http"), "?type=gateway", last=number) as answer:
            again = read_messages(answer, "gateway.connected")
        assert [(kind, each["gateway"]) for _, kind, each in again] == [
            ("gateway.disconnected", "hall"),
            ("gateway.connected", "door"),
        ], "nothing is left out, and nothing comes again"
        with stream(server.port("http"), "?type=gateway", last=10**15) as answer:
            assert [each[1] for each in read_messages(answer, "gap")] == ["gap"]
        page = document(server, f"{EVENTS}?type=gateway&gateway=hall&limit=1&after=0")
        assert [each["type"] for each in page["events"]] == ["gateway.connected"]
        assert (page["more"], page["missed_to"]) == (True, None)
        rest = document(server, f"{EVENTS}?type=gateway&gateway=hall&after={page['next']}")
        assert [each["type"] for each in rest["events"]] == ["gateway.disconnected"]
        printed = run_waypost("events", "--data", str(server.data), "--gateway", "door", "--after", "0")
        assert re.findall(r"gateway\.\w+ +door", printed.stdout), printed
        lines = run_waypost("events", "--data", str(server.data), "--type", "gateway", "--after", "0", "--json").stdout
        assert {json.loads(each)["kind"] for each in lines.splitlines()} == {"event"}


def test_command_follows_until_its_end(tmp_path: Path) -> None:
    with hub(tmp_path) as server:
        words = ("--data", str(server.data), "-f", "--json", "--after", "0", "--type", "gateway")
        with subprocess.Popen([*PROGRAM, "events", *words], stdout=subprocess.PIPE, text=True) as command:
            try:
                assert command.stdout is not None
                connect_once(tmp_path, server, "hall")
                types = [json.loads(command.stdout.readline())["items"][0]["type"] for _ in range(2)]
            finally:
                command.terminate()
        assert types == ["gateway.connected", "gateway.disconnected"]


@pytest.mark.parametrize("query", ["?type=weather", "?after=x", "?limit=0", f"?gateway={','.join(['g'] * 99)}x"])
def test_wrong_parameters_are_refused(shared: Waypost, query: str) -> None:
    expected = 200 if "gateway" in query else 400  # equal names count once
    assert ask(shared, "GET", EVENTS + query).status == expected
    assert ask(shared, "GET", f"{EVENTS}?gateway={','.join(str(each) for each in range(51))}").status == 400


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with hub(tmp_path_factory.mktemp("hub")) as running:
        yield running
