"""Endless long polls: a user or an address has a share of the places, and gets a clear answer beyond it."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.broker.http.limits import HTTP_POLLS_OF_ONE_MAX
from tests.bench.idle import SPARE_FILES, raise_file_limit
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.watch import watched
from tests.fault.hostile.web import ask, gateway_of
from tests.support.configured_gateway import encoded, gateway_with, user
from tests.support.processes import Waypost, resident_mib, wait_until

BEYOND = 50
STEP = 100
MEMORY_MIB = 256
GROWN_MIB = 64
"""Memory of 3 000 connections and the code of HTTP."""
RETURNED_S = 10.0
WAIT_S = 20.0
FLOOR_S = 0.5
"""Floor for the p99 of a device during the attack, with two busy cores and one attempt."""


def polling(running: Waypost) -> int:
    """Return the number of waiting requests, by the gateway's count."""
    return int(
        json.loads(ask(running.port("http"), "GET", "/api/v1/status", user="carol:carol").body)["clients"]["http"]
    )


@contextlib.contextmanager
def polls(running: Waypost, count: int, headers: str = "") -> Iterator[list[socket.socket]]:
    """Open this many connections that wait for a message which never comes.

    A connection without a request has a place of its own, and is closed when there are many of those.
    """
    request = f"GET /c/jobs?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()
    with contextlib.ExitStack() as stack:
        peers: list[socket.socket] = []
        while len(peers) < count:
            for _ in range(min(STEP, count - len(peers))):
                peers.append(stack.enter_context(socket.create_connection(("127.0.0.1", running.port("http")), WAIT_S)))
                peers[-1].sendall(request)
            waiting = min(len(peers), HTTP_POLLS_OF_ONE_MAX)
            wait_until(lambda: polling(running) == waiting, timeout_s=WAIT_S, what=f"{waiting} wait")  # noqa: B023
        yield peers


def answers(peers: list[socket.socket], count: int) -> list[bytes]:
    """Return the answers to this many polls; the others wait."""
    found: list[bytes] = []

    def heard() -> bool:
        ready, _, _ = select.select(peers, [], [], 0)
        found.extend(peer.recv(4_096) for peer in ready)
        return len(found) >= count

    wait_until(heard, timeout_s=WAIT_S, what=f"{count} are told")
    return found


def test_long_polls_of_one_user_have_a_limit(tmp_path: Path) -> None:
    raise_file_limit(HTTP_POLLS_OF_ONE_MAX + BEYOND + SPARE_FILES)
    rights = {"alice": "recv", "bob": "send, recv", "carol": "view"}
    extra = "".join(user(name, operations) for name, operations in rights.items())
    with gateway_with(tmp_path, gateway_of(extra=extra)) as running:
        port = running.port("http")
        assert ask(port, "GET", "/c/jobs", user="alice:alice").status == 204, "her password is known now"
        shown = f"Authorization: Basic {encoded('alice:alice')}\r\n"
        with polls(running, HTTP_POLLS_OF_ONE_MAX + BEYOND, shown) as peers:
            told = answers(peers, BEYOND)
            assert all(answer.startswith(b"HTTP/1.1 429 ") for answer in told)
            assert all(b"waiting requests of alice reached" in answer for answer in told)
            assert ask(port, "GET", "/c/jobs?wait=1", user="bob:bob").status == 204, "he may wait"
        wait_until(lambda: polling(running) == 0, timeout_s=RETURNED_S, what="the places are free again")


@pytest.mark.parametrize("count", [300, pytest.param(3_000, marks=pytest.mark.slow)])
def test_long_polls_of_one_address_have_a_limit(
    tmp_path: Path, control: Waypost, count: int, figures: Callable[[Figures], None]
) -> None:
    """Polls of one address have a limit where no login is required."""
    raise_file_limit(count + SPARE_FILES)
    with gateway_with(tmp_path, gateway_of(authentication="{name: none}")) as running:
        attack = f"{count} long polls"
        with watched(running, control, attack, figures, floor_s=FLOOR_S, grown_mib=GROWN_MIB):
            with polls(running, count):
                assert resident_mib(running.pid) < MEMORY_MIB
            wait_until(lambda: polling(running) == 0, timeout_s=RETURNED_S, what="the places are free again")
