"""What keeps a store from doing its work, in words: for `/healthz`, the status page and the log."""

from __future__ import annotations

from typing import Final

COMMITS: Final = "commits"
"""What commits are in trouble about; a log that cannot be read is known by its name, with `READING` before it."""
CHECKPOINTS: Final = "checkpoints"
"""The subject of a problem with moving the write-ahead log."""
READING: Final = "reading "


class Problems:
    """One text for each thing in trouble. Called on any thread: each method is one operation of a dict."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def report(self, about: str, text: str) -> bool:
        """`about` is in trouble; True when that is news."""
        before = self._texts.get(about)
        self._texts[about] = text
        return before != text

    def solved(self, about: str) -> bool:
        """`about` does its work; True when that is news."""
        return bool(self._texts) and self._texts.pop(about, None) is not None

    def texts(self) -> list[str]:
        """All of them, in the order in which they began."""
        return list(self._texts.values())
