"""What a client has sent that has not been taken apart: packets not complete, and what waits for the next call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edge.broker.mqtt.limits import CHUNK_BYTES


class Unread:
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

    def add(self, data: bytes) -> None:
        """Bytes that came."""
        if data:
            self.size += len(data)
            if self._chunks is None:
                self._chunks = [data]
            else:
                self._chunks.append(data)

    def take(self) -> bytes:
        """All bytes, to be taken apart; those of a large packet are joined once."""
        data = b"".join(self._chunks or ())
        self._chunks, self.size = None, 0
        return data

    def keep(self, data: bytes, packet_bytes: int = 0) -> None:
        """What is left of them. `packet_bytes`: of the packet that begins there, where it is known to be incomplete."""
        self._chunks, self.size, self._packet_bytes = [data] if data else None, len(data), packet_bytes

    def take_parts(self, parts: Iterator[Any], found: list[Any]) -> None:
        """A packet is taken in parts, the first now."""
        found.append(next(parts))
        self.parts = tuple(parts)

    def next_part(self, found: list[Any], data: bytes) -> bool:
        """Another part, there is one, while `data` waits; False when nothing does after it."""
        part, *self.parts = self.parts
        found.append(part)
        self.keep(data)
        return bool(self.parts or data)

    def drop(self) -> None:
        """The connection has ended."""
        self.parts, self._chunks, self.size = (), None, 0
