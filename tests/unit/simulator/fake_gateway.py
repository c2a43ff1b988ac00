"""MQTT 3.1.1 peer that records what devices do, refuses logins, and breaks connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from simulator.links import LinkPlace
from tests.support.serving import serving


class FakeGateway:
    """Acknowledges readings, but for those that break their connection."""

    def __init__(self, *, break_after: list[int] | None = None, code: int = 0, silent: bool = False) -> None:
        """`break_after`: readings of each connection before its end; `code`: of CONNACK; `silent`: without PUBACK."""
        self._break_after = iter(break_after or [])
        self._code = code
        self._silent = silent
        self.connects = 0
        self.published: list[tuple[str, dict[str, Any]]] = []
        """Topic and document of each PUBLISH."""
        self.command: bytes | None = None
        """Command for a device that subscribes."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[LinkPlace]:
        async with serving(self._serve) as port:
            yield LinkPlace("127.0.0.1", port)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of readings."""
        return (document["seq"] for _, document in self.published if "seq" in document)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = next(self._break_after, None)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, body = await _packet(reader)
                match first >> 4:
                    case 1:
                        self.connects += 1
                        writer.write(bytes((0x20, 2, 0, self._code)))
                    case 3:
                        end = 2 + int.from_bytes(body[:2])
                        self.published.append((body[2:end].decode(), json.loads(body[end + 2 :])))
                        if left == 0:
                            break
                        left = None if left is None else left - 1
                        if not self._silent:
                            writer.write(b"\x40\x02" + body[end : end + 2])
                    case 8:
                        writer.write(b"\x90\x03" + body[:2] + b"\x01")
                        if self.command is not None:
                            content = b"\x00\x03c/x\x00\x07" + self.command
                            writer.write(bytes((0x32, len(content))) + content)
                    case 12:
                        writer.write(b"\xd0\x00")
                    case 14:
                        return
        writer.transport.abort()


async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first = (await reader.readexactly(1))[0]
    length = shift = 0
    while True:
        digit = (await reader.readexactly(1))[0]
        length |= (digit & 0x7F) << shift
        shift += 7
        if not digit & 0x80:
            return first, await reader.readexactly(length)
