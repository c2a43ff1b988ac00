"""Messages that expire while nobody reads them: without this they would keep the card until a consumer comes.

At every tick subscriptions take their turn. Of one in which something may have expired, what waits longest is read, a
bounded piece, and what has expired is given up like everything else (`delivery.dead_letters`): an entry of the ledger
or a copy at the expiry address, in the commit that acknowledges it. When all of a piece has gone, the next one is read.

A message whose time has come behind more than a piece of others that live longer waits for them: the log keeps
everything from its oldest message on, so that giving it up sooner would not free a byte.

No clock is trusted here that may have been set since a message came: with the clock known good, messages are judged
that were stamped by a good one; while it is not, those that came since it was last seen to run steadily.
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
"""Kind and key of the small state that says since when the clock was not set."""


class Judge(Protocol):
    """Tells whether something has expired."""

    now_ns: int
    """UTC."""

    def over(self, run: Run, ttl: int) -> bool | None:
        """True when `ttl` nanoseconds have passed since the run came; None when no clock can tell."""
        ...


class Swept(Protocol):
    """A subscription, as the sweeper uses it."""

    log: int

    @property
    def lowest(self) -> int:
        """Nothing below waits."""
        ...

    def due(self, now_ns: int) -> bool:
        """Something that waits in the store may have expired; what waits in memory has been seen to."""
        ...

    def give_up_expired(self, start: int, runs: list[Stored], judge: Judge) -> bool:
        """Give up what has expired of what was read from `start` on; True when all of it is gone and there is more."""
        ...

    def raised(self, error: Exception) -> None:
        """One of these raised."""
        ...


class Sweeper:
    """See the module's docstring."""

    def __init__(
        self,
        store: Store,
        clock: MessageClock,
        subscriptions: Callable[[], Iterable[Swept]],
        flush_soon: Callable[[], None],
    ) -> None:
        """`subscriptions` are all there are; `flush_soon` is called when something joined the open group."""
        self._store = store
        self._clock = clock
        self._subscriptions = subscriptions
        self._flush_soon = flush_soon
        self._remembered = self._recall()
        if self._remembered is not None:
            clock.resume(self._remembered)
        self._remember()  # in the first commit, whatever it is for: what it stores ages by this
        self._round: Iterator[Swept] = iter(())
        self._short: set[ByteMeter] = set()
        self._reading = False
        self._bytes_left = 0
        self._runs_left = 0

    def first(self, meter: ByteMeter) -> None:
        """There is no room for what comes to the logs of this meter: what has expired in them goes first."""
        self._short.add(meter)

    def tick(self) -> None:
        """Every `limits.TICK_S`, while commits succeed."""
        self._clock.read()
        self._remember()
        self._bytes_left, self._runs_left = SWEEP_BYTES_MAX, SWEEP_RUNS_MAX
        if not self._reading:
            self._go_on()

    def _remember(self) -> None:
        """Keep what was found of the clock, when it is new."""
        if self._clock.steady != self._remembered:
            self._remembered = self._clock.steady
            self._store.state.put(*STEADY, msgspec.msgpack.encode(self._remembered))

    def _recall(self) -> Steady | None:
        """What a former process found of the clock."""
        kind, key = STEADY
        value = dict(self._store.state.items(kind)).get(key)
        return None if value is None else msgspec.msgpack.decode(value, type=Steady)

    def _go_on(self) -> None:
        """Read of the next subscription that is due, if this tick's work is not done yet."""
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
                    return  # all were asked
                self._round, began = iter(list(self._subscriptions())), True
            elif self._is_due(subscription):
                self._read(subscription)
                return

    def _is_due(self, subscription: Swept) -> bool:
        try:
            return subscription.due(self._clock.now_ns)
        except Exception as error:
            subscription.raised(error)
            return False

    def _read(self, subscription: Swept) -> None:
        self._reading = True
        start = subscription.lowest
        done = partial(self._have_read, subscription, start)
        self._store.logs.read(subscription.log, start, SWEEP_READ_BYTES_MAX, done)

    def _have_read(self, subscription: Swept, start: int, runs: Iterable[Stored]) -> None:
        self._reading = False
        looked_at = list(runs)[: self._runs_left]
        self._bytes_left -= sum(stored.run.size for stored in looked_at)
        self._runs_left -= len(looked_at)
        try:
            more = subscription.give_up_expired(start, looked_at, self._clock)
        except Exception as error:
            subscription.raised(error)
            more = False
        self._flush_soon()
        if more and self._bytes_left > 0 and self._runs_left > 0:
            self._read(subscription)
        else:
            self._go_on()
