"""Dialled connections over real sockets, to OpenSSL's own server (`bridge.transport.dialed`)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bridge.transport import tls
from bridge.transport.borrowed import socket_of
from bridge.transport.dialed import NoTlsError, transport_over
from bridge.transport.driver import ConnectionDriver
from bridge.transport.served import ServedTransport
from bridge.transport.tcp import TcpTransport
from bridge.transport.tls import OWED_BYTES_MAX, TlsTransport
from bridge.transport.tls_records import RECORDS_AT_ONCE
from tests.support.certificates import Authority
from tests.support.loop_wait import until
from tests.support.objects import count_of
from tests.support.talkative import IdleOwner, LateConnection
from tests.support.tls_peer import TrafficKeys
from tests.unit.bridge.tls_ends import SIZES, VERSIONS, WAIT_S, RecordingProtocol, TlsEnd

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


KeysOf = Callable[[ssl.SSLContext], Callable[[], TrafficKeys]]
"""Make a context log its keys; return a function that gives the peer's keys of a connection."""


class Place:
    """Certificates of the listening side, and the trusted authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self._issued = self.authority.issue("server")
        self._ended = self.authority.issue("ended", days=-1)

    def trusting(self) -> ssl.SSLContext:
        return self.authority.context()

    def server(self, *, ended: bool = False) -> ssl.SSLContext:
        issued = self._ended if ended else self._issued
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.certificate, issued.key)
        context.num_tickets = 0  # the test sends the first record behind the handshake
        return context


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("dialed"))


class Heard(RecordingProtocol):
    """Protocol that records its calls, for any kind of transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, ServedTransport)
        self.transport = transport  # type: ignore[assignment]


class Line:
    """A connection: the socket of the listening side, and the dialled end once it exists."""

    def __init__(self, far: socket.socket, dialing: asyncio.Future[ServedTransport], heard: Heard) -> None:
        self.far = far
        self.dialing = dialing
        self.heard = heard

    async def up(self, context: ssl.SSLContext) -> TlsEnd:
        """Return the far end once both ends are up."""
        end = TlsEnd(context, self.far, server_side=True)
        await end.run(end.tls.do_handshake)
        await asyncio.wait_for(self.dialing, WAIT_S)
        return end


@contextlib.asynccontextmanager
async def line(
    context: ssl.SSLContext | None,
    host: str = "localhost",
    *,
    make: Callable[[], Heard] = Heard,
    receive_bytes: int = 0,
) -> AsyncIterator[Line]:
    loop, heard = asyncio.get_running_loop(), make()
    with socket.socket() as listening, socket.socket() as near:
        if receive_bytes:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        near.setblocking(False)
        await loop.sock_connect(near, listening.getsockname())
        far, _ = await loop.sock_accept(listening)
        over = transport_over(socket.socket(fileno=near.detach()), lambda: heard, context, host)
        made = Line(far, loop.create_task(over), heard)
        with far:
            try:
                yield made
            finally:
                made.dialing.cancel()
                with contextlib.suppress(BaseException):
                    (await made.dialing).abort()
                if hasattr(heard, "transport"):
                    await until(lambda: "lost" in heard.told)


def running(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    def run(self: Any, place: Place) -> None:
        asyncio.run(test(self, place))  # type: ignore[arg-type]

    return run


class TestBytes:
    @pytest.mark.parametrize("version", [None, *VERSIONS])
    def test_bytes_of_any_size_pass_both_ways(self, place: Place, version: ssl.TLSVersion | None) -> None:
        async def scenario() -> None:
            context = place.trusting() if version is not None else None
            if context is not None and version is not None:
                context.maximum_version = version
            loop = asyncio.get_running_loop()
            async with line(context) as made:
                end = await made.up(place.server()) if context is not None else None
                transport = await made.dialing
                for number, size in enumerate(SIZES):
                    body = bytes([number + 1]) * size
                    del made.heard.data[:]
                    if end is not None:
                        await end.send(body)
                    else:
                        made.far.setblocking(False)
                        await loop.sock_sendall(made.far, body)
                    await until(lambda size=size: len(made.heard.data) == size)
                    assert made.heard.data == body
                    transport.write(body)
                    if end is not None:
                        assert await end.read(size) == body
                    else:
                        got = b""
                        while len(got) < size:
                            got += await loop.sock_recv(made.far, 1 << 16)
                        assert got == body
                assert transport.get_extra_info("peername") == made.far.getsockname()
                if end is not None:
                    assert transport.get_extra_info("sslcontext") is context
                    assert transport.get_extra_info("ssl_object").version() == end.tls.version()
                    assert transport.get_extra_info("peercert")["subject"]

        asyncio.run(scenario())

    @pytest.mark.parametrize("version", VERSIONS)
    def test_stream_may_be_split_anywhere(self, place: Place, version: ssl.TLSVersion) -> None:
        """Handshake and records may be cut every few bytes; the first message comes with the end of the handshake."""

        async def scenario() -> None:
            context = place.trusting()
            context.maximum_version = version
            async with line(context) as made:
                end = TlsEnd(place.server(), made.far, server_side=True)

                async def by_sevens() -> None:
                    data = end.taken()
                    for start in range(0, len(data), 7):
                        await end.send_raw(data[start : start + 7])
                        await asyncio.sleep(0)

                end.flush = by_sevens  # type: ignore[method-assign]

                def first() -> None:
                    end.tls.do_handshake()
                    end.tls.write(b"first")

                await end.run(first)
                await until(lambda: made.heard.data == b"first")

        asyncio.run(scenario())


class TestCuts:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_server_may_close_after_any_byte(self, place: Place, version: ssl.TLSVersion) -> None:
        """A server that closes after any byte is reported to the dialler, before or after the handshake, and nothing
        hangs."""

        async def said(bytes_max: int) -> int:
            """Stop the server after `bytes_max` bytes; return how many it would have sent."""
            context = place.trusting()
            context.maximum_version = version
            async with line(context) as made:
                end = TlsEnd(place.server(), made.far, server_side=True)
                sent = 0

                async def flush() -> None:
                    nonlocal sent
                    data = end.taken()
                    await end.send_raw(data[: max(bytes_max - sent, 0)])
                    sent += len(data)
                    if sent >= bytes_max:
                        raise EOFError

                end.flush = flush  # type: ignore[method-assign]

                def first() -> None:
                    end.tls.do_handshake()
                    end.tls.write(b"first")

                with contextlib.suppress(EOFError, ConnectionError):
                    await end.run(first)
                made.far.close()
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(made.dialing, WAIT_S)
                    await until(lambda: "lost" in made.heard.told)
                assert made.dialing.done()
                return sent

        async def scenario() -> None:
            whole = await said(1 << 20)
            for bytes_max in range(0, whole + 1, 23):
                await said(bytes_max)

        asyncio.run(scenario())


class TestServerIdentity:
    @pytest.mark.parametrize(("host", "said"), [("localhost", "localhost"), ("127.0.0.1", None)])
    def test_name_and_protocol_are_requested(self, place: Place, host: str, said: str | None) -> None:
        async def scenario() -> None:
            names: list[str | None] = []
            server, context = place.server(), place.trusting()
            server.sni_callback = lambda _object, name, _context: names.append(name)
            server.set_alpn_protocols(["amqp"])
            context.set_alpn_protocols(["other", "amqp"])
            async with line(context, host) as made:
                await made.up(server)
                assert names == [said]
                secure = made.heard.transport.get_extra_info("ssl_object")
                assert secure.selected_alpn_protocol() == "amqp"

        asyncio.run(scenario())

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize(
        ("host", "ended", "stranger", "code", "alert"),
        [
            ("elsewhere.example", False, False, 62, "ALERT_BAD_CERTIFICATE"),
            ("localhost", True, False, 10, "ALERT_CERTIFICATE_EXPIRED"),
            ("localhost", False, True, None, "ALERT_UNKNOWN_CA"),
        ],
    )
    def test_server_of_another_name_is_refused(
        self,
        place: Place,
        version: ssl.TLSVersion,
        host: str,
        ended: bool,
        stranger: bool,
        code: int | None,
        alert: str,
    ) -> None:
        """Both ends get the reason: the server by an alert, the dialler by an error."""

        async def scenario() -> None:
            context = ssl.create_default_context() if stranger else place.trusting()
            context.maximum_version = version
            async with line(context, host) as made:
                end = TlsEnd(place.server(ended=ended), made.far, server_side=True)

                async def alerted() -> None:
                    await end.run(end.tls.do_handshake)
                    await end.read(1)

                with pytest.raises(ssl.SSLError) as refused:
                    await alerted()
                assert alert in str(refused.value.reason)
                made.far.close()
                with pytest.raises(ssl.SSLCertVerificationError) as raised:
                    await made.dialing
                assert code in (None, raised.value.verify_code)
                assert not made.heard.told

        asyncio.run(scenario())

    @pytest.mark.parametrize("version", VERSIONS)
    def test_client_certificate_is_sent(self, place: Place, version: ssl.TLSVersion) -> None:
        """The dialler's handshake is over before the alert of a TLS 1.3 server comes."""

        async def scenario() -> None:
            context, server = place.trusting(), place.server()
            context.maximum_version = version
            server.load_verify_locations(place.authority.certificate)
            server.verify_mode = ssl.CERT_REQUIRED
            async with line(context) as made:
                end = TlsEnd(server, made.far, server_side=True)
                with pytest.raises(ssl.SSLError) as refused:
                    await end.run(end.tls.do_handshake)
                assert refused.value.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
                made.far.close()
                error: BaseException | None
                if version is ssl.TLSVersion.TLSv1_2:
                    with pytest.raises(ssl.SSLError) as raised:
                        await made.dialing
                    error = raised.value
                    assert "HANDSHAKE_FAILURE" in str(error)
                else:
                    await made.dialing
                    await until(lambda: "lost" in made.heard.told)
                    error = made.heard.error
                    assert "CERTIFICATE_REQUIRED" in str(error)

        asyncio.run(scenario())


class TestNoTls:
    @running
    async def test_server_may_abort_in_the_handshake(self, place: Place) -> None:
        async with line(place.trusting()) as made:
            made.far.close()
            with pytest.raises((NoTlsError, ConnectionResetError)):
                await made.dialing

    @running
    async def test_server_may_close_in_the_handshake(self, place: Place) -> None:
        async with line(place.trusting()) as made:
            made.far.shutdown(socket.SHUT_WR)
            with pytest.raises(NoTlsError):
                await made.dialing

    @running
    async def test_server_without_tls_is_reported(self, place: Place) -> None:
        async with line(place.trusting()) as made:
            made.far.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(ssl.SSLError) as refused:
                await made.dialing
            assert refused.value.reason == "WRONG_VERSION_NUMBER"

    @running
    async def test_cancelled_dialing_closes(self, place: Place) -> None:
        async with line(place.trusting()) as made:
            loop = asyncio.get_running_loop()
            made.far.setblocking(False)
            assert await loop.sock_recv(made.far, 1), "the beginning of a ClientHello"
            made.dialing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await made.dialing
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.wait_for(loop.sock_recv(made.far, 1 << 16), WAIT_S):
                    pass
            assert not made.heard.told

    @running
    async def test_missing_server_name_raises(self, place: Place) -> None:
        async with line(place.trusting(), "") as made:
            with pytest.raises(ValueError, match="server_hostname"):
                await made.dialing
            made.far.setblocking(False)
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(made.far, 1), WAIT_S) == b""

    @running
    async def test_exception_of_the_protocol_factory_closes(self, place: Place) -> None:
        def make() -> asyncio.Protocol:
            raise ValueError("no room")

        said: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["exception"]))
        for context in (None, place.trusting()):
            near, far = socket.socketpair()
            with near, far, contextlib.ExitStack() as stack:
                stack.enter_context(mock.patch.object(socket.socket, "setsockopt"))
                far.setblocking(False)
                near.setblocking(False)
                taken = socket.socket(fileno=near.detach())
                dialing = asyncio.create_task(transport_over(taken, make, context, "localhost"))
                if context is not None:
                    end = TlsEnd(place.server(), far, server_side=True)
                    with contextlib.suppress(ssl.SSLError, OSError):
                        await end.run(end.tls.do_handshake)
                with pytest.raises(ValueError, match="no room"):
                    await dialing
        assert len(said) == 1, "of the one behind a handshake, which no coroutine ran"


class TestTurns:
    """A dialled peer takes turns like any other."""

    @pytest.fixture
    def keys(self, place: Place, tmp_path: Path) -> KeysOf:
        log = tmp_path / "keys"

        def logged(context: ssl.SSLContext) -> Callable[[], TrafficKeys]:
            context.keylog_filename = str(log)
            return lambda: TrafficKeys(log, "SERVER")

        return logged

    def test_key_updates_are_processed_in_slices(self, place: Place, keys: KeysOf) -> None:
        slices: list[bool] = []
        take_slice = TlsTransport.take_slice

        def noted(transport: TlsTransport) -> bool:
            slices.append(take_slice(transport))
            return slices[-1]

        async def scenario() -> None:
            context = place.trusting()
            keys_of = keys(context)
            async with line(context) as made:
                end = await made.up(place.server())
                made.heard.transport.pause_reading()
                await end.send_raw(keys_of().key_updates(1_000))
                made.heard.transport.resume_reading()
                await until(lambda: slices and not slices[-1])
                assert 1 + len(slices) == 1_000 // RECORDS_AT_ONCE, "the first with the read"
                made.heard.transport.write(b"still there")
                assert await end.read(len(b"still there")) == b"still there"

        with mock.patch.object(tls, "DECRYPT_S", 0.0), mock.patch.object(TlsTransport, "take_slice", noted):
            asyncio.run(scenario())

    def test_peer_that_forces_answers_without_reading_is_disconnected(self, place: Place, keys: KeysOf) -> None:
        """Answers to a peer that does not read are bounded; then the connection ends."""

        async def scenario() -> None:
            context = place.trusting()
            keys_of = keys(context)
            async with line(context, receive_bytes=4_096) as made:
                end = await made.up(place.server())
                with socket_of(made.heard.transport.get_extra_info("descriptor")) as near:
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
                updates, most = keys_of(), 0
                while "lost" not in made.heard.told:
                    with contextlib.suppress(ConnectionError):
                        await end.send_raw(updates.key_updates(100))
                    most = max(most, made.heard.transport.get_write_buffer_size())
                assert isinstance(made.heard.error, ConnectionAbortedError)
                assert most <= OWED_BYTES_MAX

        asyncio.run(scenario())

    def test_undecrypted_bytes_are_reported(self, place: Place) -> None:
        held: list[int] = []

        async def scenario() -> None:
            async with line(place.trusting()) as made:
                end = await made.up(place.server())
                transport = made.heard.transport
                transport.held_by(lambda: held.append(transport.held_bytes))
                transport.pause_reading()
                end.tls.write(bytes(16_000))
                record = end.taken()
                await end.send_raw(record[:10_000])
                transport.resume_reading()
                await until(lambda: held)
                assert held == [10_000], "half a record"
                await end.send_raw(record[10_000:])
                await until(lambda: len(made.heard.data) == 16_000)
                assert held == [10_000, 0]
                for _ in range(2_000):
                    end.tls.write(b"x")
                transport.pause_reading()
                await end.flush()
                transport.resume_reading()
                await until(lambda: len(made.heard.data) == 18_000)
                assert len(held) > 4, "records of a byte each: those that wait for their slice"
                assert max(held) < 1 << 18
                assert transport.held_bytes == 0

        with mock.patch.object(tls, "DECRYPT_S", 0.0):
            asyncio.run(scenario())


class Metered:
    """Implementation of `bridge.transport.driver.MemoryMeter`."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def begun(self, driver: ConnectionDriver) -> None: ...

    def identified(self, driver: ConnectionDriver, user: str) -> bool:
        return True

    def held(self, driver: ConnectionDriver, held_bytes: int) -> None:
        self.seen.append(held_bytes)

    def ended(self, driver: ConnectionDriver) -> None: ...


def test_undecrypted_bytes_are_counted(place: Place) -> None:
    async def scenario() -> None:
        meter = Metered()
        async with line(place.trusting()) as made:
            end = await made.up(place.server())
            told = made.heard.told
            connection = LateConnection()
            driver = ConnectionDriver(
                connection, lambda _: IdleOwner(), write_bytes_max=1, meter=meter, gone=lambda _: told.append("lost")
            )
            made.heard.transport.set_protocol(driver)
            driver.connection_made(made.heard.transport)
            end.tls.write(bytes(16_000))
            record = end.taken()
            await end.send_raw(record[:10_000])
            await until(lambda: meter.seen == [10_000])
            await end.send_raw(record[10_000:])
            await until(lambda: meter.seen[-1] == 0 and connection.received == 16_000)

    asyncio.run(scenario())


def test_lost_connection_is_freed_at_once(place: Place) -> None:
    """A lost connection is freed without the garbage collector, which runs seldom."""

    async def scenario() -> None:
        before = count_of(TcpTransport)
        async with line(place.trusting()) as made:
            await made.up(place.server())
            transport = made.heard.transport
            freed = weakref.ref(transport.get_extra_info("ssl_object"))
            made.far.close()
            await until(lambda: "lost" in made.heard.told)
            del transport, made.heard.transport
            made.dialing = asyncio.get_running_loop().create_future()  # the task holds a reference too
            await asyncio.sleep(0)
            assert freed() is None
            assert count_of(TcpTransport) == before

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
