"""Independent HTTP server: records every request, and answers as the test configures."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from tests.support.serving import serving


class Request(NamedTuple):
    """A received request."""

    line: str
    headers: dict[str, str]
    """Header fields by lower-case name."""
    body: bytes


class Reply(NamedTuple):
    """Answer to a request; `hang_up` closes the connection instead."""

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    hang_up: bool = False


class WebPeer:
    """Answers each request by `answer`, in order."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self.requests: list[Request] = []
        self.port = 0
        self._answer = answer

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[WebPeer]:
        async with serving(self._serve, port=port, tls=tls) as self.port:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while await self._exchange(reader, writer):
                pass

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
