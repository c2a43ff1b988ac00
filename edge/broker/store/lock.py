"""One process a data directory: a lock that the kernel releases however the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreBusy, StoreInaccessible

LOCK_NAME: Final = "store.lock"
LOOKS: Final = 10
LOOK_S: Final = 0.01
"""How often, and how many seconds apart, the lock is tried: `is_held` has it for microseconds, and a gateway that
starts at that moment is not to be refused."""


class DirectoryLock:
    """Holds ``store.lock`` in a data directory; the file names the holder's process id for people."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises StoreBusy naming the holder, or StoreInaccessible."""
        self._path = directory / LOCK_NAME
        self._open()
        while not self._is_in_place():  # removed while we waited, by whoever made it for nothing
            os.close(self._descriptor)
            self._open()
        # The lock is the kernel's; on a full medium the number is merely missing.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _open(self) -> None:
        """Open the file, make it where there is none, and lock it. Raises StoreBusy or StoreInaccessible."""
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreInaccessible(
                f"cannot open {self._path}: {error.strerror}; check owner and mode of the data directory, "
                "and that its file system is mounted read-write and not full"
            ) from error
        try:
            hold(self._descriptor)
        except OSError as error:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreBusy(
                f"{self._path.parent} is in use by process {holder}; "
                "stop that gateway or give this one another data directory"
            ) from error

    def _is_in_place(self) -> bool:
        """Whether the file that is locked is the one the next process finds."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock back; the file stays."""
        os.close(self._descriptor)

    def discard(self) -> None:
        """Remove the file, then give the lock back; who waits for it makes another."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def hold(descriptor: int) -> None:
    """Lock an open file until it is closed. Raises OSError when somebody has it for longer than `is_held` does."""
    for left in reversed(range(LOOKS)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(LOOK_S)
        else:
            return


def is_held(directory: Path, name: str = LOCK_NAME) -> bool:
    """True when a process holds the directory by the lock file of this name. It changes nothing, and needs no more than
    to read that file."""
    try:
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # with others who look
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks has no gateway on it either
        return False
    finally:
        os.close(descriptor)
    return False
