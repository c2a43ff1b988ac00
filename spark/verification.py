"""Verification of a lake: every data file is compared with its table's log and with its own checksums. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloud.place.place import LakePlace, Somewhere, place_of
from spark import remedy, soundness
from spark.data_files import DataFile, data_files, find_damage

LOG_ENTRIES_MAX = 1_000
"""Entries of a log that are read, the newest; what came before is in a checkpoint."""


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A data file that is not what was written, and why."""

    file: DataFile
    reason: str


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """Result of the check of one table: number and bytes of its files, and the damaged ones.

    `failure`: a sentence that says why the table could not be checked, and what to do; then no file was.
    """

    table: str
    uri: str
    files: int = 0
    size: int = 0
    damaged: tuple[DamagedFile, ...] = ()
    failure: str | None = None

    @property
    def wrong(self) -> tuple[str, ...]:
        """Everything that is wrong, a sentence each."""
        if self.failure is not None:
            return (self.failure,)
        return tuple(f"{self.uri}/{each.file.path} is {each.reason}" for each in self.damaged)


def verified(lake: Somewhere, names: Sequence[str]) -> Iterator[VerifiedTable]:
    """Read every data file of these tables as they are now."""
    place = place_of(lake)
    for name in names:
        yield _verified(place.at(name))


def _verified(place: LakePlace) -> VerifiedTable:
    try:
        files = _listed(place)
    except remedy.FAILURES as error:
        return VerifiedTable(place.name, place.uri, failure=str(remedy.unreadable(place.name, error)))
    try:
        found = [DamagedFile(file, reason) for file in files if (reason := find_damage(file, place)) is not None]
    except (*remedy.FAILURES, MemoryError) as error:
        why = (
            f"table {place.name} could not be checked: {remedy.told(error)}. Check it again when its files can be read"
        )
        return VerifiedTable(place.name, place.uri, failure=why)
    return VerifiedTable(place.name, place.uri, len(files), sum(file.size for file in files), tuple(found))


def _listed(place: LakePlace) -> list[DataFile]:
    """Return the files of a table. Raises one of `remedy.FAILURES` when its log is damaged: delta-rs takes an empty
    entry for an empty version."""
    table = place.delta()
    newest = table.version()
    damage = soundness.damage(place, range(max(0, newest + 1 - LOG_ENTRIES_MAX), newest + 1))
    if damage is not None:
        raise ValueError(damage)
    return data_files(table)
