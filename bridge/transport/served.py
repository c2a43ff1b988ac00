"""What our transports have beyond `asyncio.Transport`: accepted or dialed, with TLS or without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class UnreadError(ConnectionAbortedError):
    """The connection was ended as the peer leaves too much unread."""

    def __init__(self, unread_bytes: int) -> None:
        super().__init__(f"it does not read what it is sent: {unread_bytes} bytes wait")


class ServedTransport(asyncio.Transport):
    """It is received from when its socket has its turn (`bridge.transport.ready`): what it gives is taken at once."""

    __slots__ = ()

    def identified(self) -> None:
        """The peer has said who it is: its socket is served with those of others who have. Idempotent."""
        raise NotImplementedError

    @property
    def unread(self) -> bool:
        """Something of the peer is there that the protocol was not given. Asks the kernel."""
        raise NotImplementedError

    @property
    def hung_up(self) -> bool:
        """The peer sends nothing more: it has closed its end, or the connection is broken. Asks the kernel, as nobody
        is told while nothing is read."""
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        """Received, and not yet given to the protocol."""
        return 0

    def held_by(self, count: Callable[[], None]) -> None:
        """Have it called when `held_bytes` is much more than before, or less."""
