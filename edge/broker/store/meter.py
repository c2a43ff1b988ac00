"""What some logs keep together, added up as it changes."""

from __future__ import annotations


class ByteMeter:
    """Bytes of bodies of the logs that have it (`contract.Retention.meter`), as committed."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0
