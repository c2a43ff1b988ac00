"""HTTP connections of slow, numerous or greedy clients; and HTTPS with certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edge.broker.configuration import TlsListener
from edge.broker.http.limits import HTTP_BODY_S_MAX, HTTP_HEAD_BYTES_MAX
from edge.broker.http.peer import peer_of
from edge.broker.listeners.tls import Certificates
from edge.broker.listeners.web import connection as module
from edge.broker.listeners.web import server as server_module
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.server import WebServer
from edge.broker.security.limits import VERIFICATION_WAIT_S_MAX
from tests.support.certificates import Authority
from tests.unit.listeners.web.web_client import bound_socket

PATIENCE_S = 20.0
LARGE_PARTS = 1_000
"""More parts than the buffers of two sockets hold."""


async def hello(request: Request) -> Response:
    return JSONResponse({"identity": peer_of(request).identity})


async def large(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(LARGE_PARTS):
            yield bytes(65_536)

    return StreamingResponse(parts())


APP = Starlette(routes=[Route("/", hello, methods=["GET", "POST"]), Route("/large", large)])


def serving(play: Callable[[int], Awaitable[None]], certificates: Certificates | None = None) -> None:
    async def main() -> None:
        sock = bound_socket()
        server = WebServer(APP, [BoundSocket(sock, certificates)])
        if certificates is not None:
            sock.setblocking(False)
            sock.listen()
        await server.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await play(sock.getsockname()[1])
        finally:
            await server.stop()

    asyncio.run(main())


async def told(port: int, *data: bytes) -> bytes:
    """Return all bytes of the server until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in data:
        writer.write(part)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("data", [(), (b"GET / HT",), (HEAD, b"A: b\r\n")], ids=["idle", "line", "fields"])
def test_slow_heads_time_out(data: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HTTP_HEAD_S_MAX", 0.2)

    async def play(port: int) -> None:
        assert (await told(port, *data)).startswith(b"HTTP/1.1 408 ")

    serving(play)


def test_slow_head_behind_a_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HTTP_HEAD_S_MAX", 0.2)

    async def play(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET / HT")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await writer.wait_closed()

    serving(play)


def test_unread_endless_body_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BODY_S", 0.2)

    async def play(port: int) -> None:
        answer = await told(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")
        assert answer.startswith(b"HTTP/1.1 200")  # and it was closed

    serving(play)


def test_body_with_a_delayed_login_is_answered_before_the_end() -> None:
    """The reader of the body answers 408 at its own deadline, which starts after the longest login."""
    assert module._BODY_S > VERIFICATION_WAIT_S_MAX + HTTP_BODY_S_MAX


def test_large_heads_are_refused() -> None:
    async def play(port: int) -> None:
        assert (await told(port, HEAD + b"A: " + bytes(b"a" * HTTP_HEAD_BYTES_MAX))).startswith(b"HTTP/1.1 400")
        fits = HEAD + b"Connection: close\r\nA: " + b"a" * (HTTP_HEAD_BYTES_MAX - 200) + b"\r\n\r\n"
        assert (await told(port, fits)).startswith(b"HTTP/1.1 200")

    serving(play)


def test_longest_waiting_connection_is_closed_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HTTP_STRANGERS_OF_ONE_MAX", 2)

    async def play(port: int) -> None:
        first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        first[1].write(b"GET / HT")
        second[1].write(b"GET / HT")
        assert (await told(port, HEAD + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await first[0].read())[:12] in (b"HTTP/1.1 408", b"")
        second[1].write(b"TP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await second[0].read()).startswith(b"HTTP/1.1 200")
        for _, writer in (first, second):
            writer.close()
            await writer.wait_closed()

    serving(play)


def test_error_behind_an_answer_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The body of an answered request turns out to be malformed."""

    async def play(port: int) -> None:
        post = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"zz\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() in (b"", b"\r\n0\r\n\r\n")
        writer.close()

    serving(play)
    assert not [record for record in caplog.records if record.exc_info]


def test_unread_answers_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HTTP_WRITE_S_MAX", 0.2)

    async def play(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(1.0)  # the test is about the server's clock
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        read = 0
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(65_536):  # bytes of the buffers, and nothing else
                read += len(data)
        assert read < LARGE_PARTS * 65_536
        writer.close()

    serving(play)


def test_https_certificates_may_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second, device = authority.issue("first"), authority.issue("second"), authority.issue("device-1")
    files = TlsListener(certificate=first.certificate, key=first.key, client_ca=authority.certificate)
    certificates = Certificates(files)

    async def ask(port: int, context: ssl.SSLContext) -> tuple[bytes, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        presented = dict(pair[0] for pair in writer.get_extra_info("peercert")["subject"])["commonName"]
        writer.write(HEAD + b"Connection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.partition(b"\r\n\r\n")[2], presented

    async def play(port: int) -> None:
        assert await ask(port, authority.context()) == (b'{"identity":null}', "first")
        assert await ask(port, authority.context(device)) == (b'{"identity":"device-1"}', "first")
        shutil.copy(second.certificate, first.certificate)
        shutil.copy(second.key, first.key)
        assert certificates.check()
        assert (await ask(port, authority.context()))[1] == "second"
        assert b"HTTP/1.1" not in await told(port, HEAD + b"\r\n")  # no answer without TLS

    serving(play, certificates)
