"""How much all logs hold together, for status pages: added up some logs at a time, as there may be many."""

from __future__ import annotations

from edge.broker.store.limits import LOGS_ADDED_UP_MAX
from edge.broker.store.logs import LogTable
from edge.broker.store.memory_buffer import MemoryBuffer


class Census:
    """Runs on the event loop's thread."""

    def __init__(self, logs: LogTable, buffer: MemoryBuffer) -> None:
        self._logs = logs
        self._buffer = buffer
        self._at = 1
        self._sums = (0, 0)
        """Of this round, so far."""
        self._found = (0, 0)
        """Of the last whole round."""

    def take(self) -> tuple[int, int]:
        """(messages, bytes of bodies), exact up to `LOGS_ADDED_UP_MAX` logs; with more, as of some calls ago."""
        (messages, size), number = self._sums, self._at
        for number in range(self._at, min(self._at + LOGS_ADDED_UP_MAX, len(self._logs) + 1)):
            state = self._logs[number]
            messages += state.next - self._buffer.kept_from(state)
            size += state.bytes + self._buffer.bytes_of(state)
        if number >= len(self._logs):
            self._found, self._sums, self._at = (messages, size), (0, 0), 1
        else:
            self._sums, self._at = (messages, size), number + 1
        return self._found
