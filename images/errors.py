"""How making an image ends when it cannot be done: what is wrong, and the next step; never a traceback."""

from __future__ import annotations

import click

FAILED, USAGE, INTEGRITY, INTERRUPTED = 1, 2, 4, 130
"""Exit codes, beside 0: it failed; wrong usage, or a program is missing; data are not what they must be; Ctrl-C."""


class ImageError(click.ClickException):
    """`message` says what is wrong, `hint` what to do; both may have several lines."""

    def __init__(self, message: str, *, hint: str = "", code: int = FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = code  # type: ignore[misc]  # click gives it to a class, we to each error
