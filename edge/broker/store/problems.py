"""What keeps a store from doing its work, in words: for the log, for `/healthz` and for the status page."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

COMMITS: Final = "commits"
"""What commits are about; a log that cannot be read is known by its name, with `READING` before it."""
READING: Final = "reading "


class Problems:
    """One text for each thing in trouble. Called on any thread: each method is one operation of a dict."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def report(self, about: str, text: str) -> None:
        """`about` is in trouble; logged once for as long as the text stays the same."""
        if self._texts.get(about) != text:
            self._texts[about] = text
            logger.error("%s", text)

    def solved(self, about: str) -> None:
        """`about` does its work; nothing happens when it did before."""
        if self._texts and self._texts.pop(about, None) is not None:
            logger.warning("%s: works again", about)

    def texts(self) -> list[str]:
        """All of them, in the order in which they began."""
        return list(self._texts.values())
