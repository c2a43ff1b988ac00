"""What a client has sent that has not been taken apart: packets not complete, and what waits for the next call.

Of nearly every connection that is nothing, and `NOTHING` stands for it: what adds to what waits answers with what
waits then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from edge.broker.mqtt.limits import CHUNK_BYTES

UNREADY: Final = -1
"""See `UnreadPackets.missing`."""


class UnreadPackets:
    """Of one connection."""

    __slots__ = ("_chunks", "_packet_bytes", "parts", "size")

    def __init__(self) -> None:
        self.parts: Sequence[Any] = ()
        """Events of a packet that is taken in parts: what is left of it, which comes before the bytes."""
        self.size = 0
        """Bytes."""
        self._chunks: list[bytes] | None = None
        self._packet_bytes = 0
        """How long the first packet is, once that is known."""

    @property
    def held_bytes(self) -> int:
        """What it costs."""
        return self.size + CHUNK_BYTES * (len(self._chunks or ()) + len(self.parts))

    @property
    def whole(self) -> bool:
        """There may be a complete packet, or a part of one."""
        return self.size >= self._packet_bytes

    @property
    def missing(self) -> int:
        """Bytes that the first packet takes more, one at least where it is not known how long it is; 0: none began, the
        next byte begins one. `UNREADY` where there is more to take of what came."""
        if self.parts:
            return UNREADY
        return max(1, self._packet_bytes - self.size) if self.size else 0

    @property
    def content(self) -> bytes:
        """All bytes, which stay."""
        return b"".join(self._chunks or ())

    def add(self, data: bytes) -> UnreadPackets:
        """Bytes that came."""
        if not data:
            return self
        unread = self._own()
        unread.size += len(data)
        if unread._chunks is None:
            unread._chunks = [data]
        else:
            unread._chunks.append(data)
        return unread

    def take(self) -> bytes:
        """All bytes, to be taken apart; those of a large packet are joined once."""
        if self._chunks is None:
            return b""
        data = b"".join(self._chunks)
        self._chunks, self.size = None, 0
        return data

    def keep(self, data: bytes, packet_bytes: int = 0) -> UnreadPackets:
        """What is left of them. `packet_bytes`: of the packet that begins there, where it is known to be incomplete."""
        if not data and not self.parts:
            return NOTHING
        unread = self._own()
        unread._chunks, unread.size, unread._packet_bytes = [data] if data else None, len(data), packet_bytes
        return unread

    def take_parts(self, parts: Iterator[Any], found: list[Any]) -> UnreadPackets:
        """A packet is taken in parts, the first now."""
        found.append(next(parts))
        others = tuple(parts)
        if not others:
            return self
        unread = self._own()
        unread.parts = others
        return unread

    def next_part(self, found: list[Any], data: bytes) -> UnreadPackets:
        """Another part, there is one, while `data` waits."""
        part, *self.parts = self.parts
        found.append(part)
        return self.keep(data)

    @property
    def waits(self) -> bool:
        """There is something."""
        return self is not NOTHING

    def _own(self) -> UnreadPackets:
        """One that may be altered."""
        return UnreadPackets() if self is NOTHING else self


NOTHING: Final = UnreadPackets()
