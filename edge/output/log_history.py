"""The latest lines of the log, and the latest events, in memory: for a console and for commands.

Lines have numbers that increase, also over a restart, as the first one is the time of the start in milliseconds. So a
client that asks for lines after a number misses none that is still here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

from edge.output.limits import EVENTS_KEPT_MAX, HISTORY_CHARACTERS_MAX, LINES_KEPT_MAX

EVENT: Final = "event"
"""Key of a record's ``extra`` with the kind of its event."""


class LogLine(NamedTuple):
    """One line of the log, with the frames of its exception."""

    number: int
    at: float
    """UTC seconds since 1970."""
    level: int
    logger: str
    text: str
    event: str
    """Kind of the event; empty for a line that is none."""


class LogExtract(NamedTuple):
    """Lines after a number, the oldest first."""

    lines: Sequence[LogLine]
    next: int
    """Number after which the next extract continues."""
    missed: int
    """Lines after the number that are here no longer, or were too many for the extract."""


def event(kind: str) -> Mapping[str, Any]:
    """Return the ``extra`` of a log line that is an event: something that a person wants to find later."""
    return {EVENT: kind}


class LogHistory:
    """Ring of log lines; any thread may use it."""

    def __init__(self, lines_max: int, characters_max: int, clock: Callable[[], float] = time.time) -> None:
        """`clock`: UTC seconds since 1970."""
        self.lines_max: Final = lines_max
        self._lines: deque[LogLine] = deque()
        self._characters_max = characters_max
        self._characters = 0
        self._newest = int(clock() * 1_000)
        self._lock = threading.Lock()

    @property
    def newest(self) -> int:
        """Number of the last line, or of the one before the first."""
        return self._newest

    def add(self, record: logging.LogRecord, text: str) -> None:
        """Add a line; the oldest ones give way."""
        with self._lock:
            self._newest += 1
            kind = record.__dict__.get(EVENT, "")
            self._lines.append(LogLine(self._newest, record.created, record.levelno, record.name, text, kind))
            self._characters += len(text)
            self._make_room()

    def restore(self, lines: Sequence[LogLine]) -> None:
        """Put the lines of an earlier process before the first one.

        After a clock that was set back they may have higher numbers; then the lines of this process get new numbers.
        """
        if not lines:
            return
        with self._lock:
            present, last = list(self._lines), max(line.number for line in lines)
            if present and present[0].number <= last:
                present = [line._replace(number=last + place) for place, line in enumerate(present, 1)]
            self._newest = max(self._newest, last, present[-1].number if present else 0)
            self._lines = deque([*sorted(lines), *present])
            self._characters = sum(len(line.text) for line in self._lines)
            self._make_room()

    def _make_room(self) -> None:
        while len(self._lines) > self.lines_max or self._characters > self._characters_max:
            self._characters -= len(self._lines.popleft().text)

    def after(
        self, number: int | None, lines_max: int, wanted: Callable[[LogLine], bool] = lambda _line: True
    ) -> LogExtract:
        """Return the next wanted lines after a number, at most `lines_max`. None: the last ones.

        A number that is not from here, because the clock was set back, counts as none.
        """
        with self._lock:
            lines, newest = list(self._lines), self._newest
        if number is None or number > newest:
            found = [line for line in lines if wanted(line)]
            return LogExtract(found[-lines_max:], newest, 0)
        later = list(takewhile(lambda line: line.number > number, reversed(lines)))[::-1]
        known = bool(lines) and number >= lines[0].number - 1
        gone = 0 if known else newest - number - len(later)
        found = list(islice((line for line in later if wanted(line)), lines_max))
        return LogExtract(found, found[-1].number if len(found) == lines_max else newest, gone)

    def tail(self, number: int, lines_max: int, characters_max: int) -> LogExtract:
        """Return the last lines after a number, as many as there is room for; the others are missed."""
        extract = self.after(number, self.lines_max)
        kept = deque[LogLine]()
        for line in reversed(extract.lines):
            characters_max -= len(line.text)
            if len(kept) >= lines_max or characters_max < 0:
                break
            kept.appendleft(line)
        return LogExtract(kept, extract.next, extract.missed + len(extract.lines) - len(kept))


class LogHistories(NamedTuple):
    """Latest lines and events of a process."""

    lines: LogHistory
    events: LogHistory
    """Events only, which stay longer than the lines around them."""

    @classmethod
    def empty(cls) -> LogHistories:
        """Return histories without a line."""
        return cls(
            LogHistory(LINES_KEPT_MAX, HISTORY_CHARACTERS_MAX), LogHistory(EVENTS_KEPT_MAX, HISTORY_CHARACTERS_MAX)
        )

    def add(self, record: logging.LogRecord, text: str) -> None:
        """Add a line."""
        self.lines.add(record, text)
        if EVENT in record.__dict__:
            self.events.add(record, text)
