"""`waypost-flash`: the command `waypost flash` as a program of its own, for machines without Waypost."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import Final

import click

from bridge.version import VERSION
from edge.output.errors import show_error
from images.errors import FAILED, INTERRUPTED, USAGE
from images.flashing.cli import flash

NAME: Final = "waypost-flash"
COMMAND: Final = "waypost flash"
"""Name of the command in texts."""


def make_command() -> click.Command:
    """Return the command with this program's name and version."""
    command = copy.copy(flash)
    command.help = (flash.help or "").replace(COMMAND, NAME)
    command.params = [*flash.params]
    version: click.Command = click.version_option(VERSION, prog_name=NAME, message="%(prog)s %(version)s")(command)
    return version


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code. Errors of the user are shown without a traceback."""
    try:
        result = make_command().main(args=arguments, prog_name=NAME, standalone_mode=False)
    except click.exceptions.Abort:
        show_error("interrupted", error="interrupted")
        return INTERRUPTED
    except click.UsageError as why:
        show_error(why.format_message(), f"see {NAME} --help", error="wrong-usage")
        return USAGE
    except click.ClickException as why:
        hint = str(getattr(why, "hint", "")).replace(COMMAND, NAME)
        show_error(why.format_message().replace(COMMAND, NAME), hint, error=str(getattr(why, "error", "image-failed")))
        return why.exit_code
    return result if isinstance(result, int) else 0


def restore_library_path(environment: MutableMapping[str, str]) -> None:
    """Let other programs (openssl) load their own libraries, and not those that this program has unpacked.

    PyInstaller's boot loader keeps the former value under another name.
    """
    former = environment.pop("LD_LIBRARY_PATH_ORIG", None)
    environment.pop("LD_LIBRARY_PATH", None)
    if former is not None:
        environment["LD_LIBRARY_PATH"] = former


def main() -> None:
    """Run the program."""
    if getattr(sys, "frozen", False):
        restore_library_path(os.environ)
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        code = FAILED
    sys.exit(code)


if __name__ == "__main__":
    main()
