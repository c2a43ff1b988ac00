"""Byte count of several logs."""

from __future__ import annotations


class ByteMeter:
    """Committed bytes of bodies of the logs that use this meter (`contract.Retention.meter`)."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0
