"""Count of bytes that the TCP connections of an event loop have received and sent."""

from __future__ import annotations


class ByteCounter:
    """Counters of one loop. With TLS they count encrypted bytes."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
