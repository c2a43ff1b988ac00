"""MQTT over WebSocket (MQTT 5 section 6) for a client of coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bridge.client_attempt import ConnectorError
from bridge.connecting import Streams
from bridge.connectors.limits import READ_BYTES
from bridge.transport.websocket import MQTT, WebSocketClient


class WebSocketStream:
    """A WebSocket over the streams of one connection; `open` comes first."""

    def __init__(self, streams: Streams, host: str, path: str) -> None:
        """`host`: value of the header Host. `path` may have a query, which is not logged."""
        self._reader, self._writer = streams
        self._inner = _Buffer()
        self._frames = WebSocketClient(self._inner, MQTT[0], host=host, path=path)
        self._loop = asyncio.get_running_loop()

    @property
    def transport(self) -> asyncio.WriteTransport:
        """Transport of the connection."""
        return self._writer.transport

    async def open(self, hint: str = "") -> None:
        """Shake hands. Raises ConnectorError with the peer's refusal and `hint`, the next step for an operator."""
        self._flush()
        while not self._frames.opened:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise ConnectorError("the peer closed the connection in the WebSocket handshake")
            self._frames.receive_data(data, self._loop.time())
            if self._frames.refused:
                raise ConnectorError(self._frames.refused + (f"; {hint}" if hint else ""))
            self._flush()

    async def read(self, count: int = READ_BYTES, /) -> bytes:
        """Return the next bytes of MQTT; empty at the end."""
        while not self._inner.received:
            data = b""
            if self._frames.closed:
                return b""
            if self._frames.more:
                await asyncio.sleep(0)  # one call parses a slice of the frames
            else:
                data = await self._reader.read(count)
                if not data:
                    return b""
            self._frames.receive_data(data, self._loop.time())
            self._flush()
        received, self._inner.received = b"".join(self._inner.received), []
        return received

    def write(self, data: bytes, /) -> None:
        """Send bytes of MQTT."""
        self._inner.unsent.append(data)
        self._flush()

    async def drain(self) -> None:
        """Wait until the transport has room."""
        await self._writer.drain()

    def close(self) -> None:
        """Send a close frame and close the connection."""
        self._inner.closed = True
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        output = self._frames.data_to_send()
        if output and not self._writer.transport.is_closing():
            self._writer.write(output)


class _Buffer:
    """`bridge.transport.connection.ConnectionMachine` that keeps the bytes of both directions."""

    deadline: float | None = None
    held_bytes = 0
    has_output = True
    more = False
    spoken = ""

    def __init__(self) -> None:
        self.closed = False
        self.received: list[bytes] = []
        self.unsent: list[bytes] = []

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        if data:
            self.received.append(data)
        return ()

    def receive_eof(self, now: float) -> Sequence[Any]:
        return ()

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        return ()

    def shed(self) -> Sequence[Any]:
        return ()

    def data_to_send(self) -> bytes:
        unsent, self.unsent = self.unsent, []
        return b"".join(unsent)
