"""Reads of one subscription: returned messages first, then the next ones, one piece at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from bridge.message import Stored
from edge.broker.delivery.cursor_window import CursorWindow
from edge.broker.limits import READ_BYTES_MAX
from edge.broker.store.contract import MessageLogs


class ReadingSubscription(Protocol):
    """Subscription that reads."""

    def handle_returned(self, runs: Sequence[Stored], start: int) -> None:
        """Take a read from `start` on, for returned messages."""
        ...

    def handle_next(self, runs: Sequence[Stored]) -> None:
        """Take a read from the position of the window on; no runs: the end of the log is reached."""
        ...

    def pump(self) -> None:
        """Read again: the last read is useless."""
        ...

    def handle_error(self, error: Exception) -> None:
        """Handle an exception of these methods."""
        ...


class LogReader:
    """One read at a time for a subscription."""

    __slots__ = ("_closed", "_logs", "_stale", "_subscription", "_window", "reading")

    def __init__(self, logs: MessageLogs, window: CursorWindow, subscription: ReadingSubscription) -> None:
        self.reading = False
        """True while the store has not answered."""
        self._logs = logs
        self._window = window
        self._subscription = subscription
        self._stale = False
        self._closed = False

    def read(self) -> None:
        """Ask the store, unless a read is under way."""
        if self.reading or self._closed:
            return
        self.reading = True
        window = self._window
        returned = bool(window.returned)
        start = window.returned.first if returned else window.next
        self._logs.read(window.log, start, READ_BYTES_MAX, partial(self._on_read, start, returned=returned))

    def discard(self) -> None:
        """Discard the read under way: the next one starts with the oldest message."""
        self._stale = self.reading

    def close(self) -> None:
        """Stop reading."""
        self._closed = True

    def _on_read(self, start: int, runs: Sequence[Stored], *, returned: bool) -> None:
        stale, self.reading, self._stale = self._stale, False, False
        if self._closed:
            return
        try:
            if stale:
                self._subscription.pump()
            elif returned:
                self._subscription.handle_returned(runs, start)
            else:
                self._subscription.handle_next(runs)
        except Exception as error:
            self._subscription.handle_error(error)
