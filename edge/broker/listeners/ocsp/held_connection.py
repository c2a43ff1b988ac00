"""Protocol of a connection while its client certificate is asked about: it keeps the first bytes, and stops reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from bridge.transport.tls import TlsTransport
from edge.broker.listeners.ocsp.limits import HELD_BYTES_MAX


class HeldConnection(asyncio.Protocol):
    """Protocol of a connection until the answer about its certificate has arrived."""

    def __init__(self) -> None:
        self._transport: TlsTransport | None = None
        self._received = b""
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(TlsTransport, transport)
        self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > HELD_BYTES_MAX and self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        self._ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._received = None, b""

    def refuse(self) -> None:
        """Close the connection, unless the client has left."""
        if self._transport is not None:
            self._transport.close()

    def release(self, make: Callable[[TlsTransport], asyncio.Protocol | None]) -> None:
        """Let the protocol that `make` returns take over, with the data received until now. None: close the
        connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        owner = make(transport)
        if owner is None:
            transport.close()
            return
        received, self._received = self._received, b""
        transport.resume_reading()  # before the protocol runs, which may pause it again
        transport.set_protocol(owner)
        owner.connection_made(transport)
        if received and not transport.is_closing():
            owner.data_received(received)
        if self._ended and not transport.is_closing():
            owner.eof_received()
            transport.close()
