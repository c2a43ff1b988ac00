"""Connections of the HTTP library on the product's own transports (`bridge.connectors.http.network`)."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import httpcore
import pytest

from bridge.connectors.http.network import HttpNetwork, HttpStream
from bridge.transport.served import ServedTransport
from bridge.transport.tls import TlsTransport
from tests.support.certificates import Authority
from tests.support.feeding import running
from tests.support.processes import free_port
from tests.support.serving import serving


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
        if data == b"leave":
            break
    writer.close()


def transport_of(stream: httpcore.AsyncNetworkStream) -> object:
    assert isinstance(stream, HttpStream)
    return stream._writer.transport


class TestWithoutTls:
    @running
    async def test_bytes_pass_over_the_transport_of_the_product(self) -> None:
        async with serving(echo) as port:
            stream = await HttpNetwork(secure=False).connect_tcp("127.0.0.1", port, timeout=20)
            assert isinstance(transport_of(stream), ServedTransport)
            await stream.write(b"there", timeout=20)
            assert await stream.read(100, timeout=20) == b"there"
            assert not stream.get_extra_info("is_readable"), "it may be used again"
            await stream.write(b"leave", timeout=20)
            assert await stream.read(3, timeout=20) == b"lea"
            assert stream.get_extra_info("is_readable"), "there is what nobody asked for"
            assert await stream.read(3, timeout=20) == b"ve"
            assert await stream.read(3, timeout=20) == b""
            assert stream.get_extra_info("is_readable"), "it is over"
            await stream.aclose()

    @running
    async def test_failures_become_errors_of_httpcore(self) -> None:
        with pytest.raises(httpcore.ConnectError):
            await HttpNetwork(secure=False).connect_tcp("127.0.0.1", free_port(), timeout=20)
        async with serving(echo) as port:
            stream = await HttpNetwork(secure=False).connect_tcp("127.0.0.1", port, timeout=20)
            with pytest.raises(httpcore.ReadTimeout):
                await stream.read(1, timeout=0.01)
            await stream.aclose()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
class TestTls:
    @running
    async def test_tls_starts_over_the_socket(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        issued = authority.issue("server")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(issued.certificate, issued.key)
        async with serving(echo, tls=server) as port:
            opened = await HttpNetwork(secure=True).connect_tcp("127.0.0.1", port, timeout=20)
            stream = await opened.start_tls(authority.context(), "localhost", timeout=20)
            assert isinstance(transport_of(stream), TlsTransport)
            await stream.write(b"there", timeout=20)
            assert await stream.read(100, timeout=20) == b"there"
            await stream.aclose()
            opened = await HttpNetwork(secure=True).connect_tcp("127.0.0.1", port, timeout=20)
            with pytest.raises(httpcore.ConnectError, match="elsewhere"):
                await opened.start_tls(authority.context(), "elsewhere.example", timeout=20)
            opened = await HttpNetwork(secure=True).connect_tcp("127.0.0.1", port, timeout=20)
            await opened.aclose()
