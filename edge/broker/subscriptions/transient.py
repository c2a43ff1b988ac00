"""Live consumers of an address without a cursor: what they do not take in time waits in bounded memory."""

from __future__ import annotations

from collections import deque

from bridge.message import Run, Stored
from edge.broker.contract import Consumer, Outcome
from edge.broker.limits import (
    TRANSIENT_BUFFER_BYTES_MAX,
    TRANSIENT_BUFFER_BYTES_MIN,
    TRANSIENT_POOL_BYTES_MAX,
)
from edge.broker.subscriptions.group import SETTLED, ConsumerGroup, part_of


class WaitingPool:
    """Message bytes waiting in memory for all transient subscriptions of a router."""

    __slots__ = ("waiting_bytes",)

    def __init__(self) -> None:
        self.waiting_bytes = 0

    def admits(self, size: int, own_bytes: int) -> bool:
        """True when a subscription with `own_bytes` waiting may add `size`."""
        own_bytes += size
        if own_bytes <= TRANSIENT_BUFFER_BYTES_MIN:
            return True
        return own_bytes <= TRANSIENT_BUFFER_BYTES_MAX and self.waiting_bytes + size <= TRANSIENT_POOL_BYTES_MAX


class TransientSubscription:
    """The live consumers of one filter, served in turn when there are several (a shared subscription)."""

    def __init__(
        self, pattern: str, pool: WaitingPool, *, qos0_only: bool = False, not_from: str | None = None
    ) -> None:
        """`qos0_only`: leave the rest to a durable twin; `not_from`: a device whose messages are not wanted."""
        self.pattern = pattern
        self.group = ConsumerGroup()
        self.share_name: str | None = None
        """Name under which consumers share it; None for a subscription of one consumer."""
        self.dropped = 0
        """Messages not delivered because the consumer was too slow."""
        self._pool = pool
        self._qos0_only = qos0_only
        self._not_from = not_from
        self._position = 0
        self._waiting: deque[Stored] = deque()
        self._waiting_bytes = 0

    def offer(self, run: Run) -> None:
        """Deliver a run now, or keep it for when the consumer has credit."""
        if (self._qos0_only and run.qos) or run.device == self._not_from:
            return
        stored = Stored(SETTLED, 0, run)
        if run.qos:
            stored = Stored(self._position, 0, run)
            self._position += len(run.bodies)
        if not self._waiting and len(self.group.consumers) == 1:
            consumer = self.group.consumers[0]
            if consumer.credit >= len(run.bodies):
                consumer.deliver(self, stored)
                return
        size = run.size
        if not self._pool.admits(size, self._waiting_bytes):
            self.dropped += len(run.bodies)
            return
        self._waiting.append(stored)
        self._changed(size)
        self.pump()

    def pump(self) -> None:
        """Deliver what is waiting to whoever has credit."""
        waiting, group = self._waiting, self.group
        while waiting:
            turn = group.next()
            if turn is None:
                return
            consumer, credit = turn
            stored = waiting.popleft()
            count = group.share(len(stored.run.bodies), credit)
            if count < len(stored.run.bodies):
                waiting.appendleft(part_of(stored, count, len(stored.run.bodies)))
                stored = part_of(stored, 0, count)
            self._changed(-stored.run.size)
            consumer.deliver(self, stored)

    def join(self, consumer: Consumer) -> None:
        self.group.join(consumer)

    def leave(self, consumer: Consumer, *, keep: bool = False) -> None:
        self.group.leave(consumer)
        if not self.group:
            self._waiting.clear()
            self._changed(-self._waiting_bytes)

    def settle(self, consumer: Consumer, first: int, last: int, outcome: Outcome) -> None:
        """A consumer answers for what was sent above QoS 0; nothing is kept, so nothing is delivered again."""

    def _changed(self, size: int) -> None:
        self._waiting_bytes += size
        self._pool.waiting_bytes += size
