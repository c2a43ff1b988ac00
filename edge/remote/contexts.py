"""Contexts: named places of a gateway or hub, kept in the user's configuration folder. One of them is in use.

A place is a data directory of this machine, or the URL of a console with the session of a user who has signed in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import replace_file
from bridge.hidden import hides
from edge.output.errors import CommandError, Exit
from edge.output.text import word

CONTEXTS_MAX: Final = 200
"""Contexts of one user."""
NAME_CHARACTERS_MAX: Final = 64
FILE_BYTES_MAX: Final = 1_000_000


@hides("cookie")
class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """Place of a gateway or hub: a data directory, or a URL."""

    data: str = ""
    """Absolute path of the data directory."""
    url: str = ""
    """URL of the console, without a path."""
    role: str = ""
    """``gateway`` or ``hub``; empty if the user may not see which it is."""
    user: str = ""
    """User who has signed in; empty without authentication."""
    cookie: str = ""
    """Cookie of the session, as NAME=VALUE; empty after `waypost logout`."""
    ca: str = ""
    """Certificates of authorities that the console is verified with (PEM); empty: those of the system."""
    certificate: str = ""
    """The only certificate that is accepted (PEM); empty: see `ca`."""

    @property
    def place(self) -> str:
        """Data directory or URL."""
        return self.data or self.url


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
        raise CommandError(f"{path}: {why}", hint=hint, code=Exit.USAGE, error="contexts-not-readable") from None


def write(contexts: Contexts) -> None:
    """Write the contexts, for this user only. Raises CommandError."""
    path = file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, msgspec.json.format(msgspec.json.encode(contexts)) + b"\n")
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror}", error="file-not-accessible") from None


def added(contexts: Contexts, name: str, context: Context) -> Contexts:
    """Return the contexts with another one, which is in use if it is the first. Raises CommandError."""
    if not name.isprintable() or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise CommandError(
            f"a name has 1 to {NAME_CHARACTERS_MAX} characters that can be printed",
            code=Exit.USAGE,
            error="invalid-name",
        )
    if len(contexts.contexts) >= CONTEXTS_MAX and name not in contexts.contexts:
        raise CommandError(
            f"there are {CONTEXTS_MAX} contexts", hint="remove one: waypost context remove NAME", error="limit-reached"
        )
    return Contexts(contexts.current or name, {**contexts.contexts, name: context})


def removed(contexts: Contexts, name: str) -> Contexts:
    """Return the contexts without one. Raises CommandError when it does not exist."""
    require(contexts, name)
    left = {each: context for each, context in contexts.contexts.items() if each != name}
    return Contexts(None if contexts.current == name else contexts.current, left)


def of_url(contexts: Contexts, url: str) -> Context | None:
    """Return the context of a console, the one in use first; None without one."""
    known = [contexts.used, *contexts.contexts.values()]
    return next((each for each in known if each is not None and each.url == url), None)


def require(contexts: Contexts, name: str) -> Context:
    """Return the context of this name. Raises CommandError when it does not exist."""
    if name not in contexts.contexts:
        raise CommandError(
            f"context {name} not found",
            hint="list them: waypost context list",
            code=Exit.USAGE,
            error="context-not-found",
        )
    return contexts.contexts[name]
