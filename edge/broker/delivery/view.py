"""One consumer's own way through a queue with messages that differ for its consumers.

A view reads the log at its own pace: first urgent messages (priority above normal), then returned ones, then on from
its position (its *scan*), and last those that can wait (priority below normal). It looks at each message once. Messages
that its consumer does not select, or that belong to another consumer's group, stay where they are. So no message blocks
another, nothing is scanned twice, and a view holds at most `VIEW_READ_BYTES_MAX`.
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
"""Band that is the rest of the log, rather than a set of positions."""


class QueueState(Protocol):
    """The queue, as its views use it."""

    log: int

    @property
    def lowest(self) -> int:
        """Position below which no message is available."""
        ...

    @property
    def bands(self) -> dict[int, Ranges]:
        """Known positions of other than normal priority, by priority; a copy."""
        ...

    def free_from(self, position: int) -> int:
        """Return the first position from here on that may be available."""
        ...

    def available(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of ``first..last`` that are available."""
        ...

    def hand_over(self, consumer: Consumer, stored: Stored, bucket: int | None, credit: int) -> int:
        """Deliver from the head of an available run. Return the number of messages; 0: not to this consumer; -1: not
        now."""
        ...

    def defer(self, priority: int, first: int, last: int) -> bool:
        """Note messages of low priority that a scan found. Return False when the table is full; then they keep their
        order."""
        ...

    def missing(self, first: int, last: int) -> None:
        """Pass positions that the store does not have."""
        ...

    def single(self, first: int, last: int) -> bool:
        """Return True when one of these messages has failed: they are delivered one by one."""
        ...

    @property
    def reading_allowed(self) -> bool:
        """False while too many messages are on their way to a dead letter address."""
        ...

    def pump(self) -> None:
        """Continue: a view has read something."""
        ...

    def handle_error(self, error: Exception) -> None:
        """Handle an exception of a view."""
        ...


class View:
    """Read position and buffer of one consumer."""

    def __init__(self, queue: QueueState, logs: MessageLogs, consumer: Consumer, position: int) -> None:
        """The scan starts at `position`: nothing below it is for this consumer."""
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
        self._round += 1  # reads under way are discarded

    def close(self) -> None:
        """Discard the read under way."""
        self._round += 1

    def rewind(self) -> None:
        """Start again: other messages may be for this consumer now."""
        self._begin(self._queue.lowest)

    @property
    def idle(self) -> bool:
        """True when nothing more is for this consumer until a message arrives or is returned."""
        return not self._reading and not self._unsifted and self._band() is None

    @property
    def exhausted(self) -> bool:
        """True when in addition no message waits for credit."""
        return self.idle and not self._ready

    # --- from the queue -----------------------------------------------------------------------------------------

    def arrived(self, stored: Stored, priority: int) -> None:
        """Take a committed run."""
        first, end = stored.position, stored.position + len(stored.run.bodies)
        if priority != NORMAL:
            self._bands.setdefault(priority, Ranges()).add(first, end - 1)
            if priority > NORMAL and (self._unsifted or self._ready):
                self._restore()
            if first == self.position and not self._reading:
                self.position = end
        elif first == self.position and not self._reading and self._band(scan=False) is None:
            if self._waiting_bytes >= VIEW_READ_BYTES_MAX:
                return  # it is read later
            self.position = end
            self._unsifted.append(stored)
            self._waiting_bytes += stored.run.size

    def returned(self, first: int, last: int) -> None:
        """Note messages that may be delivered again; the scan finds those ahead of it."""
        if first < self.position:
            self._bands.setdefault(NORMAL, Ranges()).add(first, min(last, self.position - 1))

    # --- delivering -------------------------------------------------------------------------------------------

    def serve(self, credit: int) -> bool:
        """Deliver one piece, or read the next. Return True when something was delivered."""
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
        """Offer a piece. Return (continue, something was delivered)."""
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
        """Keep the messages for this consumer, in pieces that can be delivered as they are."""
        first = stored.position
        for low, high in self._queue.available(first, first + len(stored.run.bodies) - 1):
            part = part_of(stored, low - first, high - first + 1)
            grouped = bool(part.run.flags & GROUPED)
            if self.selection is None and not grouped and not self._queue.single(low, high):
                self._ready.append((part, None))
                continue
            wanted = self.selection.wanted(part.run) if self.selection is not None else [True] * len(part.run.bodies)
            one_by_one = grouped or self._queue.single(low, high)
            for start, stop in _wanted_ranges(wanted, one_by_one=one_by_one):
                bucket = bucket_of(part.run.bodies[start]) if grouped else None
                self._ready.append((part_of(part, start, stop), bucket))

    def _restore(self) -> None:
        """Read waiting messages again later, after more urgent ones."""
        for stored in [*self._unsifted, *(stored for stored, _ in self._ready)]:
            band = self._bands.setdefault(priority_of(stored.run), Ranges())
            band.add(stored.position, stored.position + len(stored.run.bodies) - 1)
        self._unsifted.clear()
        self._ready.clear()
        self._waiting_bytes = 0

    # --- reading ----------------------------------------------------------------------------------------------

    def _band(self, *, scan: bool = True) -> int | None:
        """Return the band to be read next: a priority, `_SCAN`, or None."""
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
            self._on_read(band, start, runs)
            self._queue.pump()
            if of == self._round and self.idle:
                self.consumer.exhausted()
        except Exception as error:
            self._queue.handle_error(error)

    def _on_read(self, band: int, start: int, runs: Sequence[Stored]) -> None:
        if self._band() != band:
            return  # something more urgent arrived, and this is read again
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
        """Take a run that was read, but defer low priority."""
        priority = priority_of(stored.run)
        first, last = stored.position, stored.position + len(stored.run.bodies) - 1
        if priority < NORMAL and self._queue.defer(priority, first, last):
            self._bands.setdefault(priority, Ranges()).add(first, last)
        else:
            self._unsifted.append(stored)
            self._waiting_bytes += stored.run.size

    def _sort(self) -> None:
        """Sort the messages of one read by priority, in order of arrival within one."""
        unsifted = self._unsifted
        if any(stored.run.properties for stored in unsifted):
            self._unsifted = deque(sorted(unsifted, key=lambda stored: -priority_of(stored.run)))


def _wanted_ranges(wanted: Sequence[bool], *, one_by_one: bool) -> list[tuple[int, int]]:
    """Return the ranges ``start <= i < stop`` of wanted messages, as long as possible or one by one."""
    if one_by_one:
        return [(i, i + 1) for i, one in enumerate(wanted) if one]
    ranges: list[tuple[int, int]] = []
    start = None
    for i, one in enumerate([*wanted, False]):
        if one and start is None:
            start = i
        elif not one and start is not None:
            ranges.append((start, i))
            start = None
    return ranges


def is_grouped(runs: Sequence[Stored]) -> bool:
    """Return True when one of the runs has messages of groups."""
    return any(stored.run.flags & GROUPED for stored in runs)
