"""Read a text file of another broker."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILE_BYTES_MAX: Final = 8 << 20
"""Largest file: some 100 000 lines, more than any broker has users."""


class ImportFileError(Exception):
    """A file cannot be read; the message says why."""


def read_text(path: Path) -> str:
    """Return a file in UTF-8, with or without a byte order mark. Raises ImportFileError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as why:
        raise ImportFileError(f"{path} cannot be read: {why.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ImportFileError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as why:
        raise ImportFileError(f"{path} is not a text in UTF-8: byte {why.start}") from None


def find_file(name: str, configuration: Path) -> Path:
    """Return the file that a setting names. A missing one is looked for next to the configuration, where a copy of
    another machine's folder has it."""
    there = Path(name) if Path(name).is_absolute() else configuration.parent / name
    return there if there.exists() else configuration.parent / Path(name).name
