"""An HTTP server of somebody else's: keeps every request, and answers as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple


class Request(NamedTuple):
    """What arrived."""

    line: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes


class Reply(NamedTuple):
    """What is answered; `hang_up` instead of anything."""

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    hang_up: bool = False


class WebPeer:
    """Answers each request by `answer`, in the order they come."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self.requests: list[Request] = []
        self.port = 0
        self._answer = answer
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[WebPeer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await server.wait_closed()
            async with asyncio.timeout(10):
                while self._writers:  # every exchange has ended
                    await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(head[0], headers, body)
        self.requests.append(request)
        reply = self._answer(request)
        if reply.hang_up:
            return False
        lines = [f"HTTP/1.1 {reply.status} X", f"Content-Length: {len(reply.body)}"]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)
        await writer.drain()
        return True
