"""Data directory of the hub: private, locked by one hub at a time, with its writer id.

Gateways send customers' data, and the registry identifies the customers. So files are readable by their owner only,
whichever library makes them (the umask is set for the process). Files that an older version left readable are
closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bridge.durable_file import replace_file
from edge.broker.store.lock import HUB_LOCK_NAME, is_held, lock_file
from edge.health.data_owner import directory_fault
from edge.output.system_errors import write_advice

log = logging.getLogger(__name__)

UMASK: Final = 0o077
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
WRITER: Final = "writer"
"""File with the id under which this hub numbers its commits: 32 hexadecimal digits."""


class DataError(Exception):
    """The data directory cannot be used; the message says why and what to do, on one line."""


def require_unheld(path: Path) -> None:
    """Raise DataError if another hub holds the directory. Changes nothing.

    Called before ports are opened, because a second hub would find its ports in use first.
    """
    if is_held(path, HUB_LOCK_NAME):
        raise _in_use(path)


@contextlib.contextmanager
def data_directory(path: Path) -> Iterator[Path]:
    """Create and lock the data directory, and close it to other users. Sets the process's umask.

    Raises DataError.
    """
    os.umask(UMASK)
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        if (fault := directory_fault(path)) is not None:
            raise DataError(fault)
        lock = os.open(path / HUB_LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise DataError(
            f"data directory {path} cannot be used: {error.strerror}; it must be a directory this user may write to"
        ) from error
    try:
        lock_file(lock)
    except OSError as error:
        os.close(lock)
        raise _in_use(path) from error
    try:
        _close_to_others(path)
        yield path
    finally:
        os.close(lock)


def writer_id(path: Path) -> str:
    """Return the writer id of a locked data directory; create it if missing, synced on return.

    A new id does no harm: commits that the previous one left open are settled by their lake. Raises DataError.
    """
    file = path / WRITER
    try:
        found = file.read_text("ascii", "replace").strip() if file.exists() else ""
        if re.fullmatch(r"[0-9a-f]{32}", found):
            return found
        if found:
            log.warning("%s does not hold a writer id: a new one is created", file)
        made = secrets.token_hex(16)
        replace_file(file, f"{made}\n".encode())
    except OSError as error:
        raise DataError(f"{file} cannot be used: {error.strerror}; {write_advice(error)}") from error
    return made


def _in_use(path: Path) -> DataError:
    return DataError(f"{path} is in use by another hub; stop that hub or use another data directory")


def _close_to_others(path: Path) -> None:
    """Remove the rights of other users below a folder. Walks the tree only if the top or one of its entries is open."""
    if not any(_open_to_others(each) for each in (path, *path.iterdir())):
        return
    closed = 0
    for folder, names, files in os.walk(path):
        for each in (Path(folder), *(Path(folder, name) for name in files)):
            if _open_to_others(each):
                closed += _close(each)
        names[:] = [name for name in names if not Path(folder, name).is_symlink()]
    log.info("%s: removed other users' access to %d files and folders", path, closed)


def _open_to_others(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:  # removed in the meantime
        return False
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & UMASK)


def _close(path: Path) -> bool:
    """Remove the rights of other users; return False if that fails (another owner, or removed)."""
    try:
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~UMASK)
    except OSError as error:
        log.warning("%s: other users may read it, and removing their access failed: %s", path, error.strerror)
        return False
    return True
