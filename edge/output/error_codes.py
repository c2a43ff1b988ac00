"""Codes of errors that a command does not raise itself: of click, by their class.

Each code has a cause and a next step in `docs/generate/errors.toml`, for `waypost explain CODE` and the reference.
"""

from __future__ import annotations

from typing import Final

import click

_CLICK: Final[tuple[tuple[type[click.ClickException], str], ...]] = (
    (click.exceptions.NoSuchCommand, "unknown-command"),
    (click.NoSuchOption, "unknown-option"),
    (click.MissingParameter, "missing-parameter"),
    (click.BadParameter, "invalid-value"),
    (click.FileError, "file-not-accessible"),
    (click.UsageError, "wrong-usage"),
)


def code_of_click(error: click.ClickException) -> str:
    """Return the code of an error that has none of its own."""
    own = getattr(error, "error", None)
    return own or next((code for kind, code in _CLICK if isinstance(error, kind)), "failed")
