"""Base of our transports, accepted or dialed, with TLS or without: `asyncio.Transport` with more methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class UnreadError(ConnectionAbortedError):
    """The connection was ended because the peer leaves too much unread."""

    def __init__(self, unread_bytes: int) -> None:
        super().__init__(f"it does not read its data: {unread_bytes} bytes wait")


class ServedTransport(asyncio.Transport):
    """Transport that reads when its socket has its turn (`bridge.transport.ready`); its bytes are handled at once."""

    __slots__ = ()

    def identified(self) -> None:
        """Serve the socket with those of authenticated peers from now on. Idempotent."""
        raise NotImplementedError

    @property
    def unread(self) -> bool:
        """True when there are bytes that the protocol was not given. Makes a system call."""
        raise NotImplementedError

    @property
    def hung_up(self) -> bool:
        """True when the peer has closed its end or the connection is broken. Makes a system call, as there is no event
        while reading is paused."""
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet given to the protocol."""
        return 0

    def held_by(self, count: Callable[[], None]) -> None:
        """Register a callback for significant changes of `held_bytes`."""
