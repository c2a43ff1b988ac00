"""OpenSSL end of a connection, and a protocol that records its calls."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from bridge.transport.tls import RECORD_BYTES, TlsTransport

WAIT_S = 20.0


VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


SIZES = (1, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 300_000)


class RecordingProtocol(asyncio.Protocol):
    """Protocol that records its calls."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.reads = 0
        self.told: list[str] = []
        self.error: Exception | None = None
        self.transport: TlsTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.reads += 1

    def eof_received(self) -> bool:
        self.told.append("end")
        return False

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.error = exc


class TlsEnd:
    """OpenSSL's end of a connection, with access to its bytes."""

    def __init__(self, context: ssl.SSLContext, connection: socket.socket, *, server_side: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = connection
        connection.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        host = None if server_side else "localhost"
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side, host)

    async def run(self, step: Callable[[], Any]) -> Any:
        """Run the step to its end and send its output; return its result."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await self.flush()
                data = await asyncio.wait_for(self._loop.sock_recv(self.socket, 1 << 16), WAIT_S)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            finally:
                await self.flush()

    async def flush(self) -> None:
        await self.send_raw(self.taken())

    def taken(self) -> bytes:
        """Return the bytes to send."""
        return self._outgoing.read()

    async def send_raw(self, data: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(self.socket, data), WAIT_S)

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), RECORD_BYTES):
            self.tls.write(data[start : start + RECORD_BYTES])
        await self.flush()

    async def read(self, count: int) -> bytes:
        """Return `count` bytes, or all until the close_notify. Raise `ssl.SSLEOFError` without a close_notify."""
        found = bytearray()
        while len(found) < count:
            some = await self.run(lambda: self.tls.read(1 << 16))
            if not some:
                break
            found += some
        return bytes(found)
