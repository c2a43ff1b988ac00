"""Accepted TCP connections over real sockets (`bridge.transport.tcp`, `.ready`, `.pending_ends`, `.listening`)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from unittest import mock

import pytest

from bridge.transport import listening, pending_ends, ready, tcp
from bridge.transport.borrowed import socket_of
from bridge.transport.listening import Listening, listen
from bridge.transport.pending_ends import ENDS_S
from bridge.transport.ready import KNOWN_EACH_S, KNOWN_S, KNOWN_S_MAX, UNKNOWN_BYTES, UNKNOWN_S
from bridge.transport.tcp import SENT_BYTES_MAX, SMALL_BYTES, TcpTransport
from tests.support.loop_wait import until
from tests.support.objects import count_of

WAIT_S = 20.0


class Noting(asyncio.Protocol):
    """Protocol that records its calls."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.reads: list[int] = []
        self.told: list[str] = []
        self.error: Exception | None = None
        self.transport: TcpTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TcpTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.reads.append(len(data))

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        os.fstat(self.transport.get_extra_info("descriptor"))  # the socket is closed next
        self.told.append("lost")
        self.error = exc


class Site:
    """A listening socket and its clients."""

    def __init__(self, make: Callable[[], asyncio.Protocol] = Noting) -> None:
        self.made: list[Noting] = []
        self._make = make
        self.peers: list[socket.socket] = []
        self.listening: Listening

    async def __aenter__(self) -> Site:
        self.listening = await listen("test", self._arrived, "127.0.0.1", 0, 1024)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listening.close()
        for peer in self.peers:
            peer.close()
        for each in self.made:
            each.transport.abort()
        await until(lambda: all("lost" in each.told for each in self.made))
        kinds = ready.sockets_of(asyncio.get_running_loop())
        assert not any(each is not None for kind in (kinds.known, kinds.unknown) for each in kind._sockets)

    def _arrived(self) -> asyncio.Protocol:
        made = self._make()
        assert isinstance(made, Noting)
        self.made.append(made)
        return made

    def connect(self, *, receive_bytes: int = 0) -> socket.socket:
        peer = socket.socket()
        if receive_bytes:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        peer.settimeout(WAIT_S)
        peer.connect(self.listening.address)
        peer.setblocking(False)
        self.peers.append(peer)
        return peer

    async def pair(self, *, receive_bytes: int = 0) -> tuple[socket.socket, Noting]:
        count = len(self.made)
        peer = self.connect(receive_bytes=receive_bytes)
        await until(lambda: len(self.made) > count)
        return peer, self.made[-1]


async def read_all(peer: socket.socket, count: int) -> bytes:
    """Return `count` bytes, or all until the end."""
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < count:
        some = await asyncio.wait_for(loop.sock_recv(peer, 1 << 16), WAIT_S)
        if not some:
            break
        data += some
    return bytes(data)


def reset(peer: socket.socket) -> None:
    """Close with a reset for the other end."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


class TestReading:
    @pytest.mark.parametrize("known", [False, True])
    def test_all_bytes_arrive_in_order(self, known: bool) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair()
                if known:
                    made.transport.identified()
                    made.transport.identified()  # has no effect
                sent = bytes(range(256)) * 8192
                await asyncio.gather(
                    asyncio.get_running_loop().sock_sendall(peer, sent), until(lambda: len(made.data) == len(sent))
                )
                assert made.data == sent
                assert known or max(made.reads) <= UNKNOWN_BYTES
                assert made.transport.get_extra_info("peername") == peer.getsockname()
                assert made.transport.get_extra_info("sockname") == peer.getpeername()
                assert made.transport.get_extra_info("sslcontext", "none") == "none"

        asyncio.run(scenario())

    def test_paused_connection_is_not_read(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair()
                made.transport.pause_reading()
                made.transport.pause_reading()
                assert not made.transport.is_reading()
                peer.send(b"one")
                _, other = await site.pair()
                site.peers[1].send(b"x")
                await until(lambda: other.data)
                made.transport.identified()  # pausing still works then
                await asyncio.sleep(0.01)
                assert not made.data
                made.transport.resume_reading()
                await until(lambda: made.data == b"one")

        asyncio.run(scenario())

    def test_bytes_available_while_paused_are_reported(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair()
                made.transport.pause_reading()
                assert not made.transport.unread
                peer.send(b"one")
                await until(lambda: made.transport.unread)
                assert not made.transport.hung_up
                made.transport.resume_reading()
                await until(lambda: made.data)
                assert not made.transport.unread
                made.transport.pause_reading()
                peer.send(b"two")
                peer.close()
                await until(lambda: made.transport.hung_up)
                assert made.transport.unread
                reset((await site.pair())[0])
                other = site.made[-1].transport
                other.pause_reading()
                await until(lambda: other.hung_up)
                other.abort()
                await until(lambda: "lost" in site.made[-1].told)
                await until(lambda: other.get_extra_info("descriptor") < 0)
                assert not other.unread
                assert not other.hung_up

        asyncio.run(scenario())

    def test_kernel_probes_silent_peers(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                _, made = await site.pair()
                with socket_of(made.transport.get_extra_info("descriptor")) as accepted:
                    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

        asyncio.run(scenario())

    def test_bytes_before_the_end_are_read_and_the_end_is_reported(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair()
                peer.send(b"last")
                peer.close()
                await until(lambda: "lost" in made.told)
                assert made.data == b"last"
                assert made.error is None

        asyncio.run(scenario())

    def test_reset_is_reported_with_its_error(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair()
                reset(peer)
                await until(lambda: "lost" in made.told)
                assert isinstance(made.error, ConnectionResetError)
                made.transport.write(b"nobody reads it")
                made.transport.close()

        asyncio.run(scenario())

    def test_lost_connection_is_freed_at_once(self) -> None:
        """A lost protocol is freed without the garbage collector, which runs seldom: it may hold megabytes."""

        async def scenario() -> None:
            before = count_of(TcpTransport)
            async with Site() as site:
                peer, made = await site.pair()
                reset(peer)
                await until(lambda: "lost" in made.told)
                assert made.transport.get_extra_info("descriptor") == -1
                del made.transport, site.made[:]
                await asyncio.sleep(0)
                assert count_of(TcpTransport) == before

        gc.collect()
        gc.disable()
        try:
            asyncio.run(scenario())
        finally:
            gc.enable()

    def test_reset_while_paused_waits(self) -> None:
        """Data in front of the reset is read first."""

        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair()
                made.transport.pause_reading()
                peer.send(b"said before")
                peer.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.01)
                assert not made.told
                made.transport.resume_reading()
                await until(lambda: "lost" in made.told)
                assert made.data == b"said before"

        asyncio.run(scenario())

    def test_protocol_that_raises_ends_alone(self) -> None:
        class Raising(Noting):
            def data_received(self, data: bytes) -> None:
                raise ValueError("of the protocol")

        async def scenario() -> None:
            said: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["exception"]))
            async with Site(Raising) as site, Site() as others:
                peer, made = await site.pair()
                other, well = await others.pair()
                peer.send(b"x")
                other.send(b"y")
                await until(lambda: "lost" in made.told and well.data == b"y")
                assert isinstance(made.error, ValueError)
                assert said == [made.error]
                assert "lost" not in well.told

        asyncio.run(scenario())


class TestWriting:
    def test_unsent_bytes_follow_when_the_socket_is_writable(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair(receive_bytes=8192)
                made.transport.set_write_buffer_limits(high=1 << 20)
                pieces = [bytes([number % 251]) * size for number, size in enumerate(SIZES)]
                for piece in pieces:
                    made.transport.write(piece)
                waiting = made.transport.get_write_buffer_size()
                assert waiting > 1 << 20
                assert made.told == ["pause"], "once"
                unsent = made.transport._unsent
                assert unsent is not None
                assert len(unsent.pieces) < len(pieces) // 10, "small ones wait together"
                assert await read_all(peer, sum(SIZES)) == b"".join(pieces)
                await until(lambda: made.told == ["pause", "resume"])
                assert not made.transport.get_write_buffer_size()

        asyncio.run(scenario())

    def test_waiting_bytes_are_sent_before_the_close(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair(receive_bytes=8192)
                made.transport.write(bytes(8 << 20))
                made.transport.close()
                assert made.transport.is_closing()
                assert not made.transport.is_reading()
                assert len(await read_all(peer, 9 << 20)) == 8 << 20
                await until(lambda: "lost" in made.told)

        asyncio.run(scenario())

    @pytest.mark.parametrize("size", [3, 8 << 20])
    def test_half_close_follows_waiting_bytes_and_reading_continues(self, size: int) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair(receive_bytes=8192)
                made.transport.write(bytes(size))
                made.transport.write_eof()
                made.transport.write_eof()
                assert len(await read_all(peer, size + 1)) == size, "and the end"
                peer.send(b"an answer")
                await until(lambda: made.data == b"an answer")
                peer.close()
                await until(lambda: "lost" in made.told)

        asyncio.run(scenario())

    def test_vanished_peer_ends_the_connection(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair(receive_bytes=8192)
                made.transport.pause_reading()  # reading does not find the end
                made.transport.write(bytes(8 << 20))
                reset(peer)
                await until(lambda: "lost" in made.told)
                assert isinstance(made.error, ConnectionError)
                assert not made.transport.get_write_buffer_size()

        asyncio.run(scenario())

    @pytest.mark.parametrize("half_closed", [False, True])
    def test_unread_bytes_are_dropped_some_time_after_the_close(self, half_closed: bool) -> None:
        async def scenario() -> None:
            async with Site() as site:
                peer, made = await site.pair(receive_bytes=8192)
                made.transport.write(bytes(8 << 20))
                if half_closed:
                    peer.shutdown(socket.SHUT_WR)  # like a client that requests much and reads nothing
                    await until(made.transport.is_closing)
                made.transport.close()
                assert made.transport.get_write_buffer_size()
                assert "lost" not in made.told
                await until(lambda: made.told.count("lost") == 1)
                assert made.error is None
                assert not made.transport.get_write_buffer_size()

        with mock.patch.object(tcp, "CLOSING_S", 0.1):
            asyncio.run(scenario())

    def test_abort_drops_waiting_bytes_and_is_reported_later(self) -> None:
        async def scenario() -> None:
            async with Site() as site:
                _, made = await site.pair(receive_bytes=8192)
                made.transport.write(bytes(8 << 20))
                made.transport.abort()
                made.transport.abort()
                assert not made.transport.get_write_buffer_size()
                assert "lost" not in made.told
                await until(lambda: made.told.count("lost") == 1)
                assert made.error is None

        asyncio.run(scenario())


SIZES = [8 << 20] + [7, SMALL_BYTES - 1, 3] * 400 + [SENT_BYTES_MAX * 2, 5, SMALL_BYTES + 1, 1]
"""Sizes of writes: the first alone is more than the kernel takes."""


class Slow(Noting):
    """Protocol that needs time for each read."""

    takes_s = UNKNOWN_S / 2

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        time.sleep(self.takes_s)  # simulates work


class TestShares:
    """Thousands of ready connections are read in turns."""

    COUNT = 60

    @pytest.mark.parametrize(("known", "share_s"), [(False, UNKNOWN_S), (True, KNOWN_S)])
    def test_ready_connections_share_each_turn_and_all_are_served(self, known: bool, share_s: float) -> None:
        async def scenario() -> None:
            async with Site(Slow) as site:
                for _ in range(self.COUNT):
                    site.connect()
                await until(lambda: len(site.made) == self.COUNT)
                if known:
                    for made in site.made:
                        made.transport.identified()
                rounds, reads = 0, 1 if known else 3
                for peer in site.peers:
                    peer.send(bytes(UNKNOWN_BYTES * 3))
                least: list[int] = []
                while len(least) < reads:
                    await asyncio.sleep(0)
                    rounds += 1
                    each = [len(made.reads) for made in site.made]
                    if min(each) > len(least):
                        least.append(max(each))
                in_a_turn = share_s / Slow.takes_s + ready.FEW_AT_ONCE
                assert rounds >= self.COUNT * reads / in_a_turn
                assert max(least) <= 2 * reads, "nobody has many turns before another has one"

        with mock.patch.object(Slow, "takes_s", share_s / 2):
            asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("takes_s", "served"),
        [
            (KNOWN_EACH_S / 2, int(2 * KNOWN_S_MAX / KNOWN_EACH_S) + 1),
            (KNOWN_EACH_S * 2, int(KNOWN_S / KNOWN_EACH_S) + 1),
            (KNOWN_S / 3, 4),
        ],
    )
    def test_slow_work_gets_shorter_turns(self, takes_s: float, served: int) -> None:
        """Small messages of many connections get longer turns, as each turn has a fixed cost."""
        now = 0.0

        class Working:
            reads = True

            def writable(self) -> None:
                """Write nothing."""

            def received(self, brought: bytes | int) -> None:
                nonlocal now
                now += takes_s
                some.append(brought)

        async def scenario() -> None:
            known = ready.sockets_of(asyncio.get_running_loop()).known
            for one, _ in pairs:
                known.watch(one.fileno(), Working(), 0, ready.READABLE)
            known._serve()
            for one, _ in pairs:
                known.watch(one.fileno(), Working(), ready.READABLE, 0)

        some: list[bytes | int] = []
        pairs = [socket.socketpair() for _ in range(served + 2 * ready.AT_ONCE)]
        try:
            for _, other in pairs:
                other.send(b"x")
            with mock.patch.object(ready, "time", mock.Mock(monotonic=lambda: now)):
                asyncio.run(scenario())
            assert (
                served - 1 <= len(some) <= served + (ready.AT_ONCE if takes_s < KNOWN_EACH_S * 3 else ready.FEW_AT_ONCE)
            )
        finally:
            for pair in pairs:
                for each in pair:
                    each.close()

    def test_ends_have_a_share_of_each_turn(self) -> None:
        class Leaving(Noting):
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                time.sleep(ENDS_S)  # simulates work

        async def scenario() -> None:
            async with Site(Leaving) as site:
                for _ in range(self.COUNT):
                    site.connect()
                await until(lambda: len(site.made) == self.COUNT)
                for made in site.made:
                    made.transport.abort()
                before = 0
                while before < self.COUNT:
                    await asyncio.sleep(0)
                    now = sum("lost" in made.told for made in site.made)
                    assert now - before <= 2
                    before = now

        asyncio.run(scenario())

    def test_end_that_raises_does_not_block_others(self) -> None:
        class Failing:
            def end(self, error: Exception | None) -> None:
                raise ValueError("of the ending")

        class Well:
            ended = False

            def end(self, error: Exception | None) -> None:
                self.ended = True

        async def scenario() -> None:
            loop, said, well = asyncio.get_running_loop(), list[object](), Well()
            loop.set_exception_handler(lambda _, context: said.append(context["exception"]))
            found = pending_ends.ends_of(loop)
            assert pending_ends.ends_of(loop) is found
            found.add(Failing(), None)
            found.add(well, None)
            await until(lambda: well.ended)
            assert len(said) == 1

        asyncio.run(scenario())

    def test_connections_are_accepted_in_turns(self) -> None:
        class Arriving(Noting):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                time.sleep(listening.ACCEPT_S)  # simulates work

        async def scenario() -> None:
            async with Site(Arriving) as site:
                for _ in range(self.COUNT):
                    site.connect()  # the kernel accepts them
                before = 0
                while before < self.COUNT:
                    await asyncio.sleep(0)
                    assert len(site.made) - before <= 2
                    before = len(site.made)

        asyncio.run(scenario())


class TestListening:
    def test_listener_without_descriptors_waits_for_one(self, caplog: pytest.LogCaptureFixture) -> None:
        class Full(socket.socket):
            tries = 0

            def accept(self) -> tuple[socket.socket, object]:
                Full.tries += 1
                if Full.tries == 1:
                    raise OSError(errno.EMFILE, "Too many open files")
                if Full.tries == 2:
                    raise ConnectionAbortedError
                return super().accept()

        async def scenario() -> None:
            made: list[Noting] = []

            def make() -> Noting:
                made.append(Noting())
                return made[-1]

            with mock.patch.object(listening, "NO_DESCRIPTOR_WAIT_S", 0.01):
                sock = Full()
                sock.bind(("127.0.0.1", 0))
                sock.listen(5)
                sock.setblocking(False)
                found = Listening("mqtt", [sock], make)
                with socket.create_connection(found.address, WAIT_S):
                    await until(lambda: made)
                await until(lambda: "lost" in made[0].told)
                found.close()
                found.close()

        with caplog.at_level(logging.WARNING):
            asyncio.run(scenario())
        assert "mqtt: cannot accept a connection: Too many open files" in caplog.text

    @pytest.mark.parametrize("where", ["make", "connection_made"])
    def test_exception_for_one_connection_ends_it_alone(self, where: str) -> None:
        class Faulty(Noting):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                raise ValueError("of the protocol")

        def faulty() -> Noting:
            if where == "make":
                raise ValueError("of the maker")
            return Faulty()

        async def scenario() -> None:
            said: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["exception"]))
            kinds, well = [faulty], Noting()

            def make() -> Noting:
                return kinds.pop()() if kinds else well

            found = await listen("test", make, "127.0.0.1", 0, 5)
            with contextlib.closing(found):
                with socket.create_connection(found.address, WAIT_S) as peer:
                    peer.setblocking(False)
                    assert await read_all(peer, 1) == b"", "it is closed"
                assert [type(error) for error in said] == [ValueError]
                socket.create_connection(found.address, WAIT_S).close()
                await until(lambda: "lost" in well.told)

        asyncio.run(scenario())

    def test_every_address_of_a_host_is_used(self) -> None:
        async def scenario() -> None:
            made = Noting()
            found = await listen("mqtt", lambda: made, "localhost", 0, 5)
            with contextlib.closing(found):
                host, port = found.address
                socket.create_connection((host, port), WAIT_S).close()
                await until(lambda: "lost" in made.told)
                with pytest.raises(OSError, match=r".") as refused:
                    await listen("mqtt", Noting, host, port, 5)
                assert refused.value.errno == errno.EADDRINUSE

        asyncio.run(scenario())

    def test_address_of_another_machine_is_skipped(self) -> None:
        """An IPv6 address of `localhost` is skipped on a machine without IPv6."""

        async def scenario() -> None:
            named = [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0)),
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
            ]

            async def names(*_: object, **__: object) -> list[object]:
                return list(named)

            with mock.patch.object(asyncio.get_running_loop(), "getaddrinfo", names):
                found = await listen("mqtt", Noting, "host", 0, 5)
                assert found.address[0] == "127.0.0.1"
                found.close()
                del named[1]
                with pytest.raises(OSError, match=r".") as refused:
                    await listen("mqtt", Noting, "host", 0, 5)
                assert refused.value.errno == errno.EADDRNOTAVAIL

        asyncio.run(scenario())


class TestCarried:
    """Received and sent bytes are counted (`bridge.transport.byte_counter`)."""

    def test_all_bytes_pass_both_ways_with_any_socket_buffer(self) -> None:
        async def scenario() -> None:
            size = 64 * SENT_BYTES_MAX
            async with Site() as site:
                peer, made = await site.pair(receive_bytes=4096)
                counted = ready.sockets_of(asyncio.get_running_loop()).counter
                assert (counted.received, counted.sent) == (0, 0)
                made.transport.write(bytes(size))
                assert 0 < counted.sent < size, "the socket does not take all of it"
                assert len(await read_all(peer, size)) == size
                peer.send(b"three")
                made.transport.identified()
                await until(lambda: made.data)
                other, known = await site.pair()
                known.transport.write(b"four")
                assert len(await read_all(other, 4)) == 4
                assert (counted.received, counted.sent) == (5, size + 4)

        asyncio.run(scenario())
