"""Where a subscription stands in its log: what it has looked at, what was taken out of turn, what came back.

Everything below `next` has been looked at: it is with a consumer, settled, waiting in memory, or among `returned`, to
be read again. From `next` on nothing has, but for what is `done`: acknowledged before a restart, or taken since.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import Cursors, MessageLogs
from edge.broker.store.records import CursorRecord


class CursorWindow:
    """See the module's docstring. It moves the cursor in the store; who has a message it does not know."""

    __slots__ = ("_cursors", "_logs", "cursor", "done", "log", "next", "returned")

    def __init__(self, logs: MessageLogs, cursors: Cursors, record: CursorRecord) -> None:
        self.log = record.log
        self.cursor = record.cursor
        self._logs = logs
        self._cursors = cursors
        self.next = record.position
        self.done = Ranges()
        self.returned = Ranges()
        self.begin_anew(())

    def begin_anew(self, held: Iterable[tuple[int, int]]) -> None:
        """Go by what the store has: all that is not acknowledged is to be had, but for what is `held`."""
        record = self._cursors.record(self.cursor)
        self.next = record.position
        self.returned = Ranges()
        self.done = Ranges()
        for first, last in (*record.acknowledged, *held):
            if last >= self.next:
                self.done.add(max(first, self.next), last)

    @property
    def end(self) -> int:
        """The next position the store gives in the log."""
        return self._logs.bounds(self.log)[1]

    @property
    def lowest(self) -> int:
        """No message below is to be had."""
        return min(self.returned.first, self.next) if self.returned else self.next

    def free_from(self, position: int) -> int:
        """The first position from here on that may be to be had."""
        if position < self.next:
            returned = self.returned.following(position)
            position = self.next if returned is None else returned
        return self.done.free_from(position) if position >= self.next else position

    def available(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of ``first..last`` nobody has."""
        following = self.next
        if first >= following:
            return self.done.outside(first, last)
        parts = self.returned.within(first, min(last, following - 1))
        return parts + self.done.outside(following, last) if last >= following else parts

    def take(self, first: int, last: int) -> None:
        """These are somebody's now; the cursor will pass them by."""
        self.returned.remove(first, last)
        if last < self.next:
            return
        done = self.done
        done.add(max(first, self.next), last)
        if done.first <= self.next:
            self.next = done.free_from(self.next)
            done.remove(0, self.next - 1)

    def give_back(self, first: int, last: int) -> None:
        """Nobody has these any more."""
        if first < self.next:
            self.returned.add(first, min(last, self.next - 1))
        if last >= self.next:
            self.done.remove(max(first, self.next), last)  # taken out of turn: they are met in turn

    def look_at(self, first: int, last: int) -> list[tuple[int, int]]:
        """Move on behind ``first..last``; returns what of it nobody has. What lies before it concerns nobody here."""
        self.skip_to(first)
        first = max(first, self.next)
        self.next = last + 1
        if not self.done:
            return [(first, last)]
        parts = self.done.outside(first, last)
        self.done.remove(0, last)
        return parts

    def leave_to_others(self) -> Ranges:
        """Go on with what comes; returns what was to be had, which is somebody else's to deliver."""
        end, left = self.end, Ranges()
        for first, last in self.available(self.lowest, end - 1):
            left.add(first, last)
        self.next, self.done, self.returned = max(self.next, end), Ranges(), Ranges()
        return left

    def skip_to(self, position: int) -> None:
        """Nothing below `position` that was not looked at concerns the subscription."""
        if position > self.next:
            self._cursors.acknowledge(self.cursor, self.next, position - 1)
            self.next = position

    def acknowledge(self, first: int, last: int) -> None:
        """These are done with."""
        self._cursors.acknowledge(self.cursor, first, last)
