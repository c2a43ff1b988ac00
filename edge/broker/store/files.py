"""Detects that the files of an open store were deleted, moved or replaced.

A process with open files does not notice that: it would continue to write files that are lost at the next start. The
files are looked up by name and never opened, because closing any descriptor of a database drops all locks that the
process has on it (fcntl(2)).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreError

CHECK_INTERVAL_S: Final = 0.25
"""Interval of the checks. Two lookups take a few microseconds, and each releases the interpreter lock once."""
_SUFFIXES: Final = ("", "-wal")


class StoreFiles:
    """Identities of the database at `path` and its write-ahead log at construction. Called on any thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._checked_at_s = clock()
        self._gone: StoreError | None = None
        self._directory = str(path.parent)
        self._own_directory = _identity(self._directory)
        self._known = {name: _identity(name) for name in (f"{path}{suffix}" for suffix in _SUFFIXES)}

    def check(self) -> StoreError | None:
        """Return the error when files are missing, or None. The result is at most `CHECK_INTERVAL_S` old."""
        now = self._clock()
        if self._gone is not None or now - self._checked_at_s >= CHECK_INTERVAL_S:
            self._checked_at_s = now
            self._gone = self._find_missing()
        return self._gone

    @property
    def replaced(self) -> bool:
        """True when the directory itself was replaced. Then no file found there belongs to this store."""
        found = _identity(self._directory)
        return found is not None and self._own_directory is not None and found != self._own_directory

    def _find_missing(self) -> StoreError | None:
        for name, known in self._known.items():
            found = _identity(name)
            if known is None:
                self._known[name] = found  # a medium that was full or read-only had no log yet
            elif found != known:
                what = "is gone" if found is None else "is another file"
                return StoreError(
                    f"{name} {what}: it was deleted, moved or replaced while the gateway is running, so nothing can be "
                    "stored; move it back, or restart the gateway to use what is there now"
                )
        return None


def _identity(name: str) -> tuple[int, int] | None:
    """Return device and inode; None if the file is not found."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino
