"""Reading of one subscription: what came back first, then what follows; one piece at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from bridge.message import Stored
from edge.broker.delivery.cursor_window import CursorWindow
from edge.broker.limits import READ_BYTES_MAX
from edge.broker.store.contract import MessageLogs


class ReadingSubscription(Protocol):
    """For whom is read."""

    def were_returned(self, runs: Sequence[Stored], start: int) -> None:
        """Read from `start` on, for what came back."""
        ...

    def follow(self, runs: Sequence[Stored]) -> None:
        """Read from where the window stands; nothing: there is no more."""
        ...

    def pump(self) -> None:
        """What was read is of no use: read again what is wanted now."""
        ...

    def raised(self, error: Exception) -> None:
        """One of these raised."""
        ...


class LogReader:
    """See the module's docstring."""

    __slots__ = ("_closed", "_logs", "_stale", "_subscription", "_window", "reading")

    def __init__(self, logs: MessageLogs, window: CursorWindow, subscription: ReadingSubscription) -> None:
        self.reading = False
        """The store has been asked, and has not answered yet."""
        self._logs = logs
        self._window = window
        self._subscription = subscription
        self._stale = False
        self._closed = False

    def read(self) -> None:
        """Ask the store, unless it is being asked."""
        if self.reading or self._closed:
            return
        self.reading = True
        window = self._window
        returned = bool(window.returned)
        start = window.returned.first if returned else window.next
        self._logs.read(window.log, start, READ_BYTES_MAX, partial(self._was_read, start, returned=returned))

    def discard(self) -> None:
        """What is being read is of no use any more: who comes next begins with the oldest there is."""
        self._stale = self.reading

    def close(self) -> None:
        """Nothing is wanted any more."""
        self._closed = True

    def _was_read(self, start: int, runs: Sequence[Stored], *, returned: bool) -> None:
        stale, self.reading, self._stale = self._stale, False, False
        if self._closed:
            return
        try:
            if stale:
                self._subscription.pump()
            elif returned:
                self._subscription.were_returned(runs, start)
            else:
                self._subscription.follow(runs)
        except Exception as error:
            self._subscription.raised(error)
