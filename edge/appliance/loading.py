"""Lazy import of commands. If a command's packages are not installed, the error names the extra that has them."""

from __future__ import annotations

import importlib
from typing import Final

import click

from edge.appliance.commands import PARTS, LazyCommand
from edge.appliance.program import as_called, frozen
from edge.output.errors import CommandError, Exit

PACKAGES: Final = ("bridge", "edge", "cloud", "spark", "images", "simulator")
"""Import packages of Waypost: a module missing in one of them is a fault of the program, not of the installation."""


def load(name: str, entry: LazyCommand) -> click.Command:
    """Import one command. Raises `CommandError`, with the extra to install, when a third-party package is missing."""
    command = _import(name, entry)
    if isinstance(command, click.Group):
        for word, part in PARTS.get(name, {}).items():
            command.add_command(_part(f"{name} {word}", part), word)
    from edge.appliance.completing import give_values  # noqa: PLC0415 - help needs none
    from edge.appliance.where import give_defaults  # noqa: PLC0415

    name_as_called(command)
    give_defaults(command, (name,))
    give_values(command, (name,))
    return command


def _import(name: str, entry: LazyCommand) -> click.Command:
    """Import the module of a command. Raises as `load`."""
    module_name, _, attribute = entry.place.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as why:
        if why.name in PACKAGES and frozen():
            message = f"`waypost {name}` is not part of this program, which only runs a gateway"
            raise CommandError(
                message, hint="use a checkout or the Python package", code=Exit.USAGE, error="package-missing"
            ) from why
        missing = (why.name or "").partition(".")[0]
        if not missing or missing in PACKAGES:
            raise
        raise CommandError(
            f"`waypost {name}` needs the Python package {missing}, which is not installed",
            hint=f"install the extra that has it: pip install 'waypost[{entry.extra}]'",
            code=Exit.USAGE,
            error="package-missing",
        ) from why
    command: click.Command = getattr(module, attribute)
    return command


def _part(name: str, entry: LazyCommand) -> click.Command:
    """Import a command of a group; where its package is not installed, return one that says so when it is used."""
    try:
        return _import(name, entry)
    except CommandError as why:
        missing = why

    def fail() -> None:
        raise missing

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name.rsplit(maxsplit=1)[-1], callback=fail, help=entry.help, context_settings=settings)


def name_as_called(command: click.Command) -> None:
    """Put the name that the user called into the help of a command and its subcommands."""
    command.help = as_called(command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            parameter.help = as_called(parameter.help or "")
    if isinstance(command, click.Group):
        for below in command.commands.values():
            name_as_called(below)
