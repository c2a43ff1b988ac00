"""Bytes of a client that are not parsed yet: incomplete packets, and packets that wait for the next call.

Nearly all connections have none and share the immutable object `NOTHING`. So methods that add bytes return the object
to use from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from edge.broker.mqtt.limits import CHUNK_BYTES

UNREADY: Final = -1
"""See `UnreadPackets.missing`."""


class UnreadPackets:
    """Unparsed bytes of one connection."""

    __slots__ = ("_chunks", "_packet_bytes", "parts", "size")

    def __init__(self) -> None:
        self.parts: Sequence[Any] = ()
        """Remaining events of a packet that is processed in parts; they come before the bytes."""
        self.size = 0
        """Number of unparsed bytes."""
        self._chunks: list[bytes] | None = None
        self._packet_bytes = 0
        """Length of the first packet, once known."""

    @property
    def held_bytes(self) -> int:
        """Memory in use."""
        return self.size + CHUNK_BYTES * (len(self._chunks or ()) + len(self.parts))

    @property
    def whole(self) -> bool:
        """True if there may be a complete packet."""
        return self.size >= self._packet_bytes

    @property
    def missing(self) -> int:
        """Bytes that the first packet lacks: at least 1 while its length is unknown, 0 if no packet has started.

        `UNREADY` while events of a packet in parts remain.
        """
        if self.parts:
            return UNREADY
        return max(1, self._packet_bytes - self.size) if self.size else 0

    @property
    def content(self) -> bytes:
        """All unparsed bytes."""
        return b"".join(self._chunks or ())

    def add(self, data: bytes) -> UnreadPackets:
        """Add received bytes."""
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
        """Remove and return all bytes, to be parsed. The chunks of a large packet are joined once."""
        if self._chunks is None:
            return b""
        data = b"".join(self._chunks)
        self._chunks, self.size = None, 0
        return data

    def keep(self, data: bytes, packet_bytes: int = 0) -> UnreadPackets:
        """Keep the rest after parsing. `packet_bytes`: length of its first packet if it is incomplete, else 0."""
        if not data and not self.parts:
            return NOTHING
        unread = self._own()
        unread._chunks, unread.size, unread._packet_bytes = [data] if data else None, len(data), packet_bytes
        return unread

    def take_parts(self, parts: Iterator[Any], found: list[Any]) -> UnreadPackets:
        """Process a packet in parts: append the first event to `found` and keep the others."""
        found.append(next(parts))
        others = tuple(parts)
        if not others:
            return self
        unread = self._own()
        unread.parts = others
        return unread

    def next_part(self, found: list[Any], data: bytes) -> UnreadPackets:
        """Append the next event to `found` and keep `data`."""
        part, *self.parts = self.parts
        found.append(part)
        return self.keep(data)

    @property
    def waits(self) -> bool:
        """True unless empty."""
        return self is not NOTHING

    def _own(self) -> UnreadPackets:
        """Return an object that may be changed."""
        return UnreadPackets() if self is NOTHING else self


NOTHING: Final = UnreadPackets()
