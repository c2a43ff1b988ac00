"""Marks: the landed sequences of each stream, one row each, with a checksum over the row.

A row decides whether a message is a duplicate. One flipped bit would lose messages, or keep a gateway from sending.
Damaged rows are detected here and not used.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.limits import REPAIRED_AT_ONCE
from cloud.hub.registry.database import Database, execute_many
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.keys import key_rows
from cloud.hub.registry.paged_changes import change_in_pages
from cloud.hub.registry.schema import marks
from cloud.lake.limits import HOLES_MAX
from cloud.lake.sequences import SequenceRange, SequenceSet, SequenceStream

log = logging.getLogger(__name__)

SEQUENCE_MAX = (1 << 63) - 1
NO_CHECKSUM = -1
"""Checksum of rows that must not be used, because the registry was an older copy. No valid row has it."""


class MarkDamaged(Exception):
    """The row is damaged; the message says how that was detected."""


@dataclass(slots=True)
class GatewayMarks:
    """Marks of one gateway."""

    landed: dict[SequenceStream, SequenceSet] = field(default_factory=dict)
    damage: dict[SequenceStream, str] = field(default_factory=dict)
    """Damaged rows by the stream that they name. The name may be damaged too, so while there are any, a stream without
    a row may be the damaged one."""

    def unknown_reason(self, stream: SequenceStream) -> str | None:
        """Return why the marks of a stream are unknown; None if they are known."""
        if stream in self.landed or not self.damage:
            return None
        return self.damage.get(stream) or next(iter(self.damage.values()))

    def add(self, ranges: Iterable[SequenceRange]) -> None:
        """Add ranges that have landed, in order. Rows of damaged streams are rebuilt from the lake."""
        for moved in ranges:
            stream = moved.stream
            if self.unknown_reason(stream) is None:
                self.landed.setdefault(stream, SequenceSet()).add(moved.first, moved.last, HOLES_MAX)


class _Loaded(NamedTuple):
    generation: int | None
    marks: GatewayMarks


class Marks:
    """Marks in the registry. For the registry's thread.

    The rows of a gateway are cached from its connection on: while it is connected here, no other hub changes them. They
    leave the cache with its generation, and the landing after its next connection reads them as a takeover does.
    """

    def __init__(self, database: Database, generations: Generations) -> None:
        self._generations = generations
        self._loaded: dict[Key, _Loaded] = {}
        database.in_doubt.append(self.forget)
        generations.dropped.append(self.drop)

    def forget(self) -> None:
        """Forget all cached rows."""
        self._loaded.clear()

    def drop(self, who: Iterable[Key]) -> None:
        """Forget the cached rows of gateways. Safe at any time, as `forget` is: the log of commits has what landed."""
        for key in who:
            self._loaded.pop(key, None)

    def known(self, key: Key) -> GatewayMarks | None:
        """Return the cached marks of a gateway; None if they have to be loaded."""
        loaded = self._loaded.get(key)
        if loaded is None or loaded.generation != self._generations.of(key):
            return None
        return loaded.marks

    def keep(self, key: Key, found: GatewayMarks) -> GatewayMarks:
        """Cache the marks of a gateway, after the transaction that has read them: no open commit named it there."""
        self._loaded[key] = _Loaded(self._generations.of(key), found)
        return found

    def remember(self, ranges: Sequence[SequenceRange]) -> None:
        """Add ranges that have landed to the cached marks, after a successful transaction."""
        for key, of_gateway in groupby(ranges, key=_gateway_of):
            loaded = self._loaded.get(key)
            if loaded is not None:
                loaded.marks.add(of_gateway)

    @staticmethod
    def mark_unusable(tx: sa.Connection, there: Collection[Key]) -> None:
        """Mark all rows as unusable, also the missing rows of the gateways `there`, in bounded statements."""
        usable = marks.c.checksum.is_distinct_from(NO_CHECKSUM)
        key = [marks.c[name] for name in SequenceStream._fields]
        change_in_pages(tx, marks.update().where(usable).values(checksum=NO_CHECKSUM), key, REPAIRED_AT_ONCE)
        whole = sorted(there)
        for start in range(0, len(whole), REPAIRED_AT_ONCE):
            _add_unusable(tx, whole[start : start + REPAIRED_AT_ONCE])

    @staticmethod
    def rewrite(tx: sa.Connection, key: Key, whole: Mapping[SequenceStream, SequenceSet]) -> None:
        """Replace the rows of a gateway."""
        tx.execute(marks.delete().where(marks.c.tenant == key[0], marks.c.gateway == key[1]))
        if whole:
            tx.execute(marks.insert(), [_row(stream, found) for stream, found in whole.items()])


def _add_unusable(tx: sa.Connection, keys: Sequence[Key]) -> None:
    """Add an unusable row for each gateway without one."""
    mine = key_rows(tx, keys)
    named = mine.join(marks, (marks.c.tenant == mine.c.tenant) & (marks.c.gateway == mine.c.name))
    known = set(map(tuple, tx.execute(sa.select(mine.c.tenant, mine.c.name).select_from(named).distinct()).all()))
    unknown = [
        _row(SequenceStream(*key, "", ""), SequenceSet()) | {"checksum": NO_CHECKSUM}
        for key in keys
        if key not in known
    ]
    if unknown:
        tx.execute(marks.insert(), unknown)


_ROW: Final = (*SequenceStream._fields, "mark", "spans", "checksum", "closed")
_AT: Final = tuple(f"at_{name}" for name in _ROW)
_UPDATE: Final = (
    marks.update()
    .where(*(marks.c[name] == sa.bindparam(f"at_{name}") for name in SequenceStream._fields))
    .values({name: sa.bindparam(f"at_{name}") for name in ("mark", "spans", "checksum", "closed")})
)


def _gateway_of(entry: SequenceStream | SequenceRange) -> Key:
    return entry[:2]


def add_landed(tx: sa.Connection, ranges: Sequence[SequenceRange]) -> None:
    """Add landed ranges to the rows of their streams, in order."""
    changed: dict[SequenceStream, SequenceSet] = {}
    new: set[SequenceStream] = set()
    read = read_marks(tx, {_gateway_of(each) for each in ranges})
    for moved in ranges:
        stream = moved.stream
        landed = changed.get(stream)
        if landed is None:
            known = read[_gateway_of(moved)]
            if known.unknown_reason(stream) is not None:
                continue  # its row will be rebuilt from the lake
            landed = known.landed.get(stream)
            if landed is None:
                new.add(stream)
                landed = SequenceSet()
            changed[stream] = landed
        landed.add(moved.first, moved.last, HOLES_MAX)  # closed holes are in the ledger: see `Landing.land`
    inserts = [_row(stream, changed[stream]) for stream in new]
    updates = [_row(stream, changed[stream], _AT) for stream in changed if stream not in new]
    if inserts:
        tx.execute(marks.insert(), inserts)
    if updates:
        execute_many(tx, _UPDATE, updates)


def read_marks(tx: sa.Connection, keys: Collection[Key]) -> dict[Key, GatewayMarks]:
    """Return the marks of gateways in their rows; those of a gateway without a row are empty."""
    found = {key: GatewayMarks() for key in keys}
    if not found:
        return found
    mine = key_rows(tx, found)
    named = mine.join(marks, (marks.c.tenant == mine.c.tenant) & (marks.c.gateway == mine.c.name))
    for row in tx.execute(sa.select(marks).select_from(named)).all():
        known = found[row.tenant, row.gateway]
        stream = SequenceStream(row.tenant, row.gateway, row.epoch, row.address)
        if row.checksum == NO_CHECKSUM:
            known.damage[stream] = "the registry was an older copy"
            continue
        try:
            known.landed[stream] = unpack_marks(stream, row.mark, row.spans, row.checksum, row.closed)
        except MarkDamaged as error:
            log.error("registry: the row of %r of gateway %s is damaged: %s", row.address, row.gateway, error)  # noqa: TRY400
            known.damage[stream] = str(error)
    return found


def _row(stream: SequenceStream, landed: SequenceSet, names: Sequence[str] = _ROW) -> dict[str, Any]:
    """Return the row of a stream, with `names` instead of the names in `_ROW`."""
    spans = msgspec.msgpack.encode(landed.spans)
    closed = None if landed.closed < 0 else landed.closed
    values = (*stream, landed.mark, spans, _checksum(stream, landed.mark, spans, closed), closed)
    return dict(zip(names, values, strict=True))


def unpack_marks(stream: SequenceStream, mark: Any, spans: Any, checksum: Any, closed: Any = None) -> SequenceSet:
    """Unpack a row. Raises `MarkDamaged`. A row without checksum, from an older version, is checked as far as
    possible."""
    try:
        found = msgspec.msgpack.decode(spans, type=list[tuple[int, int]])
    except (msgspec.DecodeError, TypeError) as error:
        raise MarkDamaged(f"its ranges cannot be read: {error}") from error
    if checksum is not None and checksum != _checksum(stream, mark, spans, closed):
        raise MarkDamaged("its checksum does not match")
    following = 0
    for first, last in found:
        if not following <= first <= last <= SEQUENCE_MAX:
            raise MarkDamaged("its ranges are out of order")
        following = last + 2  # adjacent ranges are one range
    landed = SequenceSet(found, -1 if closed is None else closed)
    if landed.mark != mark:
        raise MarkDamaged(f"its mark is {mark!r} and its ranges end at {landed.mark}")
    return landed


def _checksum(stream: SequenceStream, mark: Any, spans: bytes, closed: Any) -> int:
    """Return the checksum of a row; without closed holes it is that of older versions."""
    numbers = (mark,) if closed is None else (mark, closed)
    names = "\0".join(map(str, (*stream, *numbers))).encode("utf-8", "surrogateescape")
    return zlib.crc32(spans, zlib.crc32(names))
