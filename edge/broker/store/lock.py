"""Lock of a data directory, which only one process may use. The kernel releases it when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreBusy, StoreInaccessible

LOCK_NAME: Final = "store.lock"
HUB_LOCK_NAME: Final = "hub.lock"
"""Lock of a hub's data directory."""
ATTEMPTS: Final = 10
ATTEMPT_INTERVAL_S: Final = 0.01
"""Number and interval (seconds) of attempts: `is_held` holds the lock for microseconds, and a gateway that starts at
that moment must not fail."""


class DirectoryLock:
    """Lock on ``store.lock`` in a data directory. The file has the process id of the holder, for people."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises StoreBusy with the holder, or StoreInaccessible."""
        self._path = directory / LOCK_NAME
        self._open()
        while not self._is_in_place():  # it was removed by `discard` while this process waited
            os.close(self._descriptor)
            self._open()
        # The kernel holds the lock; on a full medium only the number is missing.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _open(self) -> None:
        """Open or create the file, and lock it. Raises StoreBusy or StoreInaccessible."""
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreInaccessible(
                f"cannot open {self._path}: {error.strerror}; check owner and mode of the data directory, "
                "and that its file system is mounted read-write and not full"
            ) from error
        try:
            lock_file(self._descriptor)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreBusy(
                f"{self._path.parent} is in use by process {holder}; "
                "stop that gateway or give this one another data directory"
            ) from error

    def _is_in_place(self) -> bool:
        """Return True when the locked file is still the one in the directory."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock and keep the file."""
        os.close(self._descriptor)

    def discard(self) -> None:
        """Remove the file, then release the lock. A waiting process creates a new file."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def lock_file(descriptor: int) -> None:
    """Lock an open file until it is closed. Raises OSError when another process holds it for longer than `is_held`."""
    for left in reversed(range(ATTEMPTS)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(ATTEMPT_INTERVAL_S)
        else:
            return


def is_held(directory: Path, name: str = LOCK_NAME) -> bool:
    """Return True when a process holds the lock file of this name. Needs only read access, and changes nothing."""
    try:
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared with other callers of `is_held`
    except BlockingIOError:
        return True
    except OSError:  # no gateway can run on a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False
