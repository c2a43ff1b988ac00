"""Is what is read what was written: every data file of a lake against its table's log and its own checksums. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import deltalake
from deltalake.exceptions import DeltaError

from spark import delta_log
from spark.delta_log import LogDamaged

LOG_ENTRIES_MAX = 1_000
"""Entries of a log that are read, the newest; what came before is in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found of one table: files and bytes read, and what is wrong, a sentence each."""

    table: str
    files: int
    size: int
    wrong: tuple[str, ...]


def tables(root: Path) -> list[str]:
    """The tables under `root`, by name."""
    return sorted(path.parent.name for path in root.glob("*/_delta_log"))


def verified(root: Path, names: Sequence[str]) -> Iterator[Verified]:
    """Read every data file of these tables as they are now."""
    for name in names:
        yield _verified(root / name)


def _verified(folder: Path) -> Verified:
    try:
        table = deltalake.DeltaTable(folder)
        files = delta_log.files(table)
        _read_log(folder, table.version())
    except (DeltaError, OSError, LogDamaged) as error:
        return Verified(folder.name, 0, 0, (f"{folder}: the log cannot be read: {error}",))
    found = ((file, file.damaged(folder)) for file in files)
    wrong = tuple(f"{folder / file.path} is {why}" for file, why in found if why is not None)
    return Verified(folder.name, len(files), sum(file.size for file in files), wrong)


def _read_log(folder: Path, newest: int) -> None:
    """Raise `LogDamaged` when an entry cannot be read: delta-rs takes an empty one for an empty version."""
    for version in range(newest, max(-1, newest - LOG_ENTRIES_MAX), -1):
        if delta_log.entry(folder, version) is None:
            return
