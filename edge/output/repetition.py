"""Rate limit of repeated log lines, with a summary of how many were omitted.

A kind is a logger with a text before its values are filled in. Its peer is the first value, without a port. There is a
limit for each peer, so that one that floods the log does not suppress lines about others, and one for all peers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from edge.output.limits import (
    REPETITION_KINDS_MAX,
    REPETITION_OF_ALL_MAX,
    REPETITION_OF_ONE_MAX,
    REPETITION_S,
)

Kind = tuple[str, int, str]


class Repetition:
    """Count lines in periods of `REPETITION_S`. Lines of level DEBUG are never limited."""

    def __init__(self, now: float) -> None:
        self.left_out = 0
        """Lines omitted since the start."""
        self._began = now
        self._lines: Counter[tuple[Kind, str]] = Counter()
        self._kinds: Counter[Kind] = Counter()
        self._skipped: Counter[Kind] = Counter()
        self._last: dict[Kind, logging.LogRecord] = {}
        """Last omitted line of each kind."""

    def admits(self, record: logging.LogRecord) -> bool:
        """Return True when a line is to be written. Call `summaries` before."""
        if record.levelno <= logging.DEBUG:
            return True
        kind = (record.name, record.levelno, str(record.msg))
        if kind not in self._kinds and len(self._kinds) >= REPETITION_KINDS_MAX:
            kind = (record.name, record.levelno, "")
        about = (kind, _about(record))
        if about in self._lines or len(self._lines) < REPETITION_KINDS_MAX:
            self._lines[about] += 1
        if self._lines[about] > REPETITION_OF_ONE_MAX or self._kinds[kind] >= REPETITION_OF_ALL_MAX:
            self._skipped[kind] += 1
            self._last[kind] = record
            self.left_out += 1
            return False
        self._kinds[kind] += 1
        return True

    def summaries(self, now: float) -> Iterator[logging.LogRecord]:
        """Yield the summaries of the period if it is over."""
        passed = now - self._began
        if passed < REPETITION_S:
            return
        skipped, self._skipped = self._skipped, Counter()
        last, self._last = self._last, {}
        self._began = now
        self._lines.clear()
        self._kinds.clear()
        for kind, count in skipped.items():
            name, level, _ = kind
            values = (count, passed, last[kind].getMessage())
            yield logging.LogRecord(name, level, "", 0, "%d more in %.0f s, the last of them: %s", values, None)

    @property
    def waiting(self) -> bool:
        """True when lines were omitted that no summary has reported yet."""
        return bool(self._skipped)

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next summary; None: no lines were omitted."""
        return max(0.0, self._began + REPETITION_S - now) if self._skipped else None


def _about(record: logging.LogRecord) -> str:
    first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
    if not isinstance(first, str):
        return ""
    host, colon, port = first.rpartition(":")
    return host if colon and port.isdecimal() else first[:200]
