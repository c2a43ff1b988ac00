"""Contexts: named places of a gateway or hub, kept in the user's configuration folder. One of them is in use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from edge.appliance.errors import CommandError, Exit
from edge.output.text import word

CONTEXTS_MAX: Final = 200
"""Contexts of one user."""
NAME_CHARACTERS_MAX: Final = 64
FILE_BYTES_MAX: Final = 1_000_000


class Context(msgspec.Struct, frozen=True):
    """Place of a gateway or hub."""

    data: str
    """Absolute path of the data directory."""


class Contexts(msgspec.Struct, frozen=True):
    """The contexts of a user."""

    current: str | None = None
    """Name of the one in use."""
    contexts: dict[str, Context] = {}

    @property
    def used(self) -> Context | None:
        """The context in use."""
        return None if self.current is None else self.contexts.get(self.current)


def folder() -> Path:
    """Return the configuration folder of the user (XDG Base Directory Specification)."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(configured) if configured.startswith("/") else Path("~/.config").expanduser()) / "waypost"


def file() -> Path:
    return folder() / "contexts.json"


def read() -> Contexts:
    """Return the contexts of the user; none without a file. Raises CommandError."""
    path = file()
    try:
        with path.open("rb") as opened:
            return msgspec.json.decode(opened.read(FILE_BYTES_MAX), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.MsgspecError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        hint = f"remove it, and add the contexts again: rm {word(path)}"
        raise CommandError(f"{path}: {why}", hint=hint, code=Exit.USAGE) from None


def write(contexts: Contexts) -> None:
    """Write the contexts, for this user only. Raises CommandError."""
    path = file()
    part = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(msgspec.json.format(msgspec.json.encode(contexts)) + b"\n")
        part.replace(path)
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror}") from None


def added(contexts: Contexts, name: str, context: Context) -> Contexts:
    """Return the contexts with another one, which is in use if it is the first. Raises CommandError."""
    if not name.isprintable() or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise CommandError(f"a name has 1 to {NAME_CHARACTERS_MAX} characters that can be printed", code=Exit.USAGE)
    if len(contexts.contexts) >= CONTEXTS_MAX and name not in contexts.contexts:
        raise CommandError(f"there are {CONTEXTS_MAX} contexts", hint="remove one: waypost context remove NAME")
    return Contexts(contexts.current or name, {**contexts.contexts, name: context})


def removed(contexts: Contexts, name: str) -> Contexts:
    """Return the contexts without one. Raises CommandError when it does not exist."""
    require(contexts, name)
    left = {each: context for each, context in contexts.contexts.items() if each != name}
    return Contexts(None if contexts.current == name else contexts.current, left)


def require(contexts: Contexts, name: str) -> None:
    """Raise CommandError when there is no context of this name."""
    if name not in contexts.contexts:
        raise CommandError(f"context {name} not found", hint="list them: waypost context list", code=Exit.USAGE)
