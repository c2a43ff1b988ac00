"""The link of the benchmarks: its connections share the bandwidth."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.bench.narrow_link import NarrowLink
from tests.support.processes import wait_until

CONTENT = bytes(30_000)
BYTES_S = 100_000.0
WAIT_S = 30.0


class EchoServer:
    """Sends back what it gets, on any number of connections."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(peer,), daemon=True).start()

    @staticmethod
    def _echo(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(1 << 16):
                peer.sendall(data)


@pytest.fixture
def link() -> Iterator[NarrowLink]:
    server = EchoServer()
    with server.socket, NarrowLink(server.port) as made:
        yield made


def echoed(connection: socket.socket, content: bytes) -> bytes:
    """Send a content; return as many bytes as come back."""
    connection.settimeout(WAIT_S)
    sending = threading.Thread(target=connection.sendall, args=(content,))
    sending.start()
    found = b""
    while len(found) < len(content) and (part := connection.recv(1 << 16)):
        found += part
    sending.join()
    return found


def test_connections_share_the_bandwidth(link: NarrowLink) -> None:
    link.bytes_s = BYTES_S
    results: list[bytes] = []
    with (
        socket.create_connection(("127.0.0.1", link.port)) as one,
        socket.create_connection(("127.0.0.1", link.port)) as other,
    ):
        begun = time.monotonic()
        threads = [
            threading.Thread(target=lambda to=each: results.append(echoed(to, CONTENT))) for each in (one, other)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(WAIT_S)
        seconds = time.monotonic() - begun
    assert results == [CONTENT, CONTENT]
    total = 2 * len(CONTENT)
    wait_until(lambda: (link.up_bytes, link.down_bytes) == (total, total), timeout_s=WAIT_S, what="it has counted all")
    assert seconds >= 0.9 * 2 * len(CONTENT) / BYTES_S


def test_cut_ends_all_connections_and_refuses_new_ones(link: NarrowLink) -> None:
    with (
        socket.create_connection(("127.0.0.1", link.port)) as one,
        socket.create_connection(("127.0.0.1", link.port)) as other,
    ):
        assert [echoed(each, b"x") for each in (one, other)] == [b"x", b"x"]
        link.cut = True
        assert [each.recv(1) for each in (one, other)] == [b"", b""]
    with socket.create_connection(("127.0.0.1", link.port)) as late:
        late.settimeout(WAIT_S)
        assert late.recv(1) == b""
    link.cut = False
    with socket.create_connection(("127.0.0.1", link.port)) as again:
        assert echoed(again, b"x") == b"x"
