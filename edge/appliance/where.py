"""Default of `--data`: a variable, the context in use, else the only gateway or hub that runs here.

A context may be a URL instead.

Commands of all packages declare `--data` without a default. They get this one when they are loaded, because only this
package knows where gateways and hubs of a machine are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from edge.appliance.commands import FLEET, HIDDEN
from edge.output.errors import CommandError, Exit
from edge.output.text import word
from edge.remote import contexts

if TYPE_CHECKING:
    from edge.appliance.here import DataDirectory, Role

VARIABLE: Final = "WAYPOST_DATA"
OPTION: Final = "--data"
CREATES: Final = frozenset({("run",), ("init",), ("hub", "run"), ("context", "add")})
"""Commands that make what is missing, or that need the directory from the user."""
CANDIDATES_MAX: Final = 10
"""Directories named in an error."""
_OF_BOTH: Final = frozenset({"open", "log", "audit", "events"})
_OPTIONAL: Final = frozenset({"doctor"})
"""Commands that do something else without a directory."""
_ADDRESSES: Final = ("http", "hub")
"""Parameters with the address of a console: a command that has one works from any machine."""


def give_defaults(command: click.Command, words: Sequence[str]) -> None:
    """Give the options `--data` of a command and of those below it their default."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            give_defaults(below, (*words, name))
    if tuple(words) in CREATES or words[0] in HIDDEN:
        return
    for parameter in command.params:
        if OPTION in parameter.opts and not is_found(parameter):
            parameter.default = partial(_find, words[0], required=parameter.required)
            parameter.required = False  # `_find` sees to it, and has a better error


def is_found(parameter: click.Parameter) -> bool:
    """Return True for an option `--data` with the default of this module."""
    return isinstance(parameter.default, partial) and parameter.default.func is _find


def _find(first: str, *, required: bool) -> str | None:
    """Return the data directory for a command that was given none; `first` is its first word. Raises CommandError."""
    context = click.get_current_context(silent=True)
    if context is not None and context.resilient_parsing:
        return None  # a shell completes the line
    return find_data(first, context, required=required)


def find_data(first: str, context: click.Context | None, *, required: bool) -> str | None:
    """Return the data directory of the variable, of the context in use, or of the only node that runs here.

    An address on the command line replaces all of them, and the result is None. Raises CommandError.
    """
    from edge.appliance import here  # noqa: PLC0415 - only for a command without --data

    role = None if first in _OF_BOTH else here.Role.HUB if first in FLEET else here.Role.GATEWAY
    if context is not None and any(context.params.get(name) is not None for name in _ADDRESSES):
        return None  # the address is another gateway's, perhaps: it must not get the token of this one
    if named := os.environ.get(VARIABLE):
        return named
    used = contexts.read().used
    if used is not None and used.url and (role is None or used.role in ("", role.value)):
        if not required or (context is not None and _takes_address(context.command)):
            return None
        hint = f"run it on that machine, or give {OPTION}; another context: waypost context use NAME"
        raise CommandError(
            f"the context in use is {used.url}, and this command needs a data directory",
            hint,
            code=Exit.USAGE,
            error="no-data-directory",
        )
    if used is not None and used.data and (role is None or here.role_of(Path(used.data)) in (role, None)):
        return used.data
    found = [each for each in here.directories() if role in (None, each.role)]
    running = [each for each in found if each.running]
    if len(running) == 1 and running[0].readable:
        return str(running[0].path)
    if not required and (not running or first in _OPTIONAL):
        return None
    raise _missing(role, found, running)


def _takes_address(command: click.Command) -> bool:
    return any(parameter.name in _ADDRESSES for parameter in command.params)


def _missing(role: Role | None, found: Sequence[DataDirectory], running: Sequence[DataDirectory]) -> CommandError:
    """Return the error that names the directories to choose from."""
    thing = "gateway or hub" if role is None else role.value
    what = f"{len(running)} of them run here" if len(running) > 1 else f"no {thing} runs here"
    lines = [f"give {OPTION} DIR, set {VARIABLE}, or choose one for good: waypost context add NAME --data DIR"]
    for each in found[:CANDIDATES_MAX]:
        state = "runs" if each.running else "does not run"
        state = state if each.readable else "not readable for this user: sudo -u waypost …"
        lines.append(f"{OPTION} {word(each.path)}  ({each.role.value}, {state})")
    return CommandError(
        f"Missing option '{OPTION}': {what}", hint="\n".join(lines), code=Exit.USAGE, error="no-data-directory"
    )
