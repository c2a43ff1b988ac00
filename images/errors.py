"""Errors of the image commands: what is wrong, and the next step, without a traceback."""

from __future__ import annotations

import click

FAILED, USAGE, INTEGRITY, INTERRUPTED = 1, 2, 4, 130
"""Exit codes other than 0: failed; wrong usage or a missing program; invalid data; interrupted by Ctrl-C."""

_CODES = {FAILED: "image-failed", USAGE: "image-refused", INTEGRITY: "image-damaged", INTERRUPTED: "interrupted"}


class ImageError(click.ClickException):
    """`message` says what is wrong, `hint` the next step; both may have several lines."""

    def __init__(self, message: str, *, hint: str = "", code: int = FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.error = _CODES.get(code, "image-failed")
        """Code for `waypost explain`."""
        self.exit_code = code  # type: ignore[misc]  # click gives it to a class, we to each error
