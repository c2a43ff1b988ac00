"""Live consumers of an address without a cursor. Messages that they do not take in time wait in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from bridge.message import QOS_MASK, Run, Stored, is_from
from bridge.publisher import client_of, device_of
from edge.broker.delivery.batches import SETTLED, LiveBatch, LiveOffer
from edge.broker.delivery.consumer_group import ConsumerGroup, part_of
from edge.broker.delivery.pressure import BackPressure, SubscriberPace
from edge.broker.delivery.ready import ReadySet
from edge.broker.limits import (
    LIVE_BEHIND_BYTES_LOW,
    LIVE_BEHIND_BYTES_MAX,
    LIVE_PUMP_BYTES_MAX,
    TRANSIENT_BUFFER_BYTES_LEAST,
    TRANSIENT_BUFFER_BYTES_MAX,
    TRANSIENT_BUFFER_BYTES_MIN,
    TRANSIENT_POOL_BYTES_MAX,
)
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Origin
from edge.broker.model.isolation import deliver_to, end_consumer


class WaitingPool:
    """Bytes of messages that wait in memory for all transient subscriptions of a router."""

    __slots__ = ("bytes_max", "dropped", "expired", "expiring", "pressure", "ready", "waiting_bytes")

    def __init__(self, ready: ReadySet, expired: Callable[[Run], bool] = lambda _run: False) -> None:
        """Subscriptions with more to deliver continue in `ready`. `expired` returns True when a run has outlived its
        time to live.
        """
        self.ready = ready
        self.waiting_bytes = 0
        self.bytes_max = TRANSIENT_POOL_BYTES_MAX
        """Above it each subscription is limited to the minimum."""
        self.dropped = 0
        """Messages dropped since the start because a consumer was too slow."""
        self.pressure = BackPressure()
        self.expired = expired
        self.expiring = False
        """True when some address has a time to live of its own."""

    def expect_expiry(self, *, expiring: bool) -> None:
        """Check the age of every run when some address has a time to live, otherwise only of runs with one."""
        self.expiring = expiring

    def admits(self, size: int, own_bytes: int) -> bool:
        """Return True when a subscription with `own_bytes` waiting may add `size`."""
        own_bytes += size
        if own_bytes <= TRANSIENT_BUFFER_BYTES_MIN:
            room = self.bytes_max + self.bytes_max // 4
            return own_bytes <= TRANSIENT_BUFFER_BYTES_LEAST or self.waiting_bytes + size <= room
        return own_bytes <= TRANSIENT_BUFFER_BYTES_MAX and self.waiting_bytes + size <= self.bytes_max

    def is_under_pressure(self, own_bytes: int) -> bool:
        """Return True when publishers to a subscription with `own_bytes` waiting should wait for it."""
        if own_bytes > LIVE_BEHIND_BYTES_MAX:
            return True
        return own_bytes > LIVE_BEHIND_BYTES_LOW and self.waiting_bytes > self.bytes_max // 2


class TransientSubscription:
    """Live consumers of one filter; several of them take turns (a shared subscription)."""

    attempts = 0
    idle_now = True
    shares = False
    """True if its consumers share the messages. Then each message is delivered separately, as each may be returned."""
    __slots__ = (
        "_not_from", "_pool", "_position", "_qos0_only", "_waiting", "_waiting_bytes", "dropped", "expired", "group",
        "pace", "pattern", "selector", "share_name", "user",
    )  # fmt: skip

    def __init__(
        self,
        pattern: str,
        pool: WaitingPool,
        *,
        qos0_only: bool = False,
        not_from: str | None = None,
        share_name: str | None = None,
        selector: str | None = None,
        user: str | None = None,
    ) -> None:
        """`qos0_only`: leave the rest to a durable twin. `not_from`: skip messages of this client. `share_name`: name
        under which consumers share it. `selector`: selector of its consumers (`SubscribeOptions.selector`). `user` made
        it; None: it does not count among a user's names."""
        self.pattern = pattern
        self.group = ConsumerGroup()
        self.share_name, self.selector, self.user = share_name, selector, user
        self.dropped = 0
        """Messages dropped because the consumer was too slow."""
        self.pace = SubscriberPace.KEEPING_UP
        self.expired = 0
        """Messages dropped because they expired while they waited."""
        self._pool = pool
        self._qos0_only = qos0_only
        self._not_from = not_from
        self._position = 0
        self._waiting: deque[Stored] | None = None
        """Made when a message has to wait: most consumers keep up."""
        self._waiting_bytes = 0

    def offer(self, offer: LiveOffer) -> None:
        """Deliver runs now, or keep them until the consumer has credit."""
        if self._qos0_only or self._not_from is not None:
            offer = self._wanted_of(offer)
        runs = offer.runs
        delivered_runs = 0
        if not self._waiting and len(self.group.consumers) == 1:
            delivered_runs = self._deliver_now(self.group.consumers[0], offer)
        if delivered_runs < len(runs):
            self._keep(runs[delivered_runs:], offer.origins[delivered_runs:])

    def _wanted_of(self, offer: LiveOffer) -> LiveOffer:
        """Leave out runs that another subscription delivers, or that come from the client itself."""
        pairs = [
            (run, origin)
            for run, origin in zip(offer.runs, offer.origins, strict=True)
            if not (self._qos0_only and run.qos) and not is_from(run, self._not_from)
        ]
        if len(pairs) == len(offer.runs):
            return offer
        runs = [run for run, _ in pairs]
        return LiveOffer(runs, [origin for _, origin in pairs], _acknowledged_messages(runs))

    def _deliver_now(self, consumer: Consumer, offer: LiveOffer) -> int:
        """Deliver as many of the runs as the consumer has credit for. Return how many are done."""
        runs, start = offer.runs, 0
        while start < len(runs):
            try:
                credit = consumer.credit
            except Exception as error:
                self.leave(consumer)
                end_consumer(consumer, error)
                return len(runs)
            stop = start
            while stop < len(runs) and (credit := credit - len(runs[stop].bodies)) >= 0:
                stop += 1
            if stop == start:
                break
            whole = stop - start == len(runs)
            part = runs if whole else runs[start:stop]
            batch = LiveBatch(
                self._position, part, offer.acknowledged_messages if whole else _acknowledged_messages(part)
            )
            self._position += batch.acknowledged_messages
            if not deliver_to(consumer, self, batch):
                self.leave(consumer)
                return len(runs)
            start = stop
        return start

    def _keep(self, runs: Sequence[Run], origins: Sequence[Origin | None]) -> None:
        """Keep runs until a consumer has credit, as far as there is room, and deliver to consumers with credit. While
        too much waits, hold back the origins, one for each run."""
        sizes = [run.size for run in runs]
        pool = self._pool
        kept: Iterable[tuple[Run, Origin | None]] = zip(runs, origins, strict=True)
        if self._has_room(len(runs), sum(sizes)):  # and so for each of them
            self._append(runs, sum(sizes))
        else:
            kept = [pair for pair, size in zip(kept, sizes, strict=True) if self._keep_one(pair[0], size)]
        self._pump_once()
        if self.pace is SubscriberPace.STALLED or not pool.is_under_pressure(self._waiting_bytes):
            return
        for run, origin in kept:
            if not self._is_its_own(run):
                pool.pressure.press(self, origin)

    def _keep_one(self, run: Run, size: int) -> bool:
        """Keep a run until a consumer has credit, or drop it. Return True when it is kept."""
        if not self._has_room(1, size):
            self._pump_once()
            if not self._has_room(1, size):
                self._drop(run)
                return False
        self._append((run,), size)
        return True

    def _has_room(self, runs: int, size: int) -> bool:
        """Return True when this number of runs may wait, of `size` bytes together."""
        return self._pool.admits(size, self._waiting_bytes)

    def _append(self, runs: Sequence[Run], size: int) -> None:
        """Let runs wait that have room; `size` of them together."""
        if self._waiting is None:
            self._waiting = deque()
        append, position, shares = self._waiting.append, self._position, self.shares
        for run in runs:
            if shares or run.flags & QOS_MASK:
                append(Stored(position, 0, run))
                position += len(run.bodies)
            else:
                append(Stored(SETTLED, 0, run))
        self._position = position
        self._changed(size)

    def _pump_once(self) -> None:
        """Deliver waiting messages, unless this continues in the next turn anyway."""
        if self.pump not in self._pool.ready:
            self.pump()

    def _drop(self, run: Run) -> None:
        """Count a dropped run."""
        self.dropped += len(run.bodies)
        self._pool.dropped += len(run.bodies)

    @property
    def waiting(self) -> bool:
        """True while messages wait for credit."""
        return bool(self._waiting)

    def pump(self) -> None:
        """Deliver waiting messages to consumers with credit."""
        waiting, group, pumped = self._waiting, self.group, 0
        while waiting:
            if self._dropped_expired(waiting):
                continue
            turn = group.next()
            if turn is None:
                return
            consumer, credit = turn
            batch, size = self._take(waiting, credit)
            self._hand_over(consumer, batch, size)
            pumped += size
            if pumped >= LIVE_PUMP_BYTES_MAX and waiting:
                self._pool.ready.add(self.pump)
                return

    def _hand_over(self, consumer: Consumer, batch: Collection[Stored], size: int) -> None:
        """Deliver messages that were taken from the waiting ones."""
        self._changed(-size)
        if not deliver_to(consumer, self, batch):
            self.leave(consumer)

    def _take(self, waiting: deque[Stored], credit: int) -> tuple[Collection[Stored], int]:
        """Take waiting messages for one consumer with this credit. Return them and their bytes.

        A single consumer gets as many whole runs as it has credit for; a member of a group gets its share of one run.
        """
        first = waiting.popleft()
        total = len(first.run.bodies)
        count = self.group.share(total, credit)
        if count < total:
            waiting.appendleft(part_of(first, count, total))
            first = part_of(first, 0, count)
        position, run = first.position, first.run
        size = run.size
        if count < total or not waiting or self.shares or len(self.group.consumers) > 1 or run.qos > 1:
            return (first,), size
        runs = [run]
        acknowledged = total if position >= 0 else 0
        credit -= total
        while waiting and size < LIVE_PUMP_BYTES_MAX and not self._dropped_expired(waiting):
            following, _, run = waiting[0]
            credit -= len(run.bodies)
            if credit < 0 or run.qos > 1 or (acknowledged and following not in (SETTLED, position + acknowledged)):
                break
            waiting.popleft()
            runs.append(run)
            size += run.size
            if following >= 0:
                position = position if acknowledged else following
                acknowledged += len(run.bodies)
        return LiveBatch(position, runs, acknowledged) if len(runs) > 1 else (first,), size

    def _dropped_expired(self, waiting: deque[Stored]) -> bool:
        """Drop the first waiting run if it has expired. Return True if so."""
        run, pool = waiting[0].run, self._pool
        if not ((pool.expiring or run.properties) and pool.expired(run)):
            return False
        waiting.popleft()
        self._changed(-run.size)
        self.expired += len(run.bodies)
        return True

    def join(self, consumer: Consumer) -> None:
        self.group.join(consumer)

    def leave(self, consumer: Consumer, *, keep: bool = False) -> None:
        self.group.leave(consumer)
        if not self.group:
            if self._waiting is not None:
                self._waiting.clear()
            self._changed(-self._waiting_bytes)
            self._pool.ready.discard(self.pump)

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Ignore the outcome of messages above QoS 0: nothing is kept, so nothing is delivered again."""

    def _changed(self, size: int) -> None:
        self._waiting_bytes += size
        self._pool.waiting_bytes += size
        if self.pace is not SubscriberPace.KEEPING_UP and self._waiting_bytes <= self._low:
            self._pool.pressure.relieve(self)

    @property
    def _low(self) -> int:
        """Waiting bytes at which it has caught up; a stalled subscriber has to read everything."""
        return LIVE_BEHIND_BYTES_LOW if self.pace is SubscriberPace.BEHIND else 0

    def _is_its_own(self, run: Run) -> bool:
        """Return True when the only consumer published the run itself. It is not held back, as it has to acknowledge
        its messages."""
        consumers = self.group.consumers
        return len(consumers) == 1 and consumers[0].name in (device_of(run.device), client_of(run.device))


def _acknowledged_messages(runs: Sequence[Run]) -> int:
    """Return the number of messages above QoS 0."""
    return sum(len(run.bodies) for run in runs if run.flags & QOS_MASK)
