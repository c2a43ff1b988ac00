"""HTTP proxy as in plants: CONNECT to some ports only, with a name and a password."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Collection
from typing import Final

from tests.support.cut_link import CutLink

READ_S: Final = 10.0
"""Seconds that a client has to read why it is refused."""


class HttpProxy(CutLink):
    """Link to the requested destination, which can be cut like any other."""

    def __init__(self, allowed: Collection[int], credentials: str | None = None) -> None:
        """`allowed`: ports of this machine; `credentials`: ``name:password`` of its user."""
        super().__init__(0)
        self.asked: list[str] = []
        """Request lines, in order."""
        self.refused: list[int] = []
        """Statuses of refused requests."""
        self._allowed = allowed
        self._wanted = None if credentials is None else base64.b64encode(credentials.encode()).decode()

    async def _reach(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *fields = head.split("\r\n")
        self.asked.append(line)
        method, target, _ = line.split(" ")
        port = int(target.rpartition(":")[2])
        if self._wanted is not None and f"Proxy-Authorization: Basic {self._wanted}" not in fields:
            await self._refuse(reader, writer, 407, "Proxy Authentication Required")
        if method != "CONNECT" or port not in self._allowed:
            await self._refuse(reader, writer, 403, "Forbidden")
        far = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\nProxy-Agent: test\r\n\r\n")
        return far

    async def _refuse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int, phrase: str
    ) -> None:
        """Refuse a request. Raises OSError once the client has read the answer."""
        self.refused.append(status)
        challenge = 'Proxy-Authenticate: Basic realm="plant"\r\n' if status == 407 else ""
        writer.write(f"HTTP/1.1 {status} {phrase}\r\n{challenge}Content-Length: 0\r\n\r\n".encode())
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await reader.read()
        raise OSError(phrase)
