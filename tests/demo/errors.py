"""Error of a demo that cannot continue."""

from __future__ import annotations


class DemoError(Exception):
    """Part of the demo failed to run; `detail` has its last log lines."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
