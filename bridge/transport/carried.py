"""Bytes that the TCP connections of a loop have carried since it began, as they were received and sent."""

from __future__ import annotations


class CarriedBytes:
    """The count of one loop. With TLS it counts what is encrypted."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
