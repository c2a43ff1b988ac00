"""Adjustable wall clock for real processes, which preload `clock.c`. Needs a C compiler."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final, Self

from tests.support.medium import compiled

SOURCE: Final = Path(__file__).with_name("clock.c")
YEAR_S: Final = 31_556_952
SYNCHRONIZED: Final = 0
"""TIME_OK of adjtimex(2)."""
UNSYNCHRONIZED: Final = 5
"""TIME_ERROR: the clock is not synchronised."""
_CONTROL: Final = struct.Struct("<qi")


class Clock:
    """Clock of every process started with `environment`; a context manager. It starts with the machine's time."""

    def __init__(self, folder: Path, *, synchronized: bool) -> None:
        path = folder / "clock.control"
        path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._path = path
        self.set(0, synchronized=synchronized)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process with this clock."""
        return {**os.environ, "LD_PRELOAD": str(compiled(SOURCE)), "WAYPOST_CLOCK": str(self._path)}

    def set(self, ahead_s: int, *, synchronized: bool) -> None:
        """Set the clock ahead of the machine's; `synchronized`: the kernel reports it as synchronised."""
        _CONTROL.pack_into(self._control, 0, ahead_s, SYNCHRONIZED if synchronized else UNSYNCHRONIZED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
