"""How a command ends when it cannot do what it was asked: one clear line, the next step, a documented exit code."""

from __future__ import annotations

import enum
from typing import IO, Any

import click

from edge.appliance.program import as_called
from edge.output.terminal import say


class Exit(enum.IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    """The thing asked for failed."""
    USAGE = 2
    """Wrong usage or configuration."""
    UNREACHABLE = 3
    """A peer could not be reached."""
    INTEGRITY = 4
    """Data are not what they must be."""


class CommandError(click.ClickException):
    """Something the person at the keyboard should know, and what to do about it; never shown as a traceback.

    `message` says what is wrong, `hint` the next step (both may have several lines), `code` how the program exits.
    """

    def __init__(self, message: str, *, hint: str = "", code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = int(code)  # type: ignore[misc]  # click gives it to a class, we to each error

    def show(self, file: IO[Any] | None = None) -> None:
        """Print ``error: …`` and the hint, to stderr unless told otherwise."""
        show_error(self.message, self.hint, file)


def show_error(message: str, hint: str = "", file: IO[Any] | None = None) -> None:
    """The one form in which an error reaches a person."""
    say("error: ", style="red bold", nl=False, file=file, err=True)
    say(as_called(message), file=file, err=True)
    for line in as_called(hint).splitlines():
        say(f"  {line}", style="dim", file=file, err=True)
