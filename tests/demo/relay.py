"""A network that can be cut: a TCP relay between a gateway and the hub.

A cut looks to a gateway like one in the field: connections break at any point of their data, and new ones are refused.
"""

from __future__ import annotations

import asyncio
import contextlib

from tests.support.serving import close

CHUNK_BYTES = 65_536


class Relay:
    """Forwards one loopback port to another."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    @property
    def cut(self) -> bool:
        return self._server is None

    async def open(self) -> None:
        """Listen, also after a cut. Raises OSError when the port is taken."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def close(self) -> None:
        """Cut the network: refuse new connections, and reset every open one. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await close(server)
        passing = list(self._passing)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("connections are accepted in tasks")
        self._passing.add(task)
        try:
            await self._pass(reader, writer)
        except asyncio.CancelledError:
            # Only `close` cancels this task. It ends here, because asyncio's streams would log a cancelled handler.
            pass
        finally:
            writer.transport.abort()
            self._passing.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            return
        try:
            ways = [asyncio.create_task(_copy(reader, hub_writer)), asyncio.create_task(_copy(hub_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            hub_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
