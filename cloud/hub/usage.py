"""Errors of the `waypost hub` commands."""

from __future__ import annotations

import click


class UsageProblem(click.ClickException):
    """Wrong usage or configuration; `hint` is the next step."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class CommandFailed(UsageProblem):
    """The command could not do its work."""

    exit_code = 1
