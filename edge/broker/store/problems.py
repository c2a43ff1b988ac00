"""Current problems of a store as texts, for `/healthz`, the status page and the log."""

from __future__ import annotations

from typing import Final

COMMITS: Final = "commits"
"""Subject of failing commits. The subject of a log that cannot be read is `READING` and its name."""
CHECKPOINTS: Final = "checkpoints"
"""Subject of a problem with moving the write-ahead log."""
READING: Final = "reading "


class Problems:
    """One text for each subject. Called on any thread: each method is a single dict operation."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def report(self, about: str, text: str) -> bool:
        """Set the problem of a subject. Return True when it is new."""
        before = self._texts.get(about)
        self._texts[about] = text
        return before != text

    def solved(self, about: str) -> bool:
        """Clear the problem of a subject. Return True when it had one."""
        return bool(self._texts) and self._texts.pop(about, None) is not None

    def texts(self) -> list[str]:
        """Return all problems, oldest first."""
        return list(self._texts.values())
