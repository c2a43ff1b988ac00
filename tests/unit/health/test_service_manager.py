"""A service manager gets keep-alives while a service works, and none once its loop is blocked."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.health.service_manager import KEEP_ALIVES_A_PERIOD, ServiceManager

WORD_S = 0.05
WAIT_S = 20.0


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    """Yield the socket of the service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(WAIT_S)
        yield sock


def environment(heard: socket.socket, **more: str) -> dict[str, str]:
    return {
        "NOTIFY_SOCKET": heard.getsockname(),
        "WATCHDOG_USEC": str(int(WORD_S * KEEP_ALIVES_A_PERIOD * 1e6)),
        **more,
    }


def words(heard: socket.socket) -> list[str]:
    """Return the received words."""
    heard.setblocking(False)
    found = []
    try:
        while True:
            found.append(heard.recv(100).decode())
    except BlockingIOError:
        return found


def test_running_loop_sends_keep_alives(heard: socket.socket) -> None:
    async def serve() -> None:
        manager = ServiceManager(environment(heard))
        manager.notify_ready(lambda: True)
        for _ in range(4):
            await asyncio.to_thread(heard.recv, 100)
        manager.stop()

    asyncio.run(asyncio.wait_for(serve(), WAIT_S))
    assert words(heard)[-1] == "STOPPING=1"


def test_blocked_loop_sends_none(heard: socket.socket) -> None:
    async def serve() -> list[str]:
        manager = ServiceManager(environment(heard))
        manager.notify_ready(lambda: True)
        assert words(heard) == ["READY=1", "WATCHDOG=1"]
        time.sleep(WORD_S * 5)
        return words(heard)

    assert asyncio.run(serve()) == []


def test_service_without_progress_sends_none_until_it_recovers(heard: socket.socket) -> None:
    works = False

    async def serve() -> str:
        nonlocal works
        manager = ServiceManager(environment(heard))
        manager.notify_ready(lambda: works)
        await asyncio.sleep(WORD_S * 3)
        assert words(heard) == ["READY=1"]
        works = True
        heard.settimeout(WAIT_S)
        return (await asyncio.to_thread(heard.recv, 100)).decode()

    assert asyncio.run(asyncio.wait_for(serve(), 2 * WAIT_S)) == "WATCHDOG=1"


@pytest.mark.parametrize("more", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}])
def test_missing_watchdog_sends_none(heard: socket.socket, more: dict[str, str]) -> None:
    assert ServiceManager(environment(heard, **more), pid=2).interval_s is None


def test_nothing_is_sent_without_a_service_manager() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    assert manager.interval_s is None
    manager.stop()


def test_absent_listener_is_no_error(tmp_path: Path) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).stop()
