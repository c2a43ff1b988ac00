"""Upkeep of a lake's tables: small files put together, files that nobody needs deleted, the log kept short. No JVM.

Rows stay what they were, and those who follow a table's commits do not see it. The landed tables' small files are the
hub's to put together, as acknowledgements stand on them; here only what it has replaced is deleted, after a week.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from dataclasses import dataclass

import deltalake
import pyarrow as pa

from cloud.place.place import LakePlace, Somewhere, place_of
from spark import schemas
from spark.age import UNNAMED_KEPT_HOURS

DUE_COMMITS = 100
"""Commits of a table after which it is looked after: each leaves files behind that the next has replaced."""
TARGET_BYTES = 64 * 1024 * 1024
"""Size up to which files of one partition are put together: a reader's task each."""
FOLLOWED_KEPT_HOURS = 7 * 24
"""How long replaced files of a table stay whose commits a job or somebody else follows: who is stopped longer than
this starts anew."""
KEPT_HOURS = 2
"""The same for tables that are written anew again and again: a reader opens one and has read it within minutes."""
LOG_KEPT = "delta.logRetentionDuration"
"""A table's property: how long log entries stay that a checkpoint has made superfluous. The hub sets it for its own."""
_UPKEEP = frozenset({"OPTIMIZE", "VACUUM END"})


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done to one table. `size`: bytes of its files afterwards; `deleted`: files that nobody needed."""

    table: str
    files_before: int
    files_after: int
    size: int
    deleted: int
    seconds: float


def is_due(lake: Somewhere, name: str) -> bool:
    """A table was not looked after in its last `DUE_COMMITS` commits. Raises `remedy.FAILURES`."""
    table = place_of(lake).at(name).delta()
    if table.version() < DUE_COMMITS:
        return False
    return all(commit.get("operation") not in _UPKEEP for commit in table.history(DUE_COMMITS))


def maintained(lake: Somewhere, names: list[str], followed: Container[str]) -> Iterator[Maintained]:
    """Look after these tables. `followed`: derived ones whose commits are taken one by one.

    Raises what delta-rs raises; another writer's commit at the same moment is one of these, and no harm.
    """
    place = place_of(lake)
    for name in names:
        yield _maintained(place.at(name), FOLLOWED_KEPT_HOURS if _is_followed(name, followed) else KEPT_HOURS)


def _is_followed(name: str, followed: Container[str]) -> bool:
    return name in schemas.LANDED or name in followed


def _maintained(place: LakePlace, kept_hours: int) -> Maintained:
    begun = time.monotonic()
    table = place.delta()
    before = len(table.file_uris())
    if place.name in schemas.DERIVED:
        if LOG_KEPT not in table.metadata().configuration:
            table.alter.set_table_properties({LOG_KEPT: f"interval {FOLLOWED_KEPT_HOURS} hours"})
            table.update_incremental()
        table.optimize.compact(target_size=TARGET_BYTES)
        table.update_incremental()
    deleted = _deleted(table, kept_hours, full=False)
    if place.name in schemas.DERIVED:
        # What a killed job had written and not committed is in no log; the hub's landing deletes its own.
        deleted += _deleted(table, UNNAMED_KEPT_HOURS, full=True)
    table.create_checkpoint()
    table.cleanup_metadata()
    sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    return Maintained(place.name, before, len(sizes), sum(sizes), deleted, time.monotonic() - begun)


def _deleted(table: deltalake.DeltaTable, kept_hours: int, *, full: bool) -> int:
    """Delete files that were replaced so long ago; `full`: and those as old that no log names."""
    found = table.vacuum(retention_hours=kept_hours, enforce_retention_duration=False, dry_run=False, full=full)
    table.update_incremental()
    return len(found)
