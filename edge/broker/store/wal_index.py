"""The index of a write-ahead log, as SQLite keeps it beside it (https://sqlite.org/walformat.html section 2.1)."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import Final

FRAMES: Final = slice(16, 20)
"""How many frames of the log SQLite accepts."""
_MOVED: Final = slice(96, 100)
"""How many of them are in the file."""
_MARKS: Final = range(104, 120, 4)
"""Where readers have marks: how many frames each has seen. The first, at 100, is theirs who read the file alone."""


class LogIndex:
    """The index of the database at `path`, mapped as SQLite has it: writing needs nothing of the medium."""

    def __init__(self, path: Path) -> None:
        """There is a connection to the database. Raises OSError."""
        self._file = os.open(f"{path}-shm", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._file, _MARKS.stop)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def frames(self) -> int:
        """Frames there are."""
        return int.from_bytes(self._map[FRAMES], sys.byteorder)

    @property
    def moved(self) -> int:
        """How many of them are in the file, or older than one that is."""
        return int.from_bytes(self._map[_MOVED], sys.byteorder)

    def none_is_moved(self) -> None:
        """The next checkpoint moves every frame again."""
        self._map[_MOVED] = bytes(4)

    def mark_of(self, frames: int) -> int | None:
        """The mark of a reader that has begun at so many; None where it has none of its own, as all were taken."""
        found = [at for at in _MARKS if int.from_bytes(self._map[at : at + 4], sys.byteorder) == frames]
        return found[-1] if found else None

    def set_mark(self, mark: int, frames: int) -> None:
        """Whoever holds it needs nothing of the file beyond `frames`. Never more than the reader it is of has seen."""
        self._map[mark : mark + 4] = frames.to_bytes(4, sys.byteorder)

    def close(self) -> None:
        """After every connection of this process: the first descriptor of a file that is closed takes all of the
        process's locks on it along (fcntl(2)), and SQLite's are such."""
        self._map.close()
        os.close(self._file)
