"""The hub's data directory: nobody else's to read, one hub's at a time, and where its writer id is kept.

What gateways send is customers' data, and the registry says who they are. So files are made for their owner alone,
whichever library makes them (the umask is the process's), and those an older version left readable are closed.
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

from edge.broker.security.private_file import write_private
from edge.broker.store.lock import hold, is_held
from edge.health.data_owner import directory_fault
from edge.output.system_errors import write_advice

log = logging.getLogger(__name__)

UMASK: Final = 0o077
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
LOCK: Final = "hub.lock"
WRITER: Final = "writer"
"""The file with the id under which this hub numbers its commits: 32 hexadecimal digits."""


class DataError(Exception):
    """The data directory cannot be used; the message says why and what to do, on one line."""


def require_unheld(path: Path) -> None:
    """Look whether another hub holds the directory, before ports are asked for: they are likely to be its own. Makes
    nothing. Raises DataError."""
    if is_held(path, LOCK):
        raise _in_use(path)


@contextlib.contextmanager
def data_directory(path: Path) -> Iterator[Path]:
    """Make the data directory, hold it against a second hub and close it to others. Sets the process's umask.

    Raises DataError.
    """
    os.umask(UMASK)
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        if (fault := directory_fault(path)) is not None:
            raise DataError(fault)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise DataError(
            f"data directory {path} cannot be used: {error.strerror}; it must be a directory this user may write to"
        ) from error
    try:
        hold(lock)
    except OSError as error:
        os.close(lock)
        raise _in_use(path) from error
    try:
        _close_to_others(path)
        yield path
    finally:
        os.close(lock)


def writer_id(path: Path) -> str:
    """The writer id of a data directory that is held: made where there is none, and on disk on return.

    A new one does no harm: what the one before left open is settled by the lake it was for. Raises DataError.
    """
    file = path / WRITER
    try:
        found = file.read_text("ascii", "replace").strip() if file.exists() else ""
        if re.fullmatch(r"[0-9a-f]{32}", found):
            return found
        if found:
            log.warning("%s holds no writer id: a new one is made", file)
        made = secrets.token_hex(16)
        write_private(file, made + "\n")
    except OSError as error:
        raise DataError(f"{file} cannot be used: {error.strerror}; {write_advice(error)}") from error
    return made


def _in_use(path: Path) -> DataError:
    return DataError(f"{path} is in use by another hub; stop it or give this one another data directory")


def _close_to_others(path: Path) -> None:
    """Take away what other users may do with anything below: a walk over the whole, where the top is open or a part."""
    if not any(_open_to_others(each) for each in (path, *path.iterdir())):
        return
    closed = 0
    for folder, names, files in os.walk(path):
        for each in (Path(folder), *(Path(folder, name) for name in files)):
            if _open_to_others(each):
                closed += _close(each)
        names[:] = [name for name in names if not Path(folder, name).is_symlink()]
    log.info("%s: %d files and folders that other users could read are for this user alone now", path, closed)


def _open_to_others(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:  # gone meanwhile
        return False
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & UMASK)


def _close(path: Path) -> bool:
    """True when it is closed now: it may be somebody else's, or gone."""
    try:
        path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~UMASK)
    except OSError as error:
        log.warning("%s: others may read it, and it cannot be closed: %s", path, error.strerror)
        return False
    return True
