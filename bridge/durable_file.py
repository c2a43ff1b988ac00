"""Durable, atomic replacement of files. By default only the owner can read them, as most contain secrets."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


def replace_file(file: Path, content: bytes, *, mode: int = FILE_MODE, owner: tuple[int, int] | None = None) -> None:
    """Create or replace a file; it is on disk on return, and unchanged after an error. Raises OSError.

    `mode`: whatever the umask is. `owner`: user and group, by default those of this process.
    """
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            out.write(content)
            out.flush()
            os.fsync(descriptor)
        fresh.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    sync_path(file.parent)


def sync_path(path: Path) -> None:
    """Make a file durable, or the created, renamed and removed entries of a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
