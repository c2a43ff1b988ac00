"""Is what is read what was written: every data file of a lake against its table's log and its own checksums. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloud.place.place import Place, Somewhere, place_of
from spark import delta_log, remedy

LOG_ENTRIES_MAX = 1_000
"""Entries of a log that are read, the newest; what came before is in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found of one table: files and bytes read, and what is wrong, a sentence each."""

    table: str
    files: int
    size: int
    wrong: tuple[str, ...]


def verified(lake: Somewhere, names: Sequence[str]) -> Iterator[Verified]:
    """Read every data file of these tables as they are now."""
    place = place_of(lake)
    for name in names:
        yield _verified(place.at(name))


def _verified(place: Place) -> Verified:
    try:
        table = place.delta()
        files = delta_log.files(table)
        _read_log(place, table.version())
    except remedy.FAILURES as error:
        return Verified(place.name, 0, 0, (str(remedy.unreadable(place.name, error)),))
    found = ((file, file.damaged(place)) for file in files)
    wrong = tuple(f"{place.uri}/{file.path} is {why}" for file, why in found if why is not None)
    return Verified(place.name, len(files), sum(file.size for file in files), wrong)


def _read_log(place: Place, newest: int) -> None:
    """Raise `LogDamaged` when an entry cannot be read: delta-rs takes an empty one for an empty version."""
    for version in range(newest, max(-1, newest - LOG_ENTRIES_MAX), -1):
        if delta_log.entry(place, version) is None:
            return
