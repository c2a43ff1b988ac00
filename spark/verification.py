"""Verify a lake: compare every data file with its table's log and with its own checksums. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloud.place.place import LakeLocation, LakePlace, place_of
from spark import log_damage, table_errors
from spark.data_files import DataFile, find_damage, list_files

LOG_ENTRIES_MAX = 1_000
"""Entries of a log that are read, newest first; older ones are in a checkpoint."""


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """Data file that is not intact, and why."""

    file: DataFile
    reason: str


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """Result for one table: number and bytes of its files, and the damaged ones.

    `failure` is set for a table that could not be checked: the reason and the next step.
    """

    table: str
    uri: str
    files: int = 0
    size: int = 0
    damaged: tuple[DamagedFile, ...] = ()
    failure: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems, a sentence each."""
        if self.failure is not None:
            return (self.failure,)
        return tuple(f"{self.uri}/{each.file.path} is {each.reason}" for each in self.damaged)


def verify(lake: LakeLocation, names: Sequence[str]) -> Iterator[VerifiedTable]:
    """Check every data file in the current version of these tables."""
    place = place_of(lake)
    for name in names:
        yield _verify(place.at(name))


def _verify(place: LakePlace) -> VerifiedTable:
    try:
        files = _list_checked(place)
    except table_errors.FAILURES as error:
        return VerifiedTable(place.name, place.uri, failure=str(table_errors.make_unreadable(place.name, error)))
    try:
        found = [DamagedFile(file, reason) for file in files if (reason := find_damage(file, place)) is not None]
    except (*table_errors.FAILURES, MemoryError) as error:
        reason = table_errors.summarize(error)
        why = f"table {place.name} could not be checked: {reason}. Check it again when its files can be read"
        return VerifiedTable(place.name, place.uri, failure=why)
    return VerifiedTable(place.name, place.uri, len(files), sum(file.size for file in files), tuple(found))


def _list_checked(place: LakePlace) -> list[DataFile]:
    """Return the files of a table.

    Raises one of `table_errors.FAILURES` when its log is damaged. The log is checked here because delta-rs reads an
    empty log entry as a version without changes.
    """
    table = place.delta()
    newest = table.version()
    damage = log_damage.find_damage(place, range(max(0, newest + 1 - LOG_ENTRIES_MAX), newest + 1))
    if damage is not None:
        raise ValueError(damage)
    return list_files(table)
