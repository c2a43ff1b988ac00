"""Which records of one partition are here for good: taken in order, answered in any; sans-I/O."""

from __future__ import annotations

from collections import deque


class Offsets:
    """Of one partition, from its assignment to this member of the group until it is taken away."""

    __slots__ = ("_answered", "_committed", "_taken", "done")

    def __init__(self) -> None:
        self.done = -1
        """What may be committed: the offset after the last record before which every one has its answer. Below 0 while
        there is none."""
        self._committed = -1
        self._taken: deque[int] = deque()
        self._answered: set[int] = set()

    @property
    def open(self) -> int:
        """Records that have no answer, or wait for an earlier one to have its own."""
        return len(self._taken)

    @property
    def uncommitted(self) -> int:
        """Records that are here for good and that the cluster has not been told of, or some more: it may have removed
        some in between."""
        return self.done - self._committed

    def taken(self, offset: int) -> None:
        """A record is given to its forwarder; offsets rise, with gaps where the cluster has removed records."""
        if self._committed < 0:
            self.done = self._committed = offset
        self._taken.append(offset)

    def answered(self, offset: int) -> None:
        """It is on disk here, or never will be."""
        self._answered.add(offset)
        while self._taken and self._taken[0] in self._answered:
            first = self._taken.popleft()
            self._answered.discard(first)
            self.done = first + 1

    def committed(self, done: int) -> None:
        """The cluster has been told."""
        self._committed = max(self._committed, done)
