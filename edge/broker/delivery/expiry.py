"""Expiry of waiting messages of one subscription, in memory or in the store.

Stored messages that no consumer reads are found by `delivery.sweep`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bridge.message import Run, Stored
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.cursor_window import CursorWindow
from edge.broker.delivery.dead_lettering import DeadLettering
from edge.broker.delivery.dead_letters import DeadLetters, LossReason, ends_in_doubt
from edge.broker.delivery.sweep import ExpiryClock
from edge.broker.limits import SWEEP_AGAIN_S, SWEEP_RANGES_MAX
from edge.broker.message.time_to_live import ttl_ns

SWEEP_AGAIN_NS: Final = int(SWEEP_AGAIN_S * 1e9)


class ExpiringSubscription(Protocol):
    """Subscription with messages that may expire."""

    @property
    def lowest(self) -> int:
        """Position below which no message is available."""
        ...

    def wants(self, stored: Stored) -> bool:
        """Return True when the subscription delivers this run."""
        ...

    def waiting(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the available parts of ``first..last``, ascending."""
        ...

    def take(self, first: int, last: int) -> None:
        """Take these messages, which must no longer be delivered."""
        ...


class Expiry:
    """Time to live of the waiting messages of one subscription."""

    __slots__ = (
        "_dead_lettering",
        "_deadletters",
        "_subscription",
        "_window",
        "abandoned",
        "counts",
        "due_ns",
        "looking",
        "no_ttl_properties",
    )

    def __init__(
        self,
        subscription: ExpiringSubscription,
        window: CursorWindow,
        dead_lettering: DeadLettering,
        deadletters: DeadLetters,
    ) -> None:
        self.counts = True
        """False: messages do not expire here (a forwarder sends them all)."""
        self.abandoned = False
        """True when all waiting messages are to be dropped, because no client will come for them."""
        self.no_ttl_properties = b""
        """Last seen properties without a time to live."""
        self._subscription = subscription
        self._window = window
        self._dead_lettering = dead_lettering
        self._deadletters = deadletters
        self.due_ns: int | None = 0 if window.next < window.end else None
        """Time when a stored message may have expired (UTC); 0: unknown, None: nothing expires."""
        self.looking = False
        """True while the sweeper reads waiting messages."""

    def count(self, *, counts: bool) -> None:
        """Set whether messages expire here."""
        self.counts = counts

    @property
    def is_idle(self) -> bool:
        """True when nothing is being checked, or about to be."""
        return not self.looking and self.due_ns != 0

    @property
    def sleeps(self) -> bool:
        """True when a run without properties that stays in the store changes nothing."""
        return not self.no_ttl_properties and (self.due_ns is not None or self._dead_lettering.policy.ttl_max_s is None)

    def has_expired(self, run: Run) -> bool:
        """Return True when the time to live of a run has passed."""
        ttl = ttl_ns(run, self._dead_lettering.policy) if self.counts else None
        if ttl is None:
            self.no_ttl_properties = run.properties
            return False
        return self._deadletters.expired(run, ttl)

    def may_have_expired(self, run: Run) -> bool:
        """Return True when a run may have a time to live: then ask `has_expired`."""
        return run.properties != self.no_ttl_properties or self._dead_lettering.policy.ttl_max_s is not None

    def note_stored(self, run: Run) -> None:
        """Note a run that is left in the store, where it may expire."""
        if run.properties == self.no_ttl_properties and not (
            self.due_ns is None and self._dead_lettering.policy.ttl_max_s is not None
        ):
            return
        ttl = ttl_ns(run, self._dead_lettering.policy) if self.counts else None
        if ttl is None:
            self.no_ttl_properties = run.properties
        else:
            self._schedule_check(run.received_at + ttl)

    def abandon(self) -> None:
        """Drop all waiting messages, as if they had expired."""
        self.abandoned = True
        self.recheck()

    def reclaim(self) -> None:
        """Keep the waiting messages after all: a client has come."""
        self.abandoned = False
        self.recheck()

    def recheck(self) -> None:
        """Check all stored messages, because it is unknown which have expired."""
        self.due_ns = 0

    # --- from the sweeper -------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """Return True when a stored message may have expired."""
        due_ns = self.due_ns
        if due_ns is None or now_ns < due_ns < now_ns + 2 * SWEEP_AGAIN_NS:  # later than that: the clock was set back
            return False
        self.due_ns = None
        self.looking = self._subscription.lowest < self._window.end
        return self.looking

    def discard_expired(self, start: int, runs: Sequence[Stored], judge: ExpiryClock) -> bool:
        """See `edge.broker.delivery.sweep.SweepTarget`."""
        self.looking = False
        window = self._window
        at, again = start, judge.now_ns + SWEEP_AGAIN_NS
        soonest: int | None = None
        for stored in runs:
            self._pass(at, stored.position)
            first, at = stored.position, stored.position + len(stored.run.bodies)
            if not self._subscription.wants(stored):
                self._pass(first, at)
                continue
            due_ns = self._discard_when_decided(stored, judge, again)
            if due_ns is not None:
                soonest = due_ns if soonest is None else min(soonest, due_ns)
        more = bool(runs) and at < window.end
        all_gone = more and self._subscription.lowest >= at
        if all_gone:
            self.due_ns = 0
        elif more or soonest is not None:
            self._schedule_check(again if soonest is None else min(soonest, again))
        return all_gone and self._dead_lettering.is_free

    # --- inside -----------------------------------------------------------------------------------------------

    def _discard_when_decided(self, stored: Stored, judge: ExpiryClock, again: int) -> int | None:
        """Drop the available messages of an expired run. Return when to check a run that stays."""
        window, policy = self._window, self._dead_lettering.policy
        first, end = stored.position, stored.position + len(stored.run.bodies)
        parts = self._subscription.waiting(first, end - 1)
        reason = LossReason.UNUSED if self.abandoned else LossReason.EXPIRED
        if not self.abandoned:
            ttl = ttl_ns(stored.run, policy) if parts else None
            if ttl is None:
                return None
            over = judge.is_expired(stored.run, ttl)
            if not over and ends_in_doubt(stored.run, over):
                over = True
            if over is False:
                return stored.run.received_at + ttl
            if over is None or (first > window.next and len(window.done) >= SWEEP_RANGES_MAX):
                return again
        for low, high in parts:
            self._subscription.take(low, high)
            self._dead_lettering.discard(part_of(stored, low - first, high - first + 1), reason)
        return None

    def _pass(self, first: int, end: int) -> None:
        """Move the cursor to `end` if it is between `first` and `end`, as no message between them is wanted."""
        if first <= self._window.next < end:
            self._window.skip_to(end)

    def _schedule_check(self, at_ns: int) -> None:
        self.due_ns = at_ns if self.due_ns is None else min(self.due_ns, at_ns)
