"""How the demo ends when it cannot go on."""

from __future__ import annotations


class DemoError(Exception):
    """Something of the demo failed to run; `detail` are the last lines of what it logged."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
