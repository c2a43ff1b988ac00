"""Write files with secrets: readable by the owner only, and replaced atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


def write_private(file: Path, text: str) -> None:
    """Create or replace a file with this ASCII text; durable on return. Raises OSError."""
    whole = file.with_name(f"{file.name}.new")
    whole.unlink(missing_ok=True)
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="ascii") as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    whole.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed entries of a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
