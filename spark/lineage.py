"""Sources of derived tables: kept as `userMetadata` in their Delta commits, and read without a JVM.

A maintenance commit (compaction, vacuum) leaves the rows as they were, so it has the lineage of the commit before it.
Any other commit without a lineage comes from another program, from an older Waypost, or belongs to several commits of
which the last one has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import deltalake
import msgspec

from cloud.place.place import place_of_table

TELEMETRY: Final = "telemetry"
COMMITS_MAX: Final = 100
"""Commits of a table searched for its lineage; each is one small file."""
_CHECKED_FIRST: Final = 4
"""Commits read first: usually the newest one has the lineage, or maintenance follows it with two or three."""
CHANGES_MAX: Final = 1_000
"""Commits searched for changes between two versions."""
ROWS: Final = "waypost.rows"
"""Key of a commit's metadata: the number of rows that it added or changed."""
_MAINTENANCE: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"})


class TableState(msgspec.Struct, frozen=True):
    """Table at one moment: `id` changes when the table is created again, `version` with every commit."""

    id: str
    version: int
    committed_at: datetime | None = None
    """Time of the commit, if a lineage needs it and the log has it."""

    def is_same(self, other: TableState | None) -> bool:
        """Return whether this is the same version of the same table."""
        return other is not None and (self.id, self.version) == (other.id, other.version)


class Pins(msgspec.Struct, frozen=True):
    """Versions that a batch of messages is decoded with, so that a retry decodes it the same way.

    `batch`    transaction (application, version) of the batch.
    `schemas`  version of `payload_schemas`, `births` of `sparkplug_births`, `offsets` of `clock_offsets`; None if
               missing.
    `now`      clock for waiting times.
    """

    batch: tuple[str, int]
    schemas: int | None
    births: int | None
    offsets: int | None
    now: datetime


class TableLineage(msgspec.Struct, frozen=True):
    """`sources`: the tables that the rows were derived from, at the versions read, and the sources of those.

    `siblings` further tables of the same job, at the versions that belong to it.
    `made_by`  step and revision of the job.
    `pins`     of a batch; a retry writes its remaining outputs with them.
    """

    sources: dict[str, TableState]
    siblings: dict[str, TableState] = msgspec.field(default_factory=dict, name="beside")
    made_by: str = ""
    pins: Pins | None = None

    @property
    def telemetry(self) -> TableState | None:
        """State of `telemetry`, the origin of every derived table."""
        return self.sources.get(TELEMETRY)

    def text(self) -> str:
        """Return the form that is stored in a commit."""
        return msgspec.json.encode(self).decode()


class TableCommit(msgspec.Struct, frozen=True):
    """Commit of a table, as its log describes it."""

    version: int
    operation: str
    committed_at: datetime | None
    lineage: TableLineage | None
    rows: int | None
    """Rows that it added or changed, if stated."""

    @property
    def is_maintenance(self) -> bool:
        """Return whether the operation kept all rows."""
        return self.operation in _MAINTENANCE

    @property
    def changes_rows(self) -> bool:
        """Return whether rows changed; False for maintenance and for commits that only carry a lineage."""
        return not self.is_maintenance and self.rows != 0


def parse(text: object) -> TableLineage | None:
    """Parse a commit's `userMetadata`; None for text of another program or an older Waypost."""
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text, type=TableLineage)
    except msgspec.DecodeError:
        return None


def commits(table: deltalake.DeltaTable, count: int = COMMITS_MAX) -> Iterator[TableCommit]:
    """Yield the commits of a table up to the version that was opened, newest first, at most `count`.

    Commits that the log no longer has are left out. Raises what delta-rs raises for a damaged log.
    """
    place, opened = place_of_table(table), table.version()
    while True:
        # `history` numbers the newest commits of the moment: the numbers hold where no commit came in between.
        newest = place.delta()
        infos = newest.history(newest.version() - opened + count)
        if place.delta().version() == newest.version():
            break
    for number, info in enumerate(infos):
        if (version := newest.version() - number) <= opened:
            yield _commit(version, info)


def _commit(version: int, info: Mapping[str, Any]) -> TableCommit:
    stamp, rows = info.get("timestamp"), info.get(ROWS)
    at = datetime.fromtimestamp(stamp / 1e3, UTC) if isinstance(stamp, int) else None
    operation = str(info.get("operation"))
    return TableCommit(version, operation, at, parse(info.get("userMetadata")), int(rows) if rows is not None else None)


def last_change(table: deltalake.DeltaTable) -> TableCommit | None:
    """Return the newest commit of a table that is not maintenance; None if the log lacks it."""
    for count in (_CHECKED_FIRST, COMMITS_MAX):
        found = next((commit for commit in commits(table, count) if not commit.is_maintenance), None)
        if found is not None:
            return found
    return None


def read_lineage(table: deltalake.DeltaTable) -> TableLineage | None:
    """Return the lineage of a table as it was opened; None if its newest change has none."""
    commit = last_change(table)
    return commit.lineage if commit is not None else None


def read_state(table: deltalake.DeltaTable) -> TableState:
    """Return the state of a table as it was opened, with the time of its commit."""
    newest = next(commits(table, 1), None)
    return TableState(str(table.metadata().id), table.version(), newest.committed_at if newest is not None else None)


def list_versions(table: deltalake.DeltaTable) -> list[tuple[int, TableLineage | None]]:
    """Return the newest versions of a table, newest first, with the lineage of each."""
    found: list[tuple[int, TableLineage | None]] = []
    lineage: TableLineage | None = None
    for commit in reversed(list(commits(table))):
        if not commit.is_maintenance:
            lineage = commit.lineage
        found.append((commit.version, lineage))
    return found[::-1]


def rows_changed(table: deltalake.DeltaTable, after: int, upto: int | None = None) -> bool:
    """Return whether commits after version `after`, up to `upto` or the version opened, changed rows.

    True also for more than `CHANGES_MAX` commits, and if the log no longer has all of them.
    """
    count = table.version() - after
    if count <= 0:
        return False
    found = list(commits(table, count)) if count <= CHANGES_MAX else []
    if len(found) < count:
        return upto is None or upto > after
    return any(commit.changes_rows for commit in found if upto is None or commit.version <= upto)
