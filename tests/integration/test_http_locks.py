"""`GET /c/…` locks a message for its client; it leaves the queue once it is settled or fully received by TCP."""

from __future__ import annotations

import json
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.http_client import WAIT_S, ask
from tests.support.processes import Waypost, edge, wait_until

LARGE = b"x" * 3_000_000


def connect(gateway: Waypost) -> socket.socket:
    """Connect a client with a small receive buffer."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.settimeout(WAIT_S)
    made.connect(("127.0.0.1", gateway.port("http")))
    return made


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def send(gateway: Waypost, address: str, *bodies: bytes) -> None:
    for body in bodies:
        assert ask(gateway, "POST", f"/t/{address}", body).status == 202


class TestLocks:
    """Locks and how they end."""

    def test_settled_message_survives_a_kill(self, tmp_path: Path) -> None:
        with edge(tmp_path, "killed") as running:
            send(running, "queue/jobs", b"1", b"2")
            first = ask(running, "GET", "/c/queue/jobs?wait=10")
            second = ask(running, "GET", "/c/queue/jobs?wait=10")
            assert (first.body, second.body) == (b"1", b"2")
            assert (first.headers["waypost-lock-seconds"], first.failed) == ("30", 0)
            assert ask(running, "DELETE", f"/c/queue/jobs?lock={first.lock}").status == 204
            assert ask(running, "GET", "/c/queue/jobs").status == 204, "nothing else is there"
            running.kill()
        with running:
            assert ask(running, "GET", "/c/queue/jobs?wait=10").body == b"2", "it was not settled"
            assert ask(running, "DELETE", f"/c/queue/jobs?lock={second.lock}").status == 410, "of the former process"

    def test_settling_again_changes_nothing(self, gateway: Waypost) -> None:
        send(gateway, "queue/again", b"1", b"2")
        lock = ask(gateway, "GET", "/c/queue/again?wait=10").lock
        for _ in range(2):
            assert ask(gateway, "DELETE", f"/c/queue/again?lock={lock}").status == 204
        assert ask(gateway, "PUT", f"/c/queue/again?lock={lock}").status == 410
        assert ask(gateway, "GET", "/c/queue/again?wait=10").body == b"2"

    def test_an_expired_lock_counts_as_a_failed_delivery(self, gateway: Waypost) -> None:
        send(gateway, "queue/slow", b"1")
        first = ask(gateway, "GET", "/c/queue/slow?wait=10&lock=1")
        again = ask(gateway, "GET", "/c/queue/slow?wait=10")
        assert (first.failed, again.body, again.failed) == (0, b"1", 1)
        late = ask(gateway, "DELETE", f"/c/queue/slow?lock={first.lock}")
        assert late.status == 410
        assert "delivered again" in json.loads(late.body)["error"]
        assert ask(gateway, "DELETE", f"/c/queue/slow?lock={again.lock}").status == 204

    @pytest.mark.parametrize(("outcome", "failed"), [("released", 0), ("modified", 1), ("", 0)])
    def test_released_message_is_delivered_again(self, gateway: Waypost, outcome: str, failed: int) -> None:
        address = f"queue/back{outcome}"
        send(gateway, address, b"1")
        lock = ask(gateway, "GET", f"/c/{address}?wait=10&lock=300").lock
        chosen = f"&outcome={outcome}" if outcome else ""
        assert ask(gateway, "PUT", f"/c/{address}?lock={lock}{chosen}").status == 204
        again = ask(gateway, "GET", f"/c/{address}?wait=10")
        assert (again.body, again.failed) == (b"1", failed)

    def test_rejected_message_becomes_a_dead_letter(self, gateway: Waypost) -> None:
        send(gateway, "queue/bad", b"1", b"2")
        lock = ask(gateway, "GET", "/c/queue/bad?wait=10").lock
        assert ask(gateway, "PUT", f"/c/queue/bad?lock={lock}&outcome=rejected").status == 204
        assert ask(gateway, "GET", "/c/queue/bad?wait=10").body == b"2"

    @pytest.mark.parametrize(("method", "status"), [("DELETE", 202), ("", 503)])
    def test_anycast_is_settled_end_to_end(self, gateway: Waypost, method: str, status: int) -> None:
        with ThreadPoolExecutor(2) as threads:
            # the status is cached: it may still count the request of the test before
            wait_until(lambda: polls(gateway) == 0, timeout_s=WAIT_S, what="no request that waits")
            fetched = threads.submit(ask, gateway, "GET", f"/c/anycast/a?wait=20&lock={30 if method else 5}")
            wait_until(lambda: polls(gateway) == 1, timeout_s=WAIT_S, what="a request that waits")
            sent = threads.submit(ask, gateway, "POST", "/t/anycast/a", b"x")
            lock = fetched.result(WAIT_S).lock
            assert not sent.done(), "its consumer has not settled it"
            if method:
                assert ask(gateway, method, f"/c/anycast/a?lock={lock}").status == 204
            assert sent.result(WAIT_S).status == status

    @pytest.mark.parametrize(
        ("method", "query", "status"),
        [
            ("DELETE", "", 400),
            ("DELETE", "?lock=", 400),
            ("DELETE", "?lock=nothing", 410),
            ("PUT", "?lock=nothing", 410),
            ("PUT", "?lock=nothing&outcome=eaten", 400),
            ("GET", "?lock=0", 400),
            ("GET", "?lock=301", 400),
            ("GET", "?lock=soon", 400),
            ("GET", "?settle=never", 400),
        ],
    )
    def test_refusals(self, gateway: Waypost, method: str, query: str, status: int) -> None:
        assert ask(gateway, method, f"/c/queue/none{query}").status == status


class TestConnectionsThatEnd:
    """Connections that end before the answer has reached the client."""

    def test_pipelined_requests_of_a_connection_that_is_reset(self, gateway: Waypost) -> None:
        send(gateway, "queue/pipelined", b"1", b"2")
        connection = connect(gateway)
        one = b"GET /c/queue/pipelined?wait=1&lock=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(one * 2)
        assert connection.recv(1)
        reset(connection)
        found = [ask(gateway, "GET", "/c/queue/pipelined?wait=10").body for _ in range(2)]
        assert sorted(found) == [b"1", b"2"]

    @pytest.mark.parametrize("settle", ["lock", "auto"])
    def test_a_client_that_reads_the_beginning_and_resets(self, gateway: Waypost, settle: str) -> None:
        address = f"queue/reset-{settle}"
        send(gateway, address, LARGE)
        for attempt in range(3):
            connection = connect(gateway)
            path = f"/c/{address}?wait=10&lock=1&settle={settle}"
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = connection.recv(200)
            assert head.startswith(b"HTTP/1.1 200"), attempt
            reset(connection)
        again = ask(gateway, "GET", f"/c/{address}?wait=10")
        assert (len(again.body), again.failed) == (len(LARGE), 3)

    @pytest.mark.parametrize("fields", ["", "Connection: close\r\n"])
    def test_message_that_a_slow_client_reads_completely_is_accepted(self, gateway: Waypost, fields: str) -> None:
        send(gateway, "queue/whole", LARGE, b"2")
        connection = connect(gateway)
        request = f"GET /c/queue/whole?wait=10&settle=auto HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
        connection.sendall(request.encode())
        found = connection.recv(65_536)
        length = int(re.findall(rb"content-length: (\d+)", found)[0])
        while len(found) - found.index(b"\r\n\r\n") - 4 < length:
            found += connection.recv(65_536)
        connection.close()
        assert ask(gateway, "GET", "/c/queue/whole?wait=10&settle=auto").body == b"2"


def polls(gateway: Waypost) -> int:
    return int(json.loads(ask(gateway, "GET", "/api/v1/status").body)["clients"]["http"])
