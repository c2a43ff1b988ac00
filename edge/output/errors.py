"""Errors of commands: what is wrong, the next step, a stable code, and a documented exit status."""

from __future__ import annotations

import enum
from typing import IO, Any

import click

from edge.output.terminal import say


class Exit(enum.IntEnum):
    """Exit statuses of all commands."""

    DONE = 0
    FAILED = 1
    """The requested operation failed."""
    USAGE = 2
    """Wrong usage or configuration."""
    UNREACHABLE = 3
    """A peer could not be reached."""
    INTEGRITY = 4
    """Data are damaged or inconsistent."""


class CommandError(click.ClickException):
    """Error for the user, with the next step; never shown as a traceback.

    `message` says what is wrong, `hint` the next step; both may have several lines. `error` is its code for
    `waypost explain`, `code` the exit status.
    """

    def __init__(self, message: str, hint: str = "", *, error: str, code: int = Exit.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.error = error
        self.exit_code = int(code)  # type: ignore[misc]  # a class attribute in click, set for each error here

    def show(self, file: IO[Any] | None = None) -> None:
        """Print ``error[CODE]: …`` and the hint, to stderr by default."""
        show_error(self.message, self.hint, error=self.error, file=file)


def show_error(message: str, hint: str = "", *, error: str, file: IO[Any] | None = None) -> None:
    """Print an error and its hint, in the form that all commands share."""
    say(f"error[{error}]: ", style="red bold", nl=False, file=file, err=True)
    say(message, file=file, err=True)
    for line in hint.splitlines():
        say(f"  {line}", style="dim", file=file, err=True)
