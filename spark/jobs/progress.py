"""How far a job has come with a table it follows: a number that Delta keeps with what the job wrote.

A `Position` is the next version to take, and, while the table is first taken as it was found at that version, how many
parts of it have been taken. It is the version of the transaction marker of each output, so an output and the progress
it stands for are one commit: there is no checkpoint beside the tables that could be lost or say something else.

A batch that was written to some of the outputs only is finished first, with just the rows it had: the furthest marker
says where it ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark.delta_log import File, files
from spark.provenance import State
from spark.tables import Lake

BATCH_ROWS_MAX = 1_000_000
"""Rows of a batch: decoded and held they take some hundred megabytes. A batch is one commit of the source at least."""
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of data files of a batch, where rows are large."""
_PART_BITS = 20
_ROW_BYTES = 100
"""Taken for a row's size where a log does not count rows."""


class SourceLost(RuntimeError):
    """The source does not have any more what a job has to take next; the message says what to do."""


class Position(NamedTuple):
    """See the module."""

    version: int
    part: int = 0

    def marker(self) -> int:
        """As a transaction's version."""
        return self.version << _PART_BITS | self.part

    @classmethod
    def of(cls, marker: int) -> Position:
        """The position of a marker."""
        return cls(marker >> _PART_BITS, marker & ((1 << _PART_BITS) - 1))


class Span(NamedTuple):
    """A batch to be taken: the files that have its rows, where it ends.

    `whole`: the last version of the source that has been taken whole then; None within one.
    """

    files: Sequence[File]
    end: Position
    whole: int | None

    @property
    def rows(self) -> int:
        """As the log counts them, or about."""
        return _rows(self.files)


def spans(
    lake: Lake,
    source: str,
    now: State,
    begin: Position | None,
    end: Position | None,
    rows_max: int | None = None,
) -> Iterator[Span]:
    """The batches from `begin` (None: from the start) up to the source as it is `now`.

    `end`: where a batch ended that was begun and not finished: it comes first, as it was. `rows_max`: of a batch,
    unless `BATCH_ROWS_MAX`; the parts of a source are of that always, as their numbers are the progress, and a batch is
    some of them. Raises `SourceLost`, `delta_log.LogDamaged`.
    """
    if begin is None or begin.part:
        base = begin.version if begin is not None else _base(end, now)
        yield from _parts(lake, source, Position(base, begin.part if begin is not None else 0), end, rows_max)
        begin, end = Position(base + 1), None
    if end is not None:
        yield _span([_added(lake, source, version) for version in range(begin.version, end.version)], end)
        begin = end
    if begin.version > now.version + 1:
        raise SourceLost(
            f"table {source} is at version {now.version}, but the job has taken version {begin.version - 1}: it "
            "is an older copy. Make the tables of the job anew: `waypost analytics rebuild`"
        )
    yield from _versions(lake, source, range(begin.version, now.version + 1), rows_max)


def _base(end: Position | None, now: State) -> int:
    """The version whose parts are taken first: the one begun with, or that of now."""
    if end is None:
        return now.version
    return end.version if end.part else end.version - 1


def _parts(lake: Lake, source: str, begin: Position, end: Position | None, rows_max: int | None) -> Iterator[Span]:
    version, taken = begin
    try:
        table = lake.opened(source, version)
    except Exception as error:
        raise lost(source, version) from error
    parts = list(_grouped([[file] for file in files(table)]))
    upto = None if end is None else end.part or len(parts)
    while taken < len(parts):
        count = _in_a_batch(parts[taken:], rows_max) if upto is None else upto - taken
        group = [file for part in parts[taken : taken + count] for file in part]
        taken, upto = taken + count, None
        last = taken == len(parts)
        yield Span(group, Position(version + 1) if last else Position(version, taken), version if last else None)


def _in_a_batch(parts: Sequence[Sequence[File]], rows_max: int | None) -> int:
    """How many of these are one batch; one at least."""
    size = _Size(rows_max)
    for number, part in enumerate(parts):
        if number and not size.has_room(part):
            return number
        size.add(part)
    return len(parts)


def _versions(lake: Lake, source: str, versions: range, rows_max: int | None) -> Iterator[Span]:
    pending: list[Sequence[File]] = []
    size = _Size(rows_max)
    for version in versions:
        added = _added(lake, source, version)
        if pending and not size.has_room(added):
            yield _span(pending, Position(version))
            pending, size = [], _Size(rows_max)
        size.add(added)
        pending.append(added)
    if any(pending):  # what only maintenance has done needs no commit of ours
        yield _span(pending, Position(versions.stop))


def _span(added: Sequence[Sequence[File]], end: Position) -> Span:
    return Span([file for files in added for file in files], end, end.version - 1)


def _added(lake: Lake, source: str, version: int) -> Sequence[File]:
    entry = lake.commit(source, version)
    if entry is None:
        raise lost(source, version)
    if entry.takes_away:
        raise SourceLost(
            f"version {version} of table {source} removed or replaced rows, and the tables made of them still have "
            "them. Make those tables anew: `waypost analytics rebuild`"
        )
    return entry.added


def lost(source: str, version: int) -> SourceLost:
    """What to raise when a version of a table was not taken in time."""
    return SourceLost(
        f"version {version} of table {source} is gone: its log was cleaned, or it was vacuumed, before the job took "
        "it. Make the tables of the job anew: `waypost analytics rebuild`"
    )


class _Size:
    def __init__(self, rows_max: int | None = None) -> None:
        self._rows_max = rows_max or BATCH_ROWS_MAX
        self._rows = self._bytes = 0

    def has_room(self, added: Sequence[File]) -> bool:
        rows, size = _rows(added), sum(file.size for file in added)
        return self._rows + rows <= self._rows_max and self._bytes + size <= BATCH_BYTES_MAX

    def add(self, added: Sequence[File]) -> None:
        self._rows += _rows(added)
        self._bytes += sum(file.size for file in added)


def _grouped(added: Sequence[Sequence[File]]) -> Iterator[list[File]]:
    group: list[File] = []
    size = _Size()
    for files_ in added:
        if group and not size.has_room(files_):
            yield group
            group, size = [], _Size()
        size.add(files_)
        group += files_
    yield group


def _rows(added: Sequence[File]) -> int:
    return sum(file.rows if file.rows is not None else file.size // _ROW_BYTES for file in added)
