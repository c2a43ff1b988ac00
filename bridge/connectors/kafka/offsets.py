"""Committable offset of one partition: records are taken in order and answered in any order. Sans-I/O."""

from __future__ import annotations

from collections import deque


class Offsets:
    """Offsets of one partition, from its assignment to this member of the group until it is revoked."""

    __slots__ = ("_answered", "_committed", "_taken", "done")

    def __init__(self) -> None:
        self.done = -1
        """Offset that may be committed: all earlier records are answered. Below 0 before the first."""
        self._committed = -1
        self._taken: deque[int] = deque()
        self._answered: set[int] = set()

    @property
    def open(self) -> int:
        """Number of records that are unanswered, or answered before an earlier one."""
        return len(self._taken)

    @property
    def uncommitted(self) -> int:
        """Number of answered records that are not committed, or more, as the cluster may have removed some."""
        return self.done - self._committed

    def taken(self, offset: int) -> None:
        """Add a record that was given to its forwarder; offsets rise, with gaps where records were removed."""
        if self._committed < 0:
            self.done = self._committed = offset
        self._taken.append(offset)

    def record(self, offset: int) -> None:
        """Record the answer to a record: it is on disk, or was rejected."""
        self._answered.add(offset)
        while self._taken and self._taken[0] in self._answered:
            first = self._taken.popleft()
            self._answered.discard(first)
            self.done = first + 1

    def committed(self, done: int) -> None:
        """Record a commit."""
        self._committed = max(self._committed, done)
