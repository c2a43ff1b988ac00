"""A cursor over one log of the store: a queue's competing consumers, or a durable subscription to a topic.

A log subscription is *level* while every matching message is handed to it as it is committed, and *behind* once one
had to be left in the store; behind, it reads from the store when its consumers want more, and is level again when it
has reached the end. So memory does not depend on the backlog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from bridge.message import Run, Stored
from edge.broker.contract import Consumer, Outcome
from edge.broker.limits import READ_BYTES_MAX, SUBSCRIPTION_BUFFER_BYTES_MAX
from edge.broker.ranges import Ranges
from edge.broker.store.contract import Store
from edge.broker.subscriptions.group import RETURNED, ConsumerGroup, part_of
from edge.broker.topics import matches

ADDRESSES_CACHED_MAX = 10_000
"""Addresses a subscription remembers to match or not to match; then it starts anew."""


class LogSubscription:
    """A cursor over one log, filtered, with one consumer or several that compete."""

    def __init__(
        self,
        store: Store,
        pattern: str,
        log: int,
        cursor: int,
        *,
        position: int,
        acknowledged: Iterable[tuple[int, int]] = (),
    ) -> None:
        """`position` and `acknowledged` as the store kept them."""
        self.pattern = pattern
        self.log = log
        self.cursor = cursor
        self.group = ConsumerGroup()
        self.accepts: Callable[[Run], bool] | None = None
        """Narrows what matches `pattern`."""
        self._store = store
        self._next = position  # everything below has been looked at
        self._behind = position < store.bounds(log)[1]
        self._done = Ranges()  # acknowledged before a restart, from _next on
        for first, last in acknowledged:
            self._done.add(first, last)
        self._buffer: deque[Stored] = deque()
        self._buffer_bytes = 0
        self._outstanding: dict[Consumer, Ranges] = {}
        self._returned = Ranges()  # to be delivered again, read from the store
        self._reading = False
        self._closed = False
        self._address_matches: dict[str, bool] = {}

    # --- from the router --------------------------------------------------------------------------------------

    def wants(self, run: Run) -> bool:
        """True when the run is one this subscription delivers."""
        found = self._address_matches.get(run.address)
        if found is None:
            if len(self._address_matches) >= ADDRESSES_CACHED_MAX:
                self._address_matches.clear()
            found = self._address_matches[run.address] = matches(self.pattern, run.address)
        return found and (self.accepts is None or self.accepts(run))

    def arrived(self, stored: Stored) -> None:
        """A run this subscription wants was committed."""
        if self._behind:
            return  # it will be read in its turn
        if not self.group or self._returned or self._buffer_bytes >= SUBSCRIPTION_BUFFER_BYTES_MAX:
            self._behind = True
            return
        self._look_at(stored)

    def pump(self) -> None:
        """Deliver what is waiting to whoever has credit, then read on when there is more in the store."""
        buffer, group = self._buffer, self.group
        while buffer:
            turn = group.next()
            if turn is None:
                return
            consumer, credit = turn
            stored = buffer.popleft()
            waiting = len(stored.run.bodies)
            count = group.share(waiting, credit)
            if count < waiting:
                buffer.appendleft(part_of(stored, count, waiting))
                stored = part_of(stored, 0, count)
            self._buffer_bytes -= stored.run.size
            held = self._outstanding.get(consumer)
            if held is None:
                held = self._outstanding[consumer] = Ranges()
            held.add(stored.position, stored.position + count - 1)
            consumer.deliver(self, stored)
        self._read_on()

    def idle(self) -> None:
        """Housekeeping: while level, the cursor moves past what did not concern this subscription."""
        if not self._behind and not self._buffer:
            self._skip_to(self._store.bounds(self.log)[1])

    def join(self, consumer: Consumer) -> None:
        self.group.join(consumer)

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        """The consumer is away. `keep`: what is outstanding to it waits for its return (an MQTT session's in-flight
        messages); otherwise it goes back, to be delivered again to whoever is there."""
        self.group.leave(consumer)
        if not keep:
            for first, last in self._outstanding.pop(consumer, ()):
                self._returned.add(first, last)
        if self.group:
            self.pump()
        elif self._buffer:
            self._next = self._buffer[0].position
            self._behind = True
            self._buffer.clear()
            self._buffer_bytes = 0

    def close(self) -> None:
        """The subscription is deleted: its cursor goes, and the log keeps nothing for it."""
        self._closed = True
        self._buffer.clear()
        self._store.drop_cursor(self.cursor)

    @property
    def backlog(self) -> int:
        """Messages of the log not delivered yet; those of other addresses in the same log count, so it is an upper
        bound for a filtered subscription that is behind."""
        waiting = sum(len(stored.run.bodies) for stored in self._buffer) + self._returned.count
        return waiting + (self._store.bounds(self.log)[1] - self._next if self._behind else 0)

    @property
    def outstanding(self) -> int:
        """Messages delivered and not settled."""
        return sum(held.count for held in self._outstanding.values())

    # --- from consumers ---------------------------------------------------------------------------------------

    def settle(self, consumer: Consumer, first: int, last: int, outcome: Outcome) -> None:
        """The consumer's answer; positions that are not outstanding to it are ignored (a late or repeated answer)."""
        held = self._outstanding.get(consumer)
        if held is None or self._closed:
            return
        for low, high in held.within(first, last):
            if outcome in RETURNED:
                self._returned.add(low, high)
            else:
                self._store.acknowledge(self.cursor, low, high)
        held.remove(first, last)
        if outcome in RETURNED:
            self.pump()

    # --- inside -----------------------------------------------------------------------------------------------

    def _look_at(self, stored: Stored) -> None:
        """Take a wanted run into the buffer, less what was seen or acknowledged before; `_next` moves behind it."""
        end = stored.position + len(stored.run.bodies)
        if end <= self._next:
            return
        self._skip_to(stored.position)
        first = max(stored.position, self._next)
        self._next = end
        for low, high in self._open_parts(first, end - 1):
            part = part_of(stored, low - stored.position, high - stored.position + 1)
            self._buffer.append(part)
            self._buffer_bytes += part.run.size

    def _open_parts(self, first: int, last: int) -> list[tuple[int, int]]:
        """``first..last`` less what was acknowledged before the restart."""
        if not self._done:
            return [(first, last)]
        parts = []
        for low, high in self._done.within(first, last):
            if first < low:
                parts.append((first, low - 1))
            first = high + 1
        if first <= last:
            parts.append((first, last))
        self._done.remove(0, last)
        return parts

    def _skip_to(self, position: int) -> None:
        """Nothing below `position` concerns us any more that we have not looked at."""
        if position > self._next:
            self._store.acknowledge(self.cursor, self._next, position - 1)
            self._next = position

    def _read_on(self) -> None:
        if self._reading or self._closed or not (self._behind or self._returned) or self.group.credit <= 0:
            return
        self._reading = True
        if self._returned:
            self._store.read(self.log, self._returned.first, READ_BYTES_MAX, self._read_returned)
        else:
            self._store.read(self.log, self._next, READ_BYTES_MAX, self._read_next)

    def _read_next(self, runs: Sequence[Stored]) -> None:
        self._reading = False
        if self._closed:
            return
        for stored in runs:
            end = stored.position + len(stored.run.bodies)
            if self.wants(stored.run):
                self._look_at(stored)
            else:
                self._skip_to(end)
        if not runs or self._next >= self._store.bounds(self.log)[1]:
            self._behind = False
        self.pump()

    def _read_returned(self, runs: Sequence[Stored]) -> None:
        self._reading = False
        if self._closed:
            return
        end = self._returned.first
        for stored in runs:
            end = stored.position + len(stored.run.bodies)
            for low, high in self._returned.within(stored.position, end - 1):
                part = part_of(stored, low - stored.position, high - stored.position + 1)
                self._buffer.append(part)
                self._buffer_bytes += part.run.size
        # what the store does not hold any more (purged, expired) is not delivered again
        self._returned.remove(0, end - 1 if runs else self._store.bounds(self.log)[1])
        self.pump()
