"""Detect that another process replaced a file."""

from __future__ import annotations

import os
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int, int] | None
"""Modification time, size and inode of a file; None if it does not exist."""


def stamp_of(path: str | None) -> Stamp:
    """Return the stamp of a file as it is now; None without a path or a file."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None
