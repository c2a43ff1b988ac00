"""A subscription's place in its log: what it has looked at, what was taken out of turn, what came back.

Everything below `_next` has been looked at: it is with a consumer, settled, waiting in memory, or among `_returned`, to
be read again. From `_next` on nothing has, but for what is `_done`: acknowledged before a restart, or taken since.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import Store


class Place:
    """See the module's docstring. Base of `LogSubscription`."""

    def __init__(
        self, store: Store, log: int, cursor: int, position: int, acknowledged: Iterable[tuple[int, int]]
    ) -> None:
        """`position` and `acknowledged` as the store kept them."""
        self.log = log
        self.cursor = cursor
        self._store = store
        self._begin_at(position, acknowledged)

    @property
    def lowest(self) -> int:
        """No message below is to be had."""
        return min(self._returned.first, self._next) if self._returned else self._next

    def free_from(self, position: int) -> int:
        """The first position from here on that may be to be had."""
        if position < self._next:
            returned = self._returned.following(position)
            position = self._next if returned is None else returned
        return self._done.free_from(position) if position >= self._next else position

    def available(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of ``first..last`` nobody has."""
        following = self._next
        if first >= following:
            return self._done.outside(first, last)
        parts = self._returned.within(first, min(last, following - 1))
        return parts + self._done.outside(following, last) if last >= following else parts

    def _begin_at(self, position: int, done: Iterable[tuple[int, int]]) -> None:
        """Forget what was looked at: everything from `position` on is to be had but for `done`."""
        self._next = position
        self._returned = Ranges()
        self._done = Ranges()
        for first, last in done:
            if last >= position:
                self._done.add(max(first, position), last)

    def _returns(self, first: int, last: int) -> None:
        """Nobody has these any more."""
        if first < self._next:
            self._returned.add(first, min(last, self._next - 1))
        if last >= self._next:
            self._done.remove(max(first, self._next), last)  # taken out of turn: it is met in turn

    def missing(self, first: int, last: int) -> None:
        """The store has none of these, or they do not concern us."""
        for low, high in self.available(first, last):
            self._take(low, high)
            self._store.acknowledge(self.cursor, low, high)

    def _take(self, first: int, last: int) -> None:
        """These are somebody's now; the cursor will pass them by."""
        self._returned.remove(first, last)
        if last < self._next:
            return
        done = self._done
        done.add(max(first, self._next), last)
        if done.first <= self._next:
            self._next = done.free_from(self._next)
            done.remove(0, self._next - 1)

    def _open_parts(self, first: int, last: int) -> list[tuple[int, int]]:
        """``first..last`` less what was acknowledged before the restart, or taken out of turn."""
        if not self._done:
            return [(first, last)]
        parts = self._done.outside(first, last)
        self._done.remove(0, last)
        return parts

    def _skip_to(self, position: int) -> None:
        """Nothing below `position` concerns us any more that we have not looked at."""
        if position > self._next:
            self._store.acknowledge(self.cursor, self._next, position - 1)
            self._next = position
