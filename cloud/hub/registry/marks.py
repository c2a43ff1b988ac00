"""Marks: what has landed of each stream, a row each with a checksum over all of it.

A row is what decides whether a message is a duplicate, so one flipped bit in it would lose messages, or keep a gateway
from sending. A row that is not what was written is found here, and nothing of it is believed.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.database import Database, execute_many
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.schema import marks
from cloud.lake.limits import HOLES_MAX
from cloud.lake.sequences import SequenceRange, SequenceSet, Stream

log = logging.getLogger(__name__)

SEQUENCE_MAX = (1 << 63) - 1
NO_CHECKSUM = -1
"""No row has this one of itself: it is not to be believed, as the registry was an older copy."""


class MarkDamaged(Exception):
    """The row is not what was written; the message says how that shows."""


@dataclass(slots=True)
class GatewayMarks:
    """The rows of one gateway."""

    landed: dict[Stream, SequenceSet] = field(default_factory=dict)
    damage: dict[Stream, str] = field(default_factory=dict)
    """Rows that are not to be believed, by what they say they are about, which may be damaged as well: so while there
    are any, a stream without a row may be the one."""

    def why_unknown(self, stream: Stream) -> str | None:
        """Why nobody can say what has landed of a stream; None when it can be said."""
        if stream in self.landed or not self.damage:
            return None
        return self.damage.get(stream) or next(iter(self.damage.values()))


class _Loaded(NamedTuple):
    generation: int | None
    marks: GatewayMarks


class Marks:
    """For the registry's thread. The rows of each gateway are kept from its connection on: while it is connected here,
    no other hub changes them."""

    def __init__(self, database: Database, generations: Generations) -> None:
        self._generations = generations
        self._loaded: dict[Key, _Loaded] = {}
        database.rolled_back.append(self._loaded.clear)

    def known(self, key: Key) -> GatewayMarks | None:
        """The rows of a gateway, as they are kept; None: they have to be loaded."""
        loaded = self._loaded.get(key)
        if loaded is None or loaded.generation != self._generations.of(key):
            return None
        return loaded.marks

    def keep(self, key: Key, found: GatewayMarks) -> GatewayMarks:
        """These are the rows of a gateway."""
        self._loaded[key] = _Loaded(self._generations.of(key), found)
        return found

    def load(self, tx: sa.Connection, key: Key) -> GatewayMarks:
        """The rows of a gateway, as they are kept or from the database."""
        found = self.known(key)
        return found if found is not None else self.keep(key, _read(tx, key))

    def add(self, tx: sa.Connection, ranges: Sequence[SequenceRange]) -> dict[Stream, SequenceSet]:
        """Write that these have landed; returns what is to be remembered after the commit."""
        changed: dict[Stream, SequenceSet] = {}
        new: set[Stream] = set()
        for key, of_gateway in groupby(ranges, key=_gateway_of):
            known = self.load(tx, key)
            for moved in of_gateway:
                stream = moved.stream
                landed = changed.get(stream)
                if landed is None:
                    if known.why_unknown(stream) is not None:
                        continue  # it is in the lake, from which the row is made again
                    before = known.landed.get(stream)
                    if before is None:
                        new.add(stream)
                    landed = changed[stream] = SequenceSet() if before is None else before.copy()
                landed.add(moved.first, moved.last, HOLES_MAX)
        inserts = [_row(stream, changed[stream]) for stream in new]
        updates = [_row(stream, changed[stream], _AT) for stream in changed if stream not in new]
        if inserts:
            tx.execute(marks.insert(), inserts)
        if updates:
            execute_many(tx, _UPDATE, updates)
        return changed

    def remember(self, changed: Mapping[Stream, SequenceSet]) -> None:
        """The transaction has ended well."""
        for key, of_gateway in groupby(changed, key=_gateway_of):
            known = self.known(key)
            if known is not None:
                known.landed |= {stream: changed[stream] for stream in of_gateway}

    @staticmethod
    def doubt(tx: sa.Connection, there: Collection[Key]) -> None:
        """No row is to be believed, nor that there is none of one of the gateways `there`."""
        tx.execute(marks.update().values(checksum=NO_CHECKSUM))
        known = {(row.tenant, row.gateway) for row in tx.execute(sa.select(marks.c.tenant, marks.c.gateway).distinct())}
        unknown = [_row(Stream(*key, "", ""), SequenceSet()) | {"checksum": NO_CHECKSUM} for key in set(there) - known]
        if unknown:
            tx.execute(marks.insert(), unknown)

    @staticmethod
    def rewrite(tx: sa.Connection, key: Key, whole: Mapping[Stream, SequenceSet]) -> None:
        """These are the rows of a gateway, in place of those there are."""
        tx.execute(marks.delete().where(marks.c.tenant == key[0], marks.c.gateway == key[1]))
        if whole:
            tx.execute(marks.insert(), [_row(stream, found) for stream, found in whole.items()])


_ROW: Final = (*Stream._fields, "mark", "spans", "checksum")
_AT: Final = tuple(f"at_{name}" for name in _ROW)
_UPDATE: Final = (
    marks.update()
    .where(*(marks.c[name] == sa.bindparam(f"at_{name}") for name in Stream._fields))
    .values({name: sa.bindparam(f"at_{name}") for name in ("mark", "spans", "checksum")})
)


def _gateway_of(entry: Stream | SequenceRange) -> Key:
    return entry[:2]


def _read(tx: sa.Connection, key: Key) -> GatewayMarks:
    known = GatewayMarks()
    for row in tx.execute(sa.select(marks).where(marks.c.tenant == key[0], marks.c.gateway == key[1])).all():
        stream = Stream(row.tenant, row.gateway, row.epoch, row.address)
        if row.checksum == NO_CHECKSUM:
            known.damage[stream] = "the registry was an older copy"
            continue
        try:
            known.landed[stream] = unpack(stream, row.mark, row.spans, row.checksum)
        except MarkDamaged as error:
            log.error("registry: the row of %r of gateway %s is damaged: %s", row.address, key[1], error)  # noqa: TRY400
            known.damage[stream] = str(error)
    return known


def _row(stream: Stream, landed: SequenceSet, names: Sequence[str] = _ROW) -> dict[str, Any]:
    """The row of a stream, its values under these names in place of `_ROW`."""
    spans = msgspec.msgpack.encode(landed.spans)
    values = (*stream, landed.mark, spans, _checksum(stream, landed.mark, spans))
    return dict(zip(names, values, strict=True))


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
