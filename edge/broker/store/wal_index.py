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


class LogIndex:
    """The index of the database at `path`, mapped as SQLite has it: writing needs nothing of the medium."""

    def __init__(self, path: Path) -> None:
        """There is a connection to the database. Raises OSError."""
        self._file = os.open(f"{path}-shm", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._file, _MOVED.stop)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def frames(self) -> int:
        """Frames there are."""
        return int.from_bytes(self._map[FRAMES], sys.byteorder)

    @property
    def left(self) -> int:
        """Frames that are not in the file yet."""
        return self.frames - int.from_bytes(self._map[_MOVED], sys.byteorder)

    def none_is_moved(self) -> None:
        """The next checkpoint moves every frame again."""
        self._map[_MOVED] = bytes(4)

    def close(self) -> None:
        """After every connection of this process: the first descriptor of a file that is closed takes all of the
        process's locks on it along (fcntl(2)), and SQLite's are such."""
        self._map.close()
        os.close(self._file)
