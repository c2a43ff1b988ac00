"""The token of who sits at the gateway: a file in the data directory, which the gateway's own user may read.

It stands for the rights `view` and `manage`, over HTTP from this machine only. Whoever can read the file can read and
write everything else there, so it gives away nothing; `edge status` shows it, Prometheus may be given its path.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

FILE: Final = "operator.token"
FILE_MODE: Final = 0o600
_TOKEN_BYTES: Final = 32
_CHARACTERS_MIN: Final = 40
"""What is shorter was cut off by a full card, or written by somebody."""


class OperatorTokenError(Exception):
    """The token cannot be read; the message says why, and what to do."""


def operator_token(data: Path) -> str:
    """The token of a data directory, made where there is none that nobody else could read. Raises OSError."""
    path = data / FILE
    try:
        kept = path.read_text("ascii").strip()
        if len(kept) >= _CHARACTERS_MIN and not path.stat().st_mode & 0o077:
            return kept
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    made = secrets.token_urlsafe(_TOKEN_BYTES)
    part = path.with_suffix(".new")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(made + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return made


def read_token(data: Path) -> str:
    """The token a gateway made. Raises OperatorTokenError."""
    path = data / FILE
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        raise OperatorTokenError(f"there is no {path}: has a gateway run on this data directory?") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds no token"
        raise OperatorTokenError(f"{path}: {why}; ask as the user the gateway runs as") from None
