"""Maintain tables of a lake: compact small files, delete unused ones, keep the log short. No JVM.

Rows stay the same, and readers that follow a table's commits see nothing of it. The hub compacts the landed tables'
files, because acknowledgements depend on them. Here only files that it has replaced are deleted, after a week.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from dataclasses import dataclass

import deltalake
import pyarrow as pa

from cloud.place.place import LakeLocation, LakePlace, place_of
from spark import schemas
from spark.write_age import UNNAMED_KEPT_HOURS

DUE_COMMITS = 100
"""Commits of a table after which it is maintained: each leaves files behind that the next has replaced."""
TARGET_BYTES = 64 * 1024 * 1024
"""Size up to which files of one partition are compacted: one task of a reader each."""
FOLLOWED_KEPT_HOURS = 7 * 24
"""Hours for which replaced files stay in tables that a job or another program follows.

A follower that is stopped longer starts from scratch.
"""
KEPT_HOURS = 2
"""Hours for which they stay in tables that are rewritten often: a reader has finished within minutes."""
LOG_KEPT = "delta.logRetentionDuration"
"""Table property: how long log entries stay that a checkpoint made superfluous. The hub sets it for its own tables."""
_UPKEEP = frozenset({"OPTIMIZE", "VACUUM END"})


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """Result for one table. `size`: bytes of its files afterwards; `deleted`: unused files."""

    table: str
    files_before: int
    files_after: int
    size: int
    deleted: int
    seconds: float


def is_due(lake: LakeLocation, name: str) -> bool:
    """Return whether a table was not maintained in its last `DUE_COMMITS` commits. Raises `table_errors.FAILURES`."""
    table = place_of(lake).at(name).delta()
    if table.version() < DUE_COMMITS:
        return False
    return all(commit.get("operation") not in _UPKEEP for commit in table.history(DUE_COMMITS))


def maintain(lake: LakeLocation, names: list[str], followed: Container[str]) -> Iterator[MaintenanceResult]:
    """Maintain these tables. `followed`: derived tables that are followed commit by commit.

    Raises what delta-rs raises. A concurrent commit of another writer is one of these errors, and harmless.
    """
    place = place_of(lake)
    for name in names:
        yield _maintain(place.at(name), FOLLOWED_KEPT_HOURS if _is_followed(name, followed) else KEPT_HOURS)


def _is_followed(name: str, followed: Container[str]) -> bool:
    return name in schemas.LANDED or name in followed


def _maintain(place: LakePlace, kept_hours: int) -> MaintenanceResult:
    started = time.monotonic()
    table = place.delta()
    before = len(table.file_uris())
    if place.name in schemas.DERIVED:
        if LOG_KEPT not in table.metadata().configuration:
            table.alter.set_table_properties({LOG_KEPT: f"interval {FOLLOWED_KEPT_HOURS} hours"})
            table.update_incremental()
        table.optimize.compact(target_size=TARGET_BYTES)
        table.update_incremental()
    deleted = _vacuum(table, kept_hours, full=False)
    if place.name in schemas.DERIVED:
        # Files that a killed job wrote but did not commit are not in the log; the hub's landing deletes its own.
        deleted += _vacuum(table, UNNAMED_KEPT_HOURS, full=True)
    table.create_checkpoint()
    table.cleanup_metadata()
    sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    return MaintenanceResult(place.name, before, len(sizes), sum(sizes), deleted, time.monotonic() - started)


def _vacuum(table: deltalake.DeltaTable, kept_hours: int, *, full: bool) -> int:
    """Delete files that were replaced this long ago; `full`: also those as old that no log names."""
    found = table.vacuum(retention_hours=kept_hours, enforce_retention_duration=False, dry_run=False, full=full)
    table.update_incremental()
    return len(found)
