"""What a derived table was made of: kept as `userMetadata` in its Delta commit, read by the report without a JVM.

A commit of maintenance (compaction, vacuum) leaves the rows as they were, so it is made of what the commit before it
was. Of any other commit that says nothing, nothing is known: it is of another program, of a Waypost before this, or
one of several commits that belong together, of which the last one says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import deltalake
import msgspec

from cloud.place.place import place_of
from spark import delta_log

TELEMETRY = "telemetry"
COMMITS_MAX = 100
"""Commits of a table looked at to find what it was made of; each is one small file."""
CHANGES_MAX = 1_000
"""Commits looked at for changes between two versions."""
_MAINTENANCE = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"})


class State(msgspec.Struct, frozen=True):
    """What a table is at one moment: `id` changes when the table is made anew, `version` with every commit."""

    id: str
    version: int
    committed_at: datetime | None = None
    """When the version was committed, where its log says so."""


class Provenance(msgspec.Struct, frozen=True):
    """`sources`: the tables it was made of, at the versions that were read; landed ones, and derived ones between.

    `beside`: other tables of the same job, at the versions that belong to it.
    """

    sources: dict[str, State]
    beside: dict[str, State] = {}

    @property
    def telemetry(self) -> State | None:
        """The state of `telemetry`, which every derived table is made of."""
        return self.sources.get(TELEMETRY)

    def text(self) -> str:
        """As it stands in a commit."""
        return msgspec.json.encode(self).decode()


def parsed(text: object) -> Provenance | None:
    """What a commit's `userMetadata` says; None when it is of something else, or of a Waypost before this."""
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=Provenance)
    except msgspec.DecodeError:
        return None


def state_of(table: deltalake.DeltaTable) -> State:
    """A table as it was opened."""
    ((_, committed_at),) = committed(table, 1) or ((0, None),)
    return State(str(table.metadata().id), table.version(), committed_at)


def committed(table: deltalake.DeltaTable, count: int = COMMITS_MAX) -> list[tuple[int, datetime | None]]:
    """The newest versions of a table, the newest first, and when each was committed, where its log says so."""
    return [(version, committed_at(entry)) for version, entry in _entries(table, count)]


def committed_at(entry: delta_log.Entry) -> datetime | None:
    """When a commit was made, where it says so."""
    stamp = entry.info.get("timestamp")
    return datetime.fromtimestamp(stamp / 1e3, UTC) if isinstance(stamp, int) else None


def last_change(table: deltalake.DeltaTable) -> delta_log.Entry | None:
    """The newest commit of a table as it was opened that is no maintenance: the one its rows are of. None where the
    log lacks it."""
    entries = (entry for _, entry in _entries(table, COMMITS_MAX))
    return next((entry for entry in entries if entry.info.get("operation") not in _MAINTENANCE), None)


def provenance_of(entry: delta_log.Entry) -> Provenance | None:
    """What a commit that is no maintenance says of itself."""
    return parsed(entry.info.get("userMetadata"))


def versions(table: deltalake.DeltaTable) -> list[tuple[int, Provenance | None]]:
    """The newest versions of a table, the newest first, and what each was made of."""
    found: list[tuple[int, Provenance | None]] = []
    made_of: Provenance | None = None
    for version, entry in reversed(list(_entries(table, COMMITS_MAX))):
        if entry.info.get("operation") not in _MAINTENANCE:
            made_of = provenance_of(entry)
        found.append((version, made_of))
    return found[::-1]


def rows_changed(table: deltalake.DeltaTable, after: int, upto: int | None = None) -> bool:
    """Whether commits after version `after`, up to `upto` or the one opened, changed rows.

    True where there are too many to look at.
    """
    count = table.version() - after
    if count > CHANGES_MAX:
        return upto is None or upto > after
    entries = _entries(table, count)
    return any(entry.changes_rows for version, entry in entries if upto is None or version <= upto)


def _entries(table: deltalake.DeltaTable, count: int) -> Iterator[tuple[int, delta_log.Entry]]:
    """At most `count` versions up to the one opened that are in the log, the newest first, and what each did.

    Read from the log: `DeltaTable.history` numbers the newest commits of the moment, not those of the version opened.
    """
    place, newest = place_of(table.table_uri), table.version()
    for version in range(newest, max(-1, newest - count), -1):
        entry = delta_log.entry(place, version)
        if entry is None:  # cleaned up: a checkpoint has what came of it
            return
        yield version, entry
