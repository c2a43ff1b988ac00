"""Browsing a queue: copies of its messages, while others consume it (AMQP 1.0 section 3.5.7, distribution mode)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from bridge.message import Run, Stored
from edge.broker.delivery.batches import SETTLED
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.log import LogSubscription
from edge.broker.limits import READ_BYTES_MAX
from edge.broker.model.interfaces import Consumer, DeliveryOutcome
from edge.broker.model.isolation import deliver_to
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import Cursors, MessageLogs


class BrowsingSubscription:
    """One consumer's walk over a queue, from the oldest unsettled message to new ones.

    It keeps no state, and does not change the queue: its deliveries are settled.
    """

    attempts = 0

    def __init__(self, logs: MessageLogs, cursors: Cursors, feeds: LogFeeds, queue: LogSubscription) -> None:
        self.pattern = queue.pattern
        self.log = queue.log
        self.name = queue.name
        self.accepts: Callable[[Run], bool] | None = None
        self._logs = logs
        self._cursors = cursors
        self._feeds = feeds
        self._queue = queue
        self._consumer: Consumer | None = None
        self._next = 0
        self._waiting: deque[Stored] = deque()
        self._reading = False

    def join(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._feeds.attach(self)

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        self._consumer = None
        self._feeds.detach(self)
        self._waiting.clear()

    sleeps = True

    def arrived(self, stored: Stored) -> None:
        """Do nothing: the run is read later."""

    def fall_behind(self) -> None:
        """Do nothing: it reads to the end by itself."""

    def advance_to(self, watermark: int) -> None:
        """Do nothing: it has no cursor."""

    def restart(self) -> None:
        """Do nothing: it has no state that could be wrong."""

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Ignore the outcome of a copy: the message stays."""

    @property
    def idle_now(self) -> bool:
        return not (self._waiting or self._reading) and self._next >= self._logs.bounds(self._queue.log)[1]

    def pump(self) -> None:
        waiting = self._waiting
        while waiting and self._consumer is not None and (credit := self._consumer.credit) > 0:
            stored = waiting.popleft()
            total = len(stored.run.bodies)
            if credit < total:
                waiting.appendleft(part_of(stored, credit, total))
                stored = part_of(stored, 0, credit)
            if not deliver_to(self._consumer, self, (Stored(SETTLED, stored.sequence, stored.run),)):
                self.leave(self._consumer, keep=False)
        if waiting or self._reading or self._consumer is None or self._consumer.credit <= 0:
            return
        if self._next < self._logs.bounds(self._queue.log)[1]:
            self._reading = True
            self._logs.read(self._queue.log, self._next, READ_BYTES_MAX, self._read)

    def _read(self, runs: Sequence[Stored]) -> None:
        self._reading = False
        if self._consumer is None:
            return
        record = self._cursors.record(self._queue.cursor)
        done = Ranges()
        if record.position > 0:
            done.add(0, record.position - 1)
        for first, last in record.acknowledged:
            done.add(first, last)
        for stored in runs:
            first, end = stored.position, stored.position + len(stored.run.bodies)
            for low, high in [*done.within(first, end - 1), (end, end)]:
                if first < low:
                    self._waiting.append(part_of(stored, first - stored.position, low - stored.position))
                first = high + 1
            self._next = end
        if not runs:
            self._next = self._logs.bounds(self._queue.log)[1]
        self.pump()
        if self._consumer is not None and self.idle_now:
            self._consumer.exhausted()
