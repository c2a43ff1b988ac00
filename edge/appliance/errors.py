"""Errors of commands: one line that says what is wrong, the next step, and a documented exit code."""

from __future__ import annotations

import enum
from typing import IO, Any

import click

from edge.appliance.program import as_called
from edge.output.terminal import say


class Exit(enum.IntEnum):
    """Exit codes of all commands."""

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

    `message` says what is wrong, `hint` the next step; both may have several lines. `code` is the exit code.
    """

    def __init__(self, message: str, *, hint: str = "", code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = int(code)  # type: ignore[misc]  # a class attribute in click, set for each error here

    def show(self, file: IO[Any] | None = None) -> None:
        """Print ``error: …`` and the hint, to stderr by default."""
        show_error(self.message, self.hint, file)


def show_json_error(message: str, hint: str, code: int) -> None:
    """Print an error as one line of JSON to stderr, for a command that prints JSON."""
    import json  # noqa: PLC0415 - only here

    item = {"exit": code, "message": as_called(message), "next": as_called(hint)}
    click.echo(json.dumps({"schema": 1, "kind": "error", "items": [item]}, ensure_ascii=False), err=True)


def show_error(message: str, hint: str = "", file: IO[Any] | None = None) -> None:
    """Print an error and its hint, in the form that all commands share."""
    say("error: ", style="red bold", nl=False, file=file, err=True)
    say(as_called(message), file=file, err=True)
    for line in as_called(hint).splitlines():
        say(f"  {line}", style="dim", file=file, err=True)
