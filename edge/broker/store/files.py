"""Are the files this process writes still the ones that are found under their names?

Who deletes them, or puts others in their place, does not disturb a process that has them open: it goes on writing what
nobody will ever find. They are looked up by name and never opened: closing any descriptor of a database takes the
process's locks on it along (fcntl(2)).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreError

LOOK_S: Final = 0.25
"""Between two looks: two lookups cost a few microseconds, and each gives up the interpreter once."""
_SUFFIXES: Final = ("", "-wal")


class StoreFiles:
    """The database at `path` and its write-ahead log, as they are when this is made. Called on any thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at_s = clock()
        self._gone: StoreError | None = None
        self._directory = str(path.parent)
        self._own_directory = _identity(self._directory)
        self._known = {name: _identity(name) for name in (f"{path}{suffix}" for suffix in _SUFFIXES)}

    def check(self) -> StoreError | None:
        """Why nothing may be acknowledged; None when everything is in its place, as of `LOOK_S` ago at most."""
        now = self._clock()
        if self._gone is not None or now - self._looked_at_s >= LOOK_S:
            self._looked_at_s = now
            self._gone = self._look()
        return self._gone

    @property
    def replaced(self) -> bool:
        """Another directory is found where theirs was: whatever else is looked up there by name is not of this store
        either."""
        found = _identity(self._directory)
        return found is not None and self._own_directory is not None and found != self._own_directory

    def _look(self) -> StoreError | None:
        for name, known in self._known.items():
            found = _identity(name)
            if known is None:
                self._known[name] = found  # a medium that was full or read-only had no log yet
            elif found != known:
                what = "is gone" if found is None else "is another file"
                return StoreError(
                    f"{name} {what}: it was deleted, moved or replaced while the gateway runs, so that nothing can be "
                    "stored; put it back by moving it, or start the gateway again, with what is there now"
                )
        return None


def _identity(name: str) -> tuple[int, int] | None:
    """Device and inode; None when there is no such file."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino
