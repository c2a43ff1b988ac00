"""Thousands of clients that send byte by byte, never end a request, or never read: all others are served."""

from __future__ import annotations

import base64
import contextlib
import http.client
import resource
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.broker.http.limits import HTTP_STRANGERS_OF_ONE_MAX
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.slow_crowd import CLOSED_S, GROWTH_MIB_MAX, HEALTH_S_MAX, OPENINGS, sockets_of
from tests.fault.hostile.watch import watched
from tests.fault.hostile.web import ask, gateway_of
from tests.support.configured_gateway import gateway_with, user
from tests.support.processes import Waypost, edge, hub, resident_mib, wait_until

CROWD = 3_000
HEALTH_TRIES = 20
SERVED_S_MAX = 0.25
"""Median of answers: some 1 ms, on a machine without other work."""
ASKING_S_MAX = 1.5
"""Median of answers while the crowd keeps sending requests, each of which has its turn."""
FLOOR_S = 0.5
"""Floor for the p99 of a device during the attack, with two busy cores."""
USUAL = ("half a head", "half a body", "no answer read")


@contextlib.contextmanager
def crowd(port: int, opening: bytes, size: int = CROWD) -> Iterator[list[socket.socket]]:
    """Open this many connections that have sent the opening, and nothing else."""
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(size):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            with contextlib.suppress(ConnectionError):
                peer.sendall(opening)
            peers.append(peer)
        yield peers


def health_s(port: int) -> float:
    begin = time.monotonic()
    assert ask(port, "GET", "/healthz").status == 200
    return time.monotonic() - begin


@pytest.fixture(autouse=True)
def many_files() -> None:
    """Raise the limit of descriptors of this process, which is the crowd."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CROWD + 200:
        pytest.skip(f"a process may have {hard} files here, {CROWD + 200} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.parametrize(
    "name",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in OPENINGS],
)
def test_slow_crowd_does_not_delay_others(
    tmp_path: Path, control: Waypost, figures: Callable[[Figures], None], name: str
) -> None:
    with edge(tmp_path, "gw") as gateway:
        port, pid = gateway.port("http"), gateway.pid
        idle = statistics.median(health_s(port) for _ in range(HEALTH_TRIES))
        before, sockets = resident_mib(pid), sockets_of(pid)
        with watched(gateway, control, f"slow HTTP: {name}", figures, floor_s=FLOOR_S, grown_mib=GROWTH_MIB_MAX):
            with crowd(port, OPENINGS[name]):
                tries = [health_s(port) for _ in range(HEALTH_TRIES)]
                assert ask(port, "POST", "/t/queue/mine", body=b"x").status == 202
                grown = resident_mib(pid) - before
            assert max(tries) < HEALTH_S_MAX
            assert statistics.median(tries) < max(3 * idle, ASKING_S_MAX if name == "no answer read" else SERVED_S_MAX)
            assert grown < GROWTH_MIB_MAX
            wait_until(lambda: sockets_of(pid) <= sockets + 5, timeout_s=CLOSED_S, what="its sockets are closed")


def test_slow_crowd_at_a_hub_does_not_delay_others(tmp_path: Path) -> None:
    with hub(tmp_path) as running:
        port, pid = running.port("http"), running.pid
        before, sockets = resident_mib(pid), sockets_of(pid)
        with crowd(port, OPENINGS["half a head"]):
            assert max(health_s(port) for _ in range(HEALTH_TRIES)) < HEALTH_S_MAX
            assert ask(port, "GET", "/api/v1/status").status == 200
            assert resident_mib(pid) - before < GROWTH_MIB_MAX
        wait_until(lambda: sockets_of(pid) <= sockets + 5, timeout_s=CLOSED_S, what="its sockets are closed")


def test_authenticated_device_keeps_its_connection(tmp_path: Path) -> None:
    """A device that has logged in keeps its connection when a crowd arrives."""
    with gateway_with(tmp_path, gateway_of(extra=user("pump7", "send"))) as gateway:
        port = gateway.port("http")
        device = KeepAlive(gateway, "pump7")
        with device, crowd(port, OPENINGS["half a head"], HTTP_STRANGERS_OF_ONE_MAX + 200):
            for _ in range(5):
                assert device.publish() == 202
            assert ask(port, "POST", "/t/jobs", user="pump7:pump7", body=b"x").status == 202


class KeepAlive:
    """Connection of one device."""

    def __init__(self, gateway: Waypost, name: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", gateway.port("http"), timeout=20)
        shown = base64.b64encode(f"{name}:{name}".encode()).decode()
        self._headers = {"Authorization": f"Basic {shown}"}
        assert self.publish() == 202
        self._socket = self._connection.sock

    def publish(self) -> int:
        self._connection.request("POST", "/t/jobs", b"x", self._headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def __enter__(self) -> KeepAlive:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._connection.sock is self._socket, "it was one connection all the time"
        self._connection.close()
