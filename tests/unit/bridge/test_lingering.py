"""The last bytes reach a peer that goes on sending, and its socket is closed within the limits."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest
import uvloop

from bridge.limits import LINGERING_MAX
from bridge.transport import lingering
from bridge.transport.lingering import lingering_of
from bridge.transport.tcp import TcpTransport
from tests.support.loop_wait import until

WAIT_S = 20.0


def running(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: object, **named: object) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*arguments, **named), WAIT_S))  # type: ignore[arg-type]

    return run


class Ended(asyncio.Protocol):
    """Protocol that records its end."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


def connected() -> tuple[TcpTransport, Ended, socket.socket]:
    """Return the server's transport, its protocol, and the peer's socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        ours, address = server.accept()
    ours.setblocking(False)
    peer.setblocking(False)
    protocol = Ended()
    return TcpTransport(asyncio.get_running_loop(), ours, address, protocol), protocol, peer


@running
async def test_peer_that_keeps_sending_reads_the_last_bytes() -> None:
    loop = asyncio.get_running_loop()
    transport, protocol, peer = connected()
    with peer:
        transport.pause_reading()
        await loop.sock_sendall(peer, bytes(100_000))
        transport.write(b"last words")
        transport.close()
        assert await protocol.ended is None
        assert len(lingering_of(loop)) == 1
        await loop.sock_sendall(peer, bytes(2_000_000))
        assert await loop.sock_recv(peer, 100) == b"last words"
        assert await loop.sock_recv(peer, 100) == b"", "and no reset"
    await until(lambda: not len(lingering_of(loop)))


@running
async def test_closed_peer_is_not_awaited() -> None:
    loop = asyncio.get_running_loop()
    transport, protocol, peer = connected()
    peer.close()
    assert await protocol.ended is None
    assert transport.is_closing()
    assert not len(lingering_of(loop))


@running
async def test_aborted_connection_does_not_linger() -> None:
    transport, protocol, peer = connected()
    with peer:
        transport.abort()
        await protocol.ended
        assert not len(lingering_of(asyncio.get_running_loop()))


@pytest.mark.parametrize(("silence_s", "whole_s", "talks"), [(0.2, 60.0, False), (60.0, 0.4, True)])
def test_silence_and_total_time_are_bounded(
    monkeypatch: pytest.MonkeyPatch, silence_s: float, whole_s: float, talks: bool
) -> None:
    monkeypatch.setattr(lingering, "LINGER_SILENCE_S", silence_s)
    monkeypatch.setattr(lingering, "LINGER_S", whole_s)
    monkeypatch.setattr(lingering, "SWEEP_S", 0.05)

    @running
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        transport, protocol, peer = connected()
        with peer:
            transport.close()
            await protocol.ended
            while len(lingering_of(loop)):
                if talks:
                    await loop.sock_sendall(peer, b"more")
                await asyncio.sleep(0.01)

    scenario()


@running
async def test_oldest_socket_is_closed_at_the_limit() -> None:
    loop = asyncio.get_running_loop()
    kept = []
    waiting = lingering_of(loop)
    for _ in range(LINGERING_MAX + 1):
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        kept.append(peer)
        waiting.add(ours.detach(), "192.0.2.1")
    assert len(waiting) == LINGERING_MAX
    assert _broken(kept[0])
    assert not _broken(kept[1])
    for peer in kept:
        peer.close()
    await until(lambda: not len(waiting))


@running
async def test_flood_of_one_host_closes_no_socket_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "LINGERING_MAX", 4)
    waiting = lingering_of(asyncio.get_running_loop())
    peers = []
    for host in ("192.0.2.1", *["192.0.2.66"] * 20, "192.0.2.2"):
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        peers.append(peer)
        waiting.add(ours.detach(), host)
    assert [number for number, peer in enumerate(peers) if not _broken(peer)] == [0, 19, 20, 21]
    waiting.keep_at_most(0)
    assert len(waiting) == 0
    for peer in peers:
        peer.close()


def _broken(peer: socket.socket) -> bool:
    """Return True when the other end is closed."""
    try:
        os.write(peer.fileno(), b"x")
    except OSError:
        return True
    return False
