"""Accepted connections with TLS over real sockets, against OpenSSL's own client (`bridge.transport.tls`)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from bridge.transport import tcp, tls
from bridge.transport.borrowed import socket_of
from bridge.transport.listening import Listening, listen
from bridge.transport.slow_lane import slow_lane_of
from bridge.transport.tcp import TcpTransport
from bridge.transport.tls import OWED_BYTES_MAX, TlsTransport
from bridge.transport.tls_records import PIECE_BYTES_MAX, RECORDS_AT_ONCE, TlsRecords
from tests.support.certificates import Authority
from tests.support.loop_wait import until
from tests.support.objects import count_of
from tests.support.tls_peer import TrafficKeys
from tests.unit.bridge.tls_ends import SIZES, VERSIONS, WAIT_S, RecordingProtocol, TlsEnd

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Contexts:
    """Context of the server, and of a client that trusts it."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        issued = authority.issue("server")
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(issued.certificate, issued.key)
        self.client = authority.context()
        self.distrustful = ssl.create_default_context()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    return Contexts(tmp_path_factory.mktemp("tls"))


class Site:
    """A listening socket, its clients, and the ends of their connections."""

    def __init__(self, contexts: Contexts, *, room: bool = True, handshake_s: float = WAIT_S) -> None:
        self.made: list[RecordingProtocol] = []
        self.failures: list[Exception | None] = []
        self.handshake_s = handshake_s
        self.make: Callable[[], RecordingProtocol] = RecordingProtocol
        self._contexts = contexts
        self._room = room
        self._clients: list[socket.socket] = []
        self._open = 0
        self.listening: Listening

    async def __aenter__(self) -> Site:
        self.listening = await listen("test", lambda: TlsTransport(self), "127.0.0.1", 0, 100)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listening.close()
        for client in self._clients:
            client.close()
        for each in self.made:
            each.transport.abort()
        await until(lambda: all("lost" in each.told for each in self.made) and not self._open)

    def arrived(self, transport: TlsTransport) -> None:
        self._open += 1
        transport.begin(self._contexts.server, asyncio.get_running_loop().time() + self.handshake_s)

    def secured(self, transport: TlsTransport) -> asyncio.Protocol | None:
        self._open -= 1
        if not self._room:
            return None
        self.made.append(self.make())
        return self.made[-1]

    def failed(self, transport: TlsTransport, error: Exception | None) -> None:
        self._open -= 1
        self.failures.append(error)

    async def connect(self, *, receive_bytes: int = 0) -> socket.socket:
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.setblocking(False)
        self._clients.append(client)
        await asyncio.get_running_loop().sock_connect(client, self.listening.address)
        return client

    async def client(
        self, context: ssl.SSLContext | None = None, version: ssl.TLSVersion | None = None, *, receive_bytes: int = 0
    ) -> TlsEnd:
        context = context or self._contexts.client
        context.maximum_version = version or ssl.TLSVersion.TLSv1_3
        return TlsEnd(context, await self.connect(receive_bytes=receive_bytes))

    async def pair(
        self, version: ssl.TLSVersion | None = None, *, receive_bytes: int = 0
    ) -> tuple[TlsEnd, RecordingProtocol]:
        client, count = await self.client(version=version, receive_bytes=receive_bytes), len(self.made)
        await client.run(client.tls.do_handshake)
        await until(lambda: len(self.made) > count)
        return client, self.made[-1]


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2) + bytes(size)


class TestRecords:
    @pytest.mark.parametrize("read", [1, 3, 7, 1_000, 20_000, 1 << 20])
    def test_stream_is_unchanged(self, read: int) -> None:
        stream = b"".join(record(size) for size in (0, 1, 20, 16_401, 5, 65_535, 300, 17)) + b"\x17\x03"
        records, given = TlsRecords(), bytearray()
        for start in range(0, len(stream), read):
            records.add(stream[start : start + read])
            while records:
                piece = records.next()
                assert 0 < len(piece) <= PIECE_BYTES_MAX
                given += piece
            assert not records.next()
        assert given == stream[:-2], "all but the beginning of a header"
        records.clear()
        assert not records

    def test_record_batches_are_bounded(self) -> None:
        records = TlsRecords()
        records.add(record(1) * (RECORDS_AT_ONCE + 1))
        assert len(records.next()) == 6 * RECORDS_AT_ONCE
        assert len(records.next()) == 6


class TestBytes:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("known", [False, True])
    def test_bytes_of_any_size_pass_both_ways(self, contexts: Contexts, version: ssl.TLSVersion, known: bool) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair(version)
                if known:
                    made.transport.identified()
                for number, size in enumerate(SIZES):
                    body = bytes([number + 1]) * size
                    del made.data[:]
                    await client.send(body)
                    await until(lambda size=size: len(made.data) == size)
                    assert made.data == body
                    made.transport.write(body)
                    assert await client.read(size) == body
                made.transport.writelines([b"one", b"two"])
                assert await client.read(6) == b"onetwo"
                assert made.transport.get_extra_info("sslcontext") is contexts.server
                assert made.transport.get_extra_info("ssl_object").version() == client.tls.version()
                assert made.transport.get_extra_info("peername") == client.socket.getsockname()
                assert made.transport.get_extra_info("peercert") is None

        asyncio.run(scenario())

    @pytest.mark.parametrize("version", VERSIONS)
    def test_stream_may_be_split_anywhere(self, contexts: Contexts, version: ssl.TLSVersion) -> None:
        """Handshake and records may be cut every few bytes; the first message comes with the end of the handshake."""

        async def scenario() -> None:
            async with Site(contexts) as site:
                client = await site.client(version=version)

                async def by_sevens() -> None:
                    data = client.taken()
                    for start in range(0, len(data), 7):
                        await client.send_raw(data[start : start + 7])
                        await asyncio.sleep(0)

                client.flush = by_sevens  # type: ignore[method-assign]

                def first() -> None:
                    client.tls.do_handshake()
                    client.tls.write(b"first")

                await client.run(first)
                await until(lambda: site.made and site.made[0].data == b"first")
                await client.send(bytes(1_000))
                await until(lambda: site.made[0].data == b"first" + bytes(1_000))

        asyncio.run(scenario())


class TestTurns:
    """A connection with much input shares the turns of the loop with others."""

    def test_one_byte_records_are_processed_in_slices(self, contexts: Contexts) -> None:
        class Pausing(RecordingProtocol):
            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                if self.reads == 3:
                    self.transport.pause_reading()

        async def scenario() -> None:
            async with Site(contexts) as site:
                site.make = Pausing
                client, made = await site.pair()
                made.transport.identified()
                made.transport.pause_reading()  # so that all of it is received at once
                for number in range(2_000):
                    client.tls.write(bytes([number % 251]))
                await client.flush()
                made.transport.resume_reading()
                await until(lambda: made.reads == 3)
                for _ in range(20):
                    await asyncio.sleep(0)
                assert len(made.data) == 3 * RECORDS_AT_ONCE, "it pauses between slices too"
                made.transport.resume_reading()
                made.transport.resume_reading()
                await until(lambda: len(made.data) == 2_000)
                assert made.data == bytes(number % 251 for number in range(2_000))
                await client.send(b"and on")
                await until(lambda: made.data.endswith(b"and on"))

        with mock.patch.object(tls, "DECRYPT_S", 0.0):
            asyncio.run(scenario())

    def test_connection_may_end_between_slices(self, contexts: Contexts) -> None:
        class Ending(RecordingProtocol):
            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                self.transport.abort()

        async def scenario() -> None:
            async with Site(contexts) as site:
                site.make = Ending
                client, made = await site.pair()
                made.transport.identified()
                made.transport.pause_reading()
                for _ in range(2_000):
                    client.tls.write(b"x")
                await client.flush()
                made.transport.resume_reading()
                await until(lambda: "lost" in made.told)
                await until(lambda: not slow_lane_of(asyncio.get_running_loop()).waiting)
                assert len(made.data) == RECORDS_AT_ONCE

        with mock.patch.object(tls, "DECRYPT_S", 0.0):
            asyncio.run(scenario())

    def test_key_updates_are_processed_in_slices(self, contexts: Contexts, tmp_path: Path) -> None:
        """OpenSSL would process all of them in one call."""
        slices: list[bool] = []
        take_slice = TlsTransport.take_slice

        def noted(transport: TlsTransport) -> bool:
            slices.append(take_slice(transport))
            return slices[-1]

        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair()
                updates = TrafficKeys(log).key_updates(1_000)
                made.transport.pause_reading()
                await client.send_raw(updates)
                made.transport.identified()
                made.transport.resume_reading()
                await until(lambda: slices and not slices[-1])
                assert 1 + len(slices) == 1_000 // RECORDS_AT_ONCE, "the first with the read"
                made.transport.write(b"still there")
                assert await client.read(len(b"still there")) == b"still there"

        log = tmp_path / "keys"
        contexts.client.keylog_filename = str(log)
        try:
            with mock.patch.object(tls, "DECRYPT_S", 0.0), mock.patch.object(TlsTransport, "take_slice", noted):
                asyncio.run(scenario())
        finally:
            contexts.client.keylog_filename = None

    def test_peer_that_forces_answers_without_reading_is_disconnected(self, contexts: Contexts, tmp_path: Path) -> None:
        """Answers to a peer that does not read are bounded; then the connection ends."""

        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair(receive_bytes=4_096)
                with socket_of(made.transport.get_extra_info("descriptor")) as near:
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
                keys, most = TrafficKeys(log), 0
                while "lost" not in made.told:
                    with contextlib.suppress(ConnectionError):
                        await client.send_raw(keys.key_updates(100))
                    most = max(most, made.transport.get_write_buffer_size())
                assert isinstance(made.error, ConnectionAbortedError)
                assert most <= OWED_BYTES_MAX

        log = tmp_path / "keys"
        contexts.client.keylog_filename = str(log)
        try:
            asyncio.run(scenario())
        finally:
            contexts.client.keylog_filename = None


class TestWriting:
    def test_unsent_bytes_wait_and_count(self, contexts: Contexts) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair(receive_bytes=8_192)
                made.transport.set_write_buffer_limits(high=1 << 20)
                made.transport.write(bytes(8 << 20))
                assert made.transport.get_write_buffer_size() > 1 << 20
                assert made.told == ["pause"]
                assert len(await client.read(8 << 20)) == 8 << 20
                await until(lambda: made.told == ["pause", "resume"])
                assert not made.transport.get_write_buffer_size()

        asyncio.run(scenario())

    def test_close_sends_waiting_bytes_and_close_notify(self, contexts: Contexts) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair(receive_bytes=8_192)
                made.transport.write(bytes(4 << 20))
                made.transport.close()
                made.transport.close()
                made.transport.write(b"not this")
                assert made.transport.is_closing()
                assert len(await client.read(5 << 20)) == 4 << 20, "and the close_notify"
                await until(lambda: made.told[-1] == "lost")
                assert made.error is None

        asyncio.run(scenario())

    def test_peer_that_does_not_read_is_cut_after_close(self, contexts: Contexts) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                _client, made = await site.pair(receive_bytes=8_192)
                made.transport.write(bytes(8 << 20))
                made.transport.close()
                assert "lost" not in made.told
                await until(lambda: made.told[-1] == "lost")

        with mock.patch.object(tcp, "CLOSING_S", 0.1):
            asyncio.run(scenario())

    @pytest.mark.parametrize("version", VERSIONS)
    def test_bytes_after_our_end_are_dropped(self, contexts: Contexts, version: ssl.TLSVersion) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair(version)
                made.transport.write(b"last words")
                assert made.transport.can_write_eof()
                made.transport.write_eof()
                made.transport.write_eof()
                await client.send(b"too late")
                assert await client.read(100) == b"last words"
                with pytest.raises(RuntimeError):
                    made.transport.write(b"more")
                client.socket.close()
                await until(lambda: made.told == ["end", "lost"])
                assert not made.data

        asyncio.run(scenario())


class TestEnds:
    @pytest.mark.parametrize("said", [False, True])
    def test_peer_may_close(self, contexts: Contexts, said: bool) -> None:
        """The peer closes with a close_notify, or without one."""

        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair()
                await client.send(b"last")
                if said:
                    with pytest.raises(ssl.SSLWantReadError):
                        client.tls.unwrap()
                    await client.flush()
                else:
                    client.socket.shutdown(socket.SHUT_WR)
                await until(lambda: made.told == ["end", "lost"])
                assert made.data == b"last"
                assert made.error is None

        asyncio.run(scenario())

    @pytest.mark.parametrize("version", VERSIONS)
    def test_invalid_records_end_the_connection(self, contexts: Contexts, version: ssl.TLSVersion) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                client, made = await site.pair(version)
                client.tls.write(b"as it was")
                record = client.taken()
                await client.send_raw(record[:-1] + bytes([record[-1] ^ 1]))
                with pytest.raises(ssl.SSLError) as alerted:
                    await client.read(1)
                assert "ALERT_BAD_RECORD_MAC" in str(alerted.value.reason)
                client.socket.close()
                await until(lambda: "lost" in made.told)
                assert not made.data
                assert isinstance(made.error, ssl.SSLError)

        asyncio.run(scenario())

    def test_protocol_that_raises_ends_alone(self, contexts: Contexts) -> None:
        class Raising(RecordingProtocol):
            def data_received(self, data: bytes) -> None:
                raise ValueError("of the protocol")

        async def scenario() -> None:
            said: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["exception"]))
            async with Site(contexts) as site:
                other, well = await site.pair()
                site.make = Raising
                client, made = await site.pair()
                await client.send(b"x")
                await other.send(b"y")
                await until(lambda: "lost" in made.told and well.data == b"y")
                assert said == [made.error]

        asyncio.run(scenario())

    def test_lost_connection_is_freed_at_once(self, contexts: Contexts) -> None:
        """A lost connection is freed without the garbage collector, which runs seldom."""

        async def scenario() -> None:
            before = count_of(TcpTransport)
            async with Site(contexts) as site:
                client, made = await site.pair()
                freed = weakref.ref(made.transport.get_extra_info("ssl_object"))
                client.socket.close()
                await until(lambda: "lost" in made.told)
                del made.transport, site.made[:]
                await asyncio.sleep(0)
                assert freed() is None
                assert count_of(TcpTransport) == before

        gc.collect()
        gc.disable()
        try:
            asyncio.run(scenario())
        finally:
            gc.enable()


class TestHandshake:
    @pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
    def test_handshake_has_a_deadline(self, contexts: Contexts, sent: bytes) -> None:
        async def scenario() -> None:
            async with Site(contexts, handshake_s=0.1) as site:
                client = await site.connect()
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, sent)
                assert await asyncio.wait_for(loop.sock_recv(client, 100), WAIT_S) == b""
                await until(lambda: site.failures)
                assert isinstance(site.failures[0], TimeoutError)

        asyncio.run(scenario())

    def test_client_without_tls_reads_the_alert_while_it_keeps_sending(self, contexts: Contexts) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                client = await site.connect()
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, b"\x16\x03\x01\x00\x05\x01\0\0\x01\0" + bytes(20_000))
                assert (await asyncio.wait_for(loop.sock_recv(client, 100), WAIT_S))[:1] == b"\x15", "an alert"
                await until(lambda: site.failures)
                assert isinstance(site.failures[0], ssl.SSLError)
                await loop.sock_sendall(client, bytes(20_000))
                while alert := await asyncio.wait_for(loop.sock_recv(client, 100), WAIT_S):
                    assert alert, "the rest of the alert, and no reset"

        asyncio.run(scenario())

    def test_peer_may_close_during_the_handshake(self, contexts: Contexts) -> None:
        async def scenario() -> None:
            async with Site(contexts) as site:
                client = await site.connect()
                client.close()
                await until(lambda: site.failures == [None])
                distrustful = await site.client(contexts.distrustful)
                with pytest.raises(ssl.SSLCertVerificationError):
                    await distrustful.run(distrustful.tls.do_handshake)
                await until(lambda: len(site.failures) == 2)
                assert isinstance(site.failures[1], ssl.SSLError)

        asyncio.run(scenario())

    def test_handshake_without_room_is_refused(self, contexts: Contexts) -> None:
        async def scenario() -> None:
            async with Site(contexts, room=False) as site:
                client = await site.client()
                await client.run(client.tls.do_handshake)
                assert await client.read(1) == b"", "a close_notify, and no reset"
                assert not site.failures

        asyncio.run(scenario())
