"""Position of a subscription in its log: messages that were read, taken out of order, or returned.

All positions below `next` were read: they are with a consumer, settled, buffered, or in `returned`, to be read again.
Positions from `next` on were not read, except for those in `done`: acknowledged before a restart, or taken since.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import Cursors, MessageLogs
from edge.broker.store.records import CursorRecord


class CursorWindow:
    """Read position of one subscription. It moves the cursor in the store; it does not know which consumer has a
    message."""

    __slots__ = ("_cursors", "_logs", "cursor", "done", "log", "next", "returned")

    def __init__(self, logs: MessageLogs, cursors: Cursors, record: CursorRecord) -> None:
        self.log = record.log
        self.cursor = record.cursor
        self._logs = logs
        self._cursors = cursors
        self.next = record.position
        self.done = Ranges()
        self.returned = Ranges()
        self.restart(())

    def restart(self, held: Iterable[tuple[int, int]]) -> None:
        """Start again from the store: all unacknowledged messages are available, except for those that are `held`."""
        record = self._cursors.record(self.cursor)
        self.next = record.position
        self.returned = Ranges()
        self.done = Ranges()
        for first, last in (*record.acknowledged, *held):
            if last >= self.next:
                self.done.add(max(first, self.next), last)

    @property
    def end(self) -> int:
        """Next free position of the log."""
        return self._logs.bounds(self.log)[1]

    @property
    def lowest(self) -> int:
        """Position below which no message is available."""
        return min(self.returned.first, self.next) if self.returned else self.next

    def free_from(self, position: int) -> int:
        """Return the first position from here on that may be available."""
        if position < self.next:
            returned = self.returned.following(position)
            position = self.next if returned is None else returned
        return self.done.free_from(position) if position >= self.next else position

    def available(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of ``first..last`` that are available."""
        following = self.next
        if first >= following:
            return self.done.outside(first, last)
        parts = self.returned.within(first, min(last, following - 1))
        return parts + self.done.outside(following, last) if last >= following else parts

    def take(self, first: int, last: int) -> None:
        """Take these positions; the cursor will pass them."""
        self.returned.remove(first, last)
        if last < self.next:
            return
        done = self.done
        done.add(max(first, self.next), last)
        if done.first <= self.next:
            self.next = done.free_from(self.next)
            done.remove(0, self.next - 1)

    def requeue(self, first: int, last: int) -> None:
        """Make these positions available again."""
        if first < self.next:
            self.returned.add(first, min(last, self.next - 1))
        if last >= self.next:
            self.done.remove(max(first, self.next), last)  # taken out of order: they are read in order now

    def advance(self, first: int, last: int) -> list[tuple[int, int]]:
        """Move past ``first..last``, and return the available parts of it. Positions below `first` are skipped."""
        self.skip_to(first)
        first = max(first, self.next)
        self.next = last + 1
        if not self.done:
            return [(first, last)]
        parts = self.done.outside(first, last)
        self.done.remove(0, last)
        return parts

    def release_all(self) -> Ranges:
        """Continue at the end of the log. Return the available positions, which another lane delivers."""
        end, left = self.end, Ranges()
        for first, last in self.available(self.lowest, end - 1):
            left.add(first, last)
        self.next, self.done, self.returned = max(self.next, end), Ranges(), Ranges()
        return left

    def skip_to(self, position: int) -> None:
        """Acknowledge unread positions below `position`, which the subscription does not want."""
        if position > self.next:
            self._cursors.acknowledge(self.cursor, self.next, position - 1)
            self.next = position

    def acknowledge(self, first: int, last: int) -> None:
        """Acknowledge these positions."""
        self._cursors.acknowledge(self.cursor, first, last)
