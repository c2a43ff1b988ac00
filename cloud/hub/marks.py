"""Rows of the registry's table `marks`: what has landed of one stream, with a checksum over all of it.

A row is what decides whether a message is a duplicate, so one flipped bit in it would lose messages, or keep a gateway
from sending. A row that is not what was written is found here, and nothing of it is believed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cloud.lake.sequences import SequenceSet, Stream

SEQUENCE_MAX = (1 << 63) - 1


class MarkDamaged(Exception):
    """The row is not what was written; the message says how that shows."""


@dataclass(slots=True)
class GatewayMarks:
    """The rows of one gateway."""

    landed: dict[Stream, SequenceSet] = field(default_factory=dict)
    damage: dict[Stream, str] = field(default_factory=dict)
    """Rows that are damaged, by what they say they are about, which may be damaged as well: so while there are any, a
    stream without a row may be the one."""

    def why_unknown(self, stream: Stream) -> str | None:
        """Why nobody can say what has landed of a stream; None when it can be said."""
        if stream in self.landed or not self.damage:
            return None
        return self.damage.get(stream) or "another row of the gateway is damaged, and may be this one"


def pack(stream: Stream, landed: SequenceSet) -> dict[str, Any]:
    """The columns `mark`, `spans` and `checksum`."""
    spans = msgspec.msgpack.encode(landed.spans)
    return {"mark": landed.mark, "spans": spans, "checksum": _checksum(stream, landed.mark, spans)}


def unpack(stream: Stream, mark: Any, spans: Any, checksum: Any) -> SequenceSet:
    """The set of a row. Raises `MarkDamaged`. A row of before there were checksums is looked at as far as can be."""
    try:
        found = msgspec.msgpack.decode(spans, type=list[tuple[int, int]])
    except (msgspec.DecodeError, TypeError) as error:
        raise MarkDamaged(f"its ranges cannot be read: {error}") from error
    if checksum is not None and checksum != _checksum(stream, mark, spans):
        raise MarkDamaged("its checksum does not match")
    following = 0
    for first, last in found:
        if not following <= first <= last <= SEQUENCE_MAX:
            raise MarkDamaged("its ranges are out of order")
        following = last + 2  # ranges that touch are one range
    landed = SequenceSet(found)
    if landed.mark != mark:
        raise MarkDamaged(f"its mark is {mark!r} and its ranges end at {landed.mark}")
    return landed


def _checksum(stream: Stream, mark: Any, spans: bytes) -> int:
    names = "\0".join(map(str, (*stream, mark))).encode("utf-8", "surrogateescape")
    return zlib.crc32(spans, zlib.crc32(names))
