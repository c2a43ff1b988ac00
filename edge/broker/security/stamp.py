"""Whether a file that others replace may be another one."""

from __future__ import annotations

import os
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int, int] | None
"""Another one when the file was written or replaced; None: it is not there."""


def stamp_of(path: str | None) -> Stamp:
    """Of a file as it is now; None where there is no path, too."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None
