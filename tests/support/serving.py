"""TCP server of a test that closes with all of its connections.

`asyncio.Server.close` only stops listening. Asyncio leaves a connection open if its handler was cancelled, or if it was
accepted in the turn of the loop that closed the server. The garbage collector then finds it during another test, which
fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection, which closes when it returns."""


class _Connection(asyncio.StreamReaderProtocol):
    """Tracks its end from the moment it is accepted."""

    def __init__(self, answered: Answer) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self.transport: asyncio.BaseTransport | None = None
        self.ending = False
        self.task: asyncio.Task[None] | None = None
        self._answered = answered
        super().__init__(asyncio.StreamReader(), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.task = asyncio.current_task()
        try:
            # The end of the server cancels it; asyncio's streams would log that.
            with contextlib.suppress(asyncio.CancelledError):
                await self._answered(reader, writer)
        finally:
            writer.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.ending:
            self.end()
        else:
            super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set_result(None)

    def end(self) -> None:
        """Abort the connection and cancel its handler."""
        self.ending = True
        if self.task is not None:
            self.task.cancel()
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()


@contextlib.asynccontextmanager
async def serving(answer: Answer, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Listen on a port of this machine and yield its number (0: any). Afterwards everything is closed.

    Raises OSError when the port is taken.
    """
    accepted: list[_Connection] = []

    def accept() -> _Connection:
        accepted.append(_Connection(answer))
        return accepted[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", port, ssl=tls)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        await close(server)
        for connection in accepted:
            connection.end()
        there = [connection for connection in accepted if connection.transport is not None]
        async with asyncio.timeout(10):
            await asyncio.gather(*(connection.lost for connection in there))
            await asyncio.gather(*(connection.task for connection in there if connection.task), return_exceptions=True)


async def close(server: asyncio.Server) -> None:
    """Stop listening, after `connection_made` of every accepted connection.

    Connections stay open. `Server.wait_closed` would wait for all of them from Python 3.12 on.
    """
    for listening in server.sockets:
        server.get_loop().remove_reader(listening.fileno())
    for _ in range(3):  # accepted, given a transport, `connection_made`
        await asyncio.sleep(0)
    server.close()
