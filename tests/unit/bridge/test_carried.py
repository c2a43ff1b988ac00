"""Bytes that connections have carried, as the kernel counts them."""

from __future__ import annotations

import os
import socket

import pytest

from bridge.transport import carried
from bridge.transport.carried import CarriedBytes, SocketBytes, bytes_of

SIZE = 10_000


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return ours, peer


def carry(ours: socket.socket, peer: socket.socket) -> None:
    """Receive `SIZE` bytes and send twice as many."""
    peer.sendall(bytes(SIZE))
    ours.sendall(bytes(2 * SIZE))
    for end, size in ((ours, SIZE), (peer, 2 * SIZE)):
        left = size
        while left:
            left -= len(end.recv(left))


def test_open_and_ended_connections_count_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "ASKED_AT_ONCE", 1)
    count = CarriedBytes()
    pairs = [connected() for _ in range(3)]
    for ours, peer in pairs:
        count.opened(ours.fileno())
        carry(ours, peer)
    for _ in range(4):
        count.ask_some()
    assert count.total == SocketBytes(3 * SIZE, 6 * SIZE)
    count.ask_some()  # asks the first, which then ends, and its descriptor is another's
    first = min((ours for ours, _ in pairs), key=socket.socket.fileno)
    count.ended(first.fileno())
    descriptor = first.fileno()
    elsewhere, peer = connected()
    first.close()
    again = socket.socket(fileno=os.dup2(elsewhere.fileno(), descriptor))
    pairs += [(again, peer), (elsewhere, peer)]
    count.opened(descriptor)
    carry(again, peer)
    for _ in range(3):
        count.ask_some()
        assert count.total == SocketBytes(3 * SIZE, 6 * SIZE), "as of the round before, or what had ended by then"
    for _ in range(4):
        count.ask_some()
    assert count.total == SocketBytes(4 * SIZE, 8 * SIZE)
    for pair in pairs:
        for each in pair:
            each.close()


def test_what_is_no_tcp_connection_counts_nothing() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert bytes_of(one.fileno()) == SocketBytes()
    assert bytes_of(-1) == SocketBytes()
