"""Health requests are answered on a machine with little processor time, while slow HTTP clients keep connecting."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.health.priority import SERVING_NICE
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge, hub

BUSY = 4 * (os.cpu_count() or 1)
"""Programs: more would delay the tests of other processes for seconds."""
SLOW_CLIENTS = 400
ASKED = 10
ANSWER_S_MAX = 5.0

raises = "import os; os.setpriority(os.PRIO_PROCESS, 0, -10)"
permitted = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", raises], check=False, stderr=subprocess.DEVNULL).returncode != 0,
    reason="this user may not raise priorities",
)


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Keep the processors busy at normal priority."""
    programs = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in programs:
            each.kill()
        for each in programs:
            each.wait()


@contextlib.contextmanager
def slow_clients(port: int, count: int) -> Iterator[None]:
    """Hold heads and bodies open that never end, and connect again whenever the oldest are closed."""
    stopped = threading.Event()

    def connect() -> None:
        held: list[socket.socket] = []
        number = 0
        while not stopped.is_set():
            number += 1
            body = b"POST /t/topic/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            with contextlib.suppress(OSError):
                client = socket.create_connection(("127.0.0.1", port), timeout=1)
                client.sendall(body if number % 4 == 0 else b"GET / HTTP/1.1\r\nHost: x\r\n")
                held.append(client)
            if len(held) > count:
                held.pop(0).close()
        for each in held:
            each.close()

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def health_s(running: Waypost) -> float:
    """Return the seconds until `/healthz` has answered; raise an error without an answer in time."""
    began = time.monotonic()
    assert ask(running, "GET", "/healthz", timeout_s=ANSWER_S_MAX).status == 200
    return time.monotonic() - began


@permitted
@pytest.mark.parametrize("make", [lambda folder: edge(folder, "gw"), hub], ids=["gateway", "hub"])
def test_health_is_answered_while_programs_are_busy_and_http_clients_slow(tmp_path: Path, make: object) -> None:
    assert callable(make)
    server: Waypost = make(tmp_path)
    with server as running:
        port = running.port("http")
        health_s(running)  # load the HTTP code
        threads = [int(each) for each in os.listdir(f"/proc/{running.pid}/task")]
        assert os.getpriority(os.PRIO_PROCESS, running.pid) == SERVING_NICE
        assert all(os.getpriority(os.PRIO_PROCESS, each) >= SERVING_NICE for each in threads)
        with slow_clients(port, SLOW_CLIENTS), busy_programs(BUSY):
            took = [health_s(running) for _ in range(ASKED)]
        assert sorted(took)[ASKED // 2] < 1.0, took
