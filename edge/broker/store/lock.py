"""One process a data directory: a lock that the kernel releases however the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from edge.broker.store.contract import StoreBusy, StoreInaccessible

LOCK_NAME: Final = "store.lock"


class DirectoryLock:
    """Holds ``store.lock`` in a data directory; the file names the holder's process id for people."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises StoreBusy naming the holder, or StoreInaccessible."""
        path = directory / LOCK_NAME
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreInaccessible(
                f"cannot open {path}: {error.strerror}; check owner and mode of the data directory, "
                "and that its file system is mounted read-write"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreBusy(
                f"{directory} is in use by process {holder}; stop that gateway or give this one another data directory"
            ) from error
        # The lock is the kernel's; on a full medium the number is merely missing.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; the file stays, as removing it would race with the next holder."""
        os.close(self._descriptor)
