"""Sweeping of expired messages that no consumer reads. Without it they would fill the card until a consumer comes.

Each tick goes through subscriptions in rotation. If something may have expired in one, a bounded piece of its oldest
messages is read. Expired messages are dropped as usual (`delivery.dead_letters`): an entry of the ledger or a copy at
the expiry address, in the commit that acknowledges them. If all of a piece has expired, the next one is read.

An expired message behind more than a piece of longer-lived ones waits for them. The log keeps everything from its
oldest message on, so dropping it sooner would not free a byte.

A clock that may have been set since a message arrived is not trusted. While the clock is known to be good, messages are
judged that a good clock stamped. Otherwise messages are judged that arrived since the clock was last seen to run
steadily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, Protocol

import msgspec

from bridge.message import Run, Stored
from edge.broker.limits import (
    PENDING_BYTES_LOW,
    SWEEP_BYTES_MAX,
    SWEEP_READ_BYTES_MAX,
    SWEEP_RUNS_MAX,
    SWEEP_VISITS_MAX,
)
from edge.broker.model.clock import MessageClock, Steady
from edge.broker.store.contract import Store
from edge.broker.store.meter import ByteMeter

STEADY: Final = ("clock", "steady")
"""Kind and key of the small state with the time since which the clock was not set."""


class ExpiryClock(Protocol):
    """Decides whether a message has expired."""

    now_ns: int
    """Current time, UTC."""

    def is_expired(self, run: Run, ttl: int) -> bool | None:
        """Return True when `ttl` nanoseconds have passed since the run arrived; None when no clock can decide."""
        ...


class SweepTarget(Protocol):
    """Subscription, as the sweeper uses it."""

    log: int

    @property
    def lowest(self) -> int:
        """Position below which no message is available."""
        ...

    def due(self, now_ns: int) -> bool:
        """Drop expired messages in memory. Return True when a stored message may have expired."""
        ...

    def discard_expired(self, start: int, runs: list[Stored], judge: ExpiryClock) -> bool:
        """Drop expired messages of a read from `start` on. Return True when all of it is gone and there is more."""
        ...

    def handle_error(self, error: Exception) -> None:
        """Handle an exception of these methods."""
        ...


class Sweeper:
    """Finds expired messages in the store, some in each tick."""

    def __init__(
        self,
        store: Store,
        clock: MessageClock,
        subscriptions: Callable[[], Iterable[SweepTarget]],
        flush_soon: Callable[[], None],
    ) -> None:
        """`subscriptions` returns all of them; `flush_soon` is called when something joined the open group."""
        self._store = store
        self._clock = clock
        self._subscriptions = subscriptions
        self._flush_soon = flush_soon
        self._remembered = self._recall()
        if self._remembered is not None:
            clock.resume(self._remembered)
        self._remember()  # in the first commit, as its messages age by this
        self._round: Iterator[SweepTarget] = iter(())
        self._short: set[ByteMeter] = set()
        self._reading = False
        self._bytes_left = 0
        self._runs_left = 0

    def first(self, meter: ByteMeter) -> None:
        """Sweep the logs of this meter first: it has no room for new messages."""
        self._short.add(meter)

    def tick(self) -> None:
        """Sweep some subscriptions. Called every `limits.TICK_S` while commits succeed."""
        self._clock.read()
        self._remember()
        self._bytes_left, self._runs_left = SWEEP_BYTES_MAX, SWEEP_RUNS_MAX
        if not self._reading:
            self._continue()

    def _remember(self) -> None:
        """Store the state of the clock when it has changed."""
        if self._clock.steady != self._remembered:
            self._remembered = self._clock.steady
            self._store.state.put(*STEADY, msgspec.msgpack.encode(self._remembered))

    def _recall(self) -> Steady | None:
        """Return the state of the clock that a former process stored."""
        kind, key = STEADY
        value = dict(self._store.state.items(kind)).get(key)
        return None if value is None else msgspec.msgpack.decode(value, type=Steady)

    def _continue(self) -> None:
        """Read from the next subscription that is due, unless this tick's work is done."""
        if self._bytes_left <= 0 or self._runs_left <= 0 or self._store.commits.pending_bytes > PENDING_BYTES_LOW:
            return
        if self._short:
            short, self._short = self._short, set()
            meter_of = self._store.retention.meter_of
            self._round = iter(sorted(self._subscriptions(), key=lambda one: meter_of(one.log) not in short))
        began = False
        for _ in range(SWEEP_VISITS_MAX):
            subscription = next(self._round, None)
            if subscription is None:
                if began:
                    return  # all were checked
                self._round, began = iter(list(self._subscriptions())), True
            elif self._is_due(subscription):
                self._read(subscription)
                return

    def _is_due(self, subscription: SweepTarget) -> bool:
        try:
            return subscription.due(self._clock.now_ns)
        except Exception as error:
            subscription.handle_error(error)
            return False

    def _read(self, subscription: SweepTarget) -> None:
        self._reading = True
        start = subscription.lowest
        done = partial(self._have_read, subscription, start)
        self._store.logs.read(subscription.log, start, SWEEP_READ_BYTES_MAX, done)

    def _have_read(self, subscription: SweepTarget, start: int, runs: Iterable[Stored]) -> None:
        self._reading = False
        looked_at = list(runs)[: self._runs_left]
        self._bytes_left -= sum(stored.run.size for stored in looked_at)
        self._runs_left -= len(looked_at)
        try:
            more = subscription.discard_expired(start, looked_at, self._clock)
        except Exception as error:
            subscription.handle_error(error)
            more = False
        self._flush_soon()
        if more and self._bytes_left > 0 and self._runs_left > 0:
            self._read(subscription)
        else:
            self._continue()
