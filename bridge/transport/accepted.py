"""What the transports of accepted connections have beyond `asyncio.Transport`, with TLS or without."""

from __future__ import annotations

import asyncio


class AcceptedTransport(asyncio.Transport):
    """It is received from when its socket has its turn (`bridge.transport.ready`): what it gives is taken at once."""

    __slots__ = ()

    def identified(self) -> None:
        """The peer has said who it is: its socket is served with those of others who have. Idempotent."""
        raise NotImplementedError
