"""What has come to a table since it was at a version, as its log says, for a step that goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark import delta_log
from spark.delta_log import File
from spark.provenance import State, committed_at
from spark.tables import Lake
from spark.transaction import rows_changed

COMMITS_MAX: Final = 100
"""Commits looked at, a small file each. A pass adds one or some; after more of them all rows are read as soon."""


def since(lake: Lake, name: str, before: State) -> Sequence[File] | None:
    """Return the files of table `name` that can have rows which are new, or other ones, since it was `before`. None
    where its log does not say: the table was created again, an older copy was restored, commits are gone or too many,
    or one removed rows.

    Raises `LogDamaged`, `SchemaMismatch`, `FormatUnknown`, and what delta-rs raises.
    """
    now = lake.state(name)
    if now is None or now.id != before.id or not _goes_on(lake, name, before):
        return None
    added = _added(lake, name, range(before.version + 1, now.version + 1))
    if added is None:
        return None
    lake.check_readable(name, now.version)
    files = delta_log.files(lake.opened(name, now.version))
    # Put together with others since, or folded into one, and deleted perhaps: its rows are in that folder still.
    moved = {_folder(path) for path in added - {file.path for file in files}}
    return [file for file in files if file.path in added or _folder(file.path) in moved]


def _folder(path: str) -> str:
    """Return the partition of a file, as its path has it."""
    return path.rpartition("/")[0]


def _goes_on(lake: Lake, name: str, before: State) -> bool:
    """Whether the table has been at this state."""
    entry = lake.commit(name, before.version)
    return entry is not None and committed_at(entry) == before.committed_at


def _added(lake: Lake, name: str, versions: range) -> set[str] | None:
    if len(versions) > COMMITS_MAX:
        return None
    found: set[str] = set()
    for version in versions:
        entry = lake.commit(name, version)
        # A fold writes the rows that it takes away, and those that they become, to the files that it adds.
        if entry is None or (entry.takes_away and rows_changed(entry.info) is None):
            return None
        found.update(file.path for file in entry.added)
    return found
