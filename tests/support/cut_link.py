"""Link that can be cut at any point: a TCP proxy in user space, in its own thread.

The kind of cut is configurable: immediately, or after a number of further bytes (within a batch, or a TLS handshake). A
half-open cut notifies only one end. While the link is down, all new connections fail. While it is held, nothing passes
and no end is notified, as behind a network that drops packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, Self

from tests.support.serving import close

CHUNK_BYTES: Final = 16_384
_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing resets the connection."""


class End(enum.Enum):
    """An end of a connection through the link."""

    NEAR = "near"
    """The connecting end."""
    FAR = "far"


class CutLink:
    """Forwards connections from its own `port` to another port of this machine; a context manager."""

    def __init__(self, target_port: int) -> None:
        self.connections = 0
        """Accepted connections so far."""
        self.cuts = 0
        """Connections that were cut."""
        self._target_port = target_port
        self._down = False
        self._flows = asyncio.Event()
        """Cleared while the link is held."""
        self._flows.set()
        self._short: list[int] = []
        """Byte limits of the next connections."""
        self._passages: dict[_Passage, None] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._server: asyncio.Server

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # --- cuts, from any thread ----------------------------------------------------------------------------------

    def cut(self, *, reset: bool = True) -> None:
        """Break current connections with a reset, or with an end of the stream, as a closing proxy does."""
        self._each(lambda passage: passage.cut(reset=reset))

    def cut_after(self, up_bytes: int) -> None:
        """Break current connections after this many further bytes upwards, in the middle of any message."""
        self._each(lambda passage: passage.limit(up_bytes))

    def cut_next(self, after_bytes: list[int]) -> None:
        """Break the next connections, each after this many bytes in both directions."""
        self._loop.call_soon_threadsafe(self._short.extend, after_bytes)

    def half_open(self, told: End) -> None:
        """Break current connections, but notify only one end."""
        self._each(lambda passage: passage.half(told))

    def end_half_open(self) -> None:
        """Notify the other ends as well."""
        self._each(lambda passage: passage.cut(reset=True), silent=True)

    def down(self, down: bool) -> None:
        """Break current connections and refuse new ones while the link is down."""
        self._down = down
        if down:
            self.cut()

    def hold(self, hold: bool) -> None:
        """Pass nothing while the link is held: connections stay, and new ones wait for their first answer."""
        self._loop.call_soon_threadsafe(self._flows.clear if hold else self._flows.set)

    def lead_to(self, port: int) -> None:
        """Break current connections, and lead new ones to another port."""
        self._target_port = port
        self.cut()

    # --- inside -------------------------------------------------------------------------------------------------

    def _each(self, act: Callable[[_Passage], None], *, silent: bool = False) -> None:
        def there() -> None:
            for passage in [each for each in self._passages if each.silent is silent]:
                self.cuts += not silent
                act(passage)

        self._loop.call_soon_threadsafe(there)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._pass(reader, writer)
        finally:
            writer.transport.abort()  # also if the link was closed during the connection to the other end

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._down:
                raise ConnectionRefusedError
            await self._flows.wait()
            far = await self._reach(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            _reset(writer)
            return
        passage = _Passage((reader, writer), far, self._short.pop(0) if self._short else None, self._flows)
        self._passages[passage] = None
        try:
            await passage.pass_on()
        finally:
            del self._passages[passage]

    async def _reach(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the other end of a new connection. Raises OSError when this fails."""
        return await asyncio.open_connection("127.0.0.1", self._target_port)

    async def _close(self) -> None:
        await close(self._server)
        for passage in list(self._passages):
            passage.cut(reset=True)
        self._flows.set()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Passage:
    """One connection through the link."""

    def __init__(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        limit: int | None,
        flows: asyncio.Event,
    ) -> None:
        """`limit`: bytes of both directions after which it is cut; `flows`: cleared while nothing passes."""
        self.silent = False
        """One end was notified, and the other was not."""
        self._near, self._far = near, far
        self._left = limit
        self._flows = flows
        self._up_left: int | None = None
        self._over = asyncio.get_running_loop().create_future()

    async def pass_on(self) -> None:
        """Forward until both ends have closed, or the connection is cut."""
        ways = [
            asyncio.ensure_future(self._way(self._near[0], self._far[1], up=True)),
            asyncio.ensure_future(self._way(self._far[0], self._near[1], up=False)),
        ]
        ended = asyncio.gather(*ways, return_exceptions=True)
        try:
            await asyncio.wait((self._over, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for _, writer in (self._near, self._far):
                writer.transport.abort()

    def limit(self, up_bytes: int) -> None:
        self._up_left = up_bytes

    def cut(self, *, reset: bool) -> None:
        for _, writer in (self._near, self._far):
            if reset:
                _reset(writer)
            else:
                writer.close()
        if not self._over.done():
            self._over.set_result(None)

    def half(self, told: End) -> None:
        self.silent = True
        _reset((self._near if told is End.NEAR else self._far)[1])

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(OSError):
            while (data := await reader.read(CHUNK_BYTES)) and not self.silent:
                await self._flows.wait()
                writer.write(self._allowed(data, up=up))
                await writer.drain()
                if 0 in (self._left, self._up_left):
                    self.cut(reset=True)
            if not self.silent:
                writer.write_eof()
                return
        if self.silent:
            await self._over
        self.cut(reset=True)

    def _allowed(self, data: bytes, *, up: bool) -> bytes:
        """Return the part of the data that passes before the cut."""
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if up and self._up_left is not None:
            data = data[: self._up_left]
            self._up_left -= len(data)
        return data


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # already closed
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
