"""Token of the local operator: a file in the data directory, readable only by the gateway's user.

It grants the rights `view` and `manage`, over HTTP from this machine only. A user who can read the file can read and
write everything else in the directory, so the token grants nothing more. `waypost status` sends it; Prometheus may be
given its path.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from bridge.durable_file import replace_file

FILE: Final = "operator.token"
_TOKEN_BYTES: Final = 32
_CHARACTERS_MIN: Final = 40
"""Shortest valid token: a shorter one was cut off by a full card, or not written by a gateway."""


class OperatorTokenError(Exception):
    """The token cannot be read. The message has the reason and the next step."""


def operator_token(data: Path) -> str:
    """Return the token of a data directory. Make a new one if it is missing or other users could read it.

    Raises OSError.
    """
    path = data / FILE
    try:
        kept = path.read_text("ascii").strip()
        if len(kept) >= _CHARACTERS_MIN and not path.stat().st_mode & 0o077:
            return kept
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    made = secrets.token_urlsafe(_TOKEN_BYTES)
    replace_file(path, f"{made}\n".encode())
    return made


def read_token(data: Path) -> str:
    """Return the token that a gateway made. Raises OperatorTokenError."""
    path = data / FILE
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        raise OperatorTokenError(f"{path} not found: has a gateway run on this data directory?") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not contain a token"
        raise OperatorTokenError(f"{path}: {why}; run this command as the gateway's user") from None
