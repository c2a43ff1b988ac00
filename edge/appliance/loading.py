"""A command is imported when it is used; one whose packages are not installed says which extra brings them."""

from __future__ import annotations

import importlib
from typing import Final

import click

from edge.appliance.commands import CommandEntry
from edge.appliance.errors import CommandError, Exit
from edge.appliance.program import as_called, frozen

PACKAGES: Final = ("bridge", "edge", "cloud", "spark", "images")
"""Our own import packages: a module missing in one of them is a fault of the program, not of the installation."""


def load(name: str, entry: CommandEntry) -> click.Command:
    """Import one command. Raises `CommandError` naming the extra when a package of somebody else's is missing."""
    module_name, _, attribute = entry.place.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as why:
        if why.name in PACKAGES and frozen():
            message = f"`waypost {name}` is not in this program, which is a gateway's alone"
            raise CommandError(message, hint="it is in a checkout, and in the Python package", code=Exit.USAGE) from why
        missing = (why.name or "").partition(".")[0]
        if not missing or missing in PACKAGES:
            raise
        raise CommandError(
            f"`waypost {name}` needs the Python package {missing}, which is not installed",
            hint=f"install the extra that brings it: pip install 'waypost[{entry.extra}]'",
            code=Exit.USAGE,
        ) from why
    command: click.Command = getattr(module, attribute)
    name_as_called(command)
    return command


def name_as_called(command: click.Command) -> None:
    """In the help of a command and those below it the program is called what it was called."""
    command.help = as_called(command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            parameter.help = as_called(parameter.help or "")
    if isinstance(command, click.Group):
        for below in command.commands.values():
            name_as_called(below)
