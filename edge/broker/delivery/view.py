"""One consumer's own way through a queue, for queues whose messages are not all alike to all consumers.

A view reads the log at its own pace: first what is urgent (priority above normal), then what was given back, then on
from where it stands (its *scan*), and last what can wait (priority below normal). It sees each message once; what its
consumer does not select, or what belongs to the group of another consumer, it leaves where it is and does not come back
to. So nothing stands in anybody's way, nothing is scanned twice, and a view holds `VIEW_READ_BYTES_MAX` at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from bridge.message import GROUPED, Stored
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.message_groups import bucket_of
from edge.broker.delivery.priorities import NORMAL, priority_of
from edge.broker.limits import VIEW_READ_BYTES_MAX
from edge.broker.model.interfaces import Consumer
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import MessageLogs

_SCAN = -1
"""The band that is no set of positions but the rest of the log."""


class QueueState(Protocol):
    """The queue, as its views use it."""

    log: int

    @property
    def lowest(self) -> int:
        """No message below is to be had."""
        ...

    @property
    def bands(self) -> dict[int, Ranges]:
        """Positions known to be of other than normal priority, by priority; a copy."""
        ...

    def free_from(self, position: int) -> int:
        """The first position from here on that may be to be had."""
        ...

    def available(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of ``first..last`` nobody has."""
        ...

    def hand_over(self, consumer: Consumer, stored: Stored, bucket: int | None, credit: int) -> int:
        """Deliver from the head of what is all available; how many messages. 0: not to this consumer; -1: not now."""
        ...

    def defer(self, priority: int, first: int, last: int) -> bool:
        """A scan met messages of low priority; False when they cannot be remembered and keep their place."""
        ...

    def missing(self, first: int, last: int) -> None:
        """The store has none of these."""
        ...

    def single(self, first: int, last: int) -> bool:
        """Something was said about one of these: they go one by one."""
        ...

    @property
    def reading_allowed(self) -> bool:
        """False while too much is on its way to a dead letter address."""
        ...

    def pump(self) -> None:
        """A view has something new."""
        ...

    def raised(self, error: Exception) -> None:
        """A view raised over what it has read."""
        ...


class View:
    """See the module's docstring."""

    def __init__(self, queue: QueueState, logs: MessageLogs, consumer: Consumer, position: int) -> None:
        """`position`: where the scan begins; everything below is known not to be for this consumer."""
        self.consumer = consumer
        self.selection = consumer.selection
        self._queue = queue
        self._logs = logs
        self._round = 0
        self._begin(position)

    def _begin(self, position: int) -> None:
        self.position = position
        self._bands = self._queue.bands
        self._unsifted: deque[Stored] = deque()
        self._ready: deque[tuple[Stored, int | None]] = deque()
        self._waiting_bytes = 0
        self._reading = False
        self._round += 1  # what is still being read is of no interest

    def close(self) -> None:
        """What is being read is of no interest any more."""
        self._round += 1

    def rewind(self) -> None:
        """Messages that were not for this consumer may be now."""
        self._begin(self._queue.lowest)

    @property
    def idle(self) -> bool:
        """There is nothing more for this consumer before somebody sends or gives something back."""
        return not self._reading and not self._unsifted and self._band() is None

    @property
    def exhausted(self) -> bool:
        """Nothing that was looked at waits for credit either."""
        return self.idle and not self._ready

    # --- news -------------------------------------------------------------------------------------------------

    def arrived(self, stored: Stored, priority: int) -> None:
        """A run was committed."""
        first, end = stored.position, stored.position + len(stored.run.bodies)
        if priority != NORMAL:
            self._bands.setdefault(priority, Ranges()).add(first, end - 1)
            if priority > NORMAL and (self._unsifted or self._ready):
                self._put_back()
            if first == self.position and not self._reading:
                self.position = end
        elif first == self.position and not self._reading and self._band(scan=False) is None:
            if self._waiting_bytes >= VIEW_READ_BYTES_MAX:
                return  # it is read in its turn
            self.position = end
            self._unsifted.append(stored)
            self._waiting_bytes += stored.run.size

    def returned(self, first: int, last: int) -> None:
        """These may be delivered again; what is ahead of the scan is met there."""
        if first < self.position:
            self._bands.setdefault(NORMAL, Ranges()).add(first, min(last, self.position - 1))

    # --- delivering -------------------------------------------------------------------------------------------

    def serve(self, credit: int) -> bool:
        """Deliver one piece, or see to it that there will be one; True when something was delivered."""
        while True:
            while self._ready:
                stored, bucket = self._ready.popleft()
                done, delivered = self._offer(stored, bucket, credit)
                if delivered:
                    return True
                if not done:
                    return False
            if not self._unsifted:
                self._waiting_bytes = 0
                self._read_on()
                return False
            self._sift(self._unsifted.popleft())

    def _offer(self, stored: Stored, bucket: int | None, credit: int) -> tuple[bool, bool]:
        """(go on, something was delivered)."""
        first, total = stored.position, len(stored.run.bodies)
        parts = self._queue.available(first, first + total - 1)
        if not parts:
            return True, False
        low, high = parts[0]
        count = self._queue.hand_over(self.consumer, part_of(stored, low - first, high - first + 1), bucket, credit)
        rest = first if count < 0 else (low + count if count else high + 1)
        if rest < first + total:
            self._ready.appendleft((part_of(stored, rest - first, total), bucket))
        return count >= 0, count > 0

    def _sift(self, stored: Stored) -> None:
        """Keep what is for this consumer, in pieces that can be handed over as they are."""
        first = stored.position
        for low, high in self._queue.available(first, first + len(stored.run.bodies) - 1):
            part = part_of(stored, low - first, high - first + 1)
            grouped = bool(part.run.flags & GROUPED)
            if self.selection is None and not grouped and not self._queue.single(low, high):
                self._ready.append((part, None))
                continue
            wanted = self.selection.wanted(part.run) if self.selection is not None else [True] * len(part.run.bodies)
            one_by_one = grouped or self._queue.single(low, high)
            for start, stop in _stretches(wanted, one_by_one=one_by_one):
                bucket = bucket_of(part.run.bodies[start]) if grouped else None
                self._ready.append((part_of(part, start, stop), bucket))

    def _put_back(self) -> None:
        """Something more urgent has come: have what waits read again behind it."""
        for stored in [*self._unsifted, *(stored for stored, _ in self._ready)]:
            band = self._bands.setdefault(priority_of(stored.run), Ranges())
            band.add(stored.position, stored.position + len(stored.run.bodies) - 1)
        self._unsifted.clear()
        self._ready.clear()
        self._waiting_bytes = 0

    # --- reading ----------------------------------------------------------------------------------------------

    def _band(self, *, scan: bool = True) -> int | None:
        """What is to be read next: a priority, `_SCAN`, or None for nothing."""
        high = max((priority for priority, band in self._bands.items() if band), default=_SCAN)
        if high >= NORMAL:
            return high
        if scan:
            self.position = self._queue.free_from(self.position)
            if self.position < self._logs.bounds(self._queue.log)[1]:
                return _SCAN
        return None if high == _SCAN else high

    def _read_on(self) -> None:
        if self._reading or not self._queue.reading_allowed:
            return
        while (band := self._band()) is not None:
            start = self.position
            if band != _SCAN:
                start, last = next(iter(self._bands[band]))
                parts = self._queue.available(start, last)
                self._bands[band].remove(start, parts[0][0] - 1 if parts else last)
                if not parts:
                    continue
                start = parts[0][0]
            self._reading = True
            done = partial(self._read, self._round, band, start)
            self._logs.read(self._queue.log, start, VIEW_READ_BYTES_MAX, done)
            return

    def _read(self, of: int, band: int, start: int, runs: Sequence[Stored]) -> None:
        if of != self._round:
            return
        self._reading = False
        try:
            self._was_read(band, start, runs)
            self._queue.pump()
            if of == self._round and self.idle:
                self.consumer.exhausted()
        except Exception as error:
            self._queue.raised(error)

    def _was_read(self, band: int, start: int, runs: Sequence[Stored]) -> None:
        if self._band() != band:
            return  # something more urgent came meanwhile, and this is read again
        if band == _SCAN:
            self._scanned(start, runs)
        else:
            self._fetched(self._bands[band], band, start, runs)

    def _scanned(self, start: int, runs: Sequence[Stored]) -> None:
        end = self._logs.bounds(self._queue.log)[1]
        at = start
        for stored in runs:
            if stored.position > at:
                self._queue.missing(at, stored.position - 1)
            at = stored.position + len(stored.run.bodies)
            self._admit(stored)
        if not runs:
            self._queue.missing(start, end - 1)
            at = end
        self.position = max(self.position, at)
        self._sort()

    def _fetched(self, band: Ranges, priority: int, start: int, runs: Sequence[Stored]) -> None:
        end = start
        for stored in runs:
            self._missing(band, end, stored.position - 1)
            end = stored.position + len(stored.run.bodies)
            for low, high in band.within(stored.position, end - 1):
                part = part_of(stored, low - stored.position, high - stored.position + 1)
                if priority == NORMAL:
                    self._admit(part)
                else:
                    self._unsifted.append(part)
                    self._waiting_bytes += part.run.size
        if not runs:
            end = self._logs.bounds(self._queue.log)[1]
            self._missing(band, start, end - 1)
        band.remove(start, end - 1)
        if priority == NORMAL:
            self._sort()

    def _missing(self, band: Ranges, first: int, last: int) -> None:
        for low, high in band.within(first, last):
            self._queue.missing(low, high)

    def _admit(self, stored: Stored) -> None:
        """Take what was read, but leave for later what can wait."""
        priority = priority_of(stored.run)
        first, last = stored.position, stored.position + len(stored.run.bodies) - 1
        if priority < NORMAL and self._queue.defer(priority, first, last):
            self._bands.setdefault(priority, Ranges()).add(first, last)
        else:
            self._unsifted.append(stored)
            self._waiting_bytes += stored.run.size

    def _sort(self) -> None:
        """What was read together goes by priority, and in order within one."""
        unsifted = self._unsifted
        if any(stored.run.properties for stored in unsifted):
            self._unsifted = deque(sorted(unsifted, key=lambda stored: -priority_of(stored.run)))


def _stretches(wanted: Sequence[bool], *, one_by_one: bool) -> list[tuple[int, int]]:
    """``start <= i < stop`` of what is wanted, as long as can be or each alone."""
    if one_by_one:
        return [(i, i + 1) for i, one in enumerate(wanted) if one]
    stretches: list[tuple[int, int]] = []
    start = None
    for i, one in enumerate([*wanted, False]):
        if one and start is None:
            start = i
        elif not one and start is not None:
            stretches.append((start, i))
            start = None
    return stretches


def is_grouped(runs: Sequence[Stored]) -> bool:
    """True when one of the runs has messages of groups."""
    return any(stored.run.flags & GROUPED for stored in runs)
