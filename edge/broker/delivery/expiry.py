"""Messages of one subscription whose time to live passes while they wait: in memory, or in the store with nobody
reading them (`delivery.sweep` looks there)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bridge.message import Run, Stored
from edge.broker.delivery.consumer_group import part_of
from edge.broker.delivery.cursor_window import CursorWindow
from edge.broker.delivery.dead_lettering import DeadLettering
from edge.broker.delivery.dead_letters import DeadLetters, LossReason
from edge.broker.delivery.sweep import Judge
from edge.broker.limits import SWEEP_AGAIN_S, SWEEP_RANGES_MAX
from edge.broker.message.time_to_live import ttl_ns

SWEEP_AGAIN_NS: Final = int(SWEEP_AGAIN_S * 1e9)


class Waiting(Protocol):
    """The subscription."""

    @property
    def lowest(self) -> int:
        """No message below is to be had."""
        ...

    def wants(self, stored: Stored) -> bool:
        """The run is one this subscription delivers."""
        ...

    def waiting(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of ``first..last`` nobody has, ascending."""
        ...

    def take(self, first: int, last: int) -> None:
        """These are not to be delivered any more."""
        ...


class Expiry:
    """See the module's docstring."""

    __slots__ = (
        "_dead_lettering",
        "_deadletters",
        "_subscription",
        "_window",
        "abandoned",
        "counts",
        "due_ns",
        "looking",
        "timeless",
    )

    def __init__(
        self,
        subscription: Waiting,
        window: CursorWindow,
        dead_lettering: DeadLettering,
        deadletters: DeadLetters,
    ) -> None:
        self.counts = True
        """False: a time to live does not count here (a forwarder sends on what it was given)."""
        self.abandoned = False
        """Nobody comes for what waits: all of it is given up."""
        self.timeless = b""
        """Properties seen last that say nothing of a time to live."""
        self._subscription = subscription
        self._window = window
        self._dead_lettering = dead_lettering
        self._deadletters = deadletters
        self.due_ns: int | None = 0 if window.next < window.end else None
        """When something that waits in the store may have expired (UTC); 0: not known, None: nothing expires."""
        self.looking = False
        """The sweeper is reading what waits."""

    def count(self, *, counts: bool) -> None:
        """Let a time to live count here, or not."""
        self.counts = counts

    @property
    def is_at_rest(self) -> bool:
        """Nobody looks, or is about to."""
        return not self.looking and self.due_ns != 0

    @property
    def sleeps(self) -> bool:
        """That a run without properties stays changes nothing."""
        return not self.timeless and (self.due_ns is not None or self._dead_lettering.policy.ttl_max_s is None)

    def is_over(self, run: Run) -> bool:
        """Its time to live has passed."""
        ttl = ttl_ns(run, self._dead_lettering.policy) if self.counts else None
        if ttl is None:
            self.timeless = run.properties
            return False
        return self._deadletters.expired(run, ttl)

    def may_be_over(self, run: Run) -> bool:
        """It may have a time to live: worth asking `is_over`."""
        return run.properties != self.timeless or self._dead_lettering.policy.ttl_max_s is not None

    def stays(self, run: Run) -> None:
        """A run is left in the store: it may expire there."""
        if run.properties == self.timeless and not (
            self.due_ns is None and self._dead_lettering.policy.ttl_max_s is not None
        ):
            return
        ttl = ttl_ns(run, self._dead_lettering.policy) if self.counts else None
        if ttl is None:
            self.timeless = run.properties
        else:
            self._look_again(run.received_at + ttl)

    def abandon(self) -> None:
        """Nobody comes for what waits: all of it is to be given up, as if it had expired."""
        self.abandoned = True
        self.look()

    def reclaim(self) -> None:
        """Somebody has come after all, for what is left."""
        self.abandoned = False
        self.look()

    def look(self) -> None:
        """Nobody knows of what is in the store whether it has expired."""
        self.due_ns = 0

    # --- from the sweeper -------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """Something that waits in the store may have expired."""
        due_ns = self.due_ns
        if due_ns is None or now_ns < due_ns < now_ns + 2 * SWEEP_AGAIN_NS:  # further off: the clock was set back
            return False
        self.due_ns = None
        self.looking = self._subscription.lowest < self._window.end
        return self.looking

    def give_up_expired(self, start: int, runs: Sequence[Stored], judge: Judge) -> bool:
        """See `edge.broker.delivery.sweep.Swept`."""
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
            due_ns = self._give_up_when_over(stored, judge, again)
            if due_ns is not None:
                soonest = due_ns if soonest is None else min(soonest, due_ns)
        more = bool(runs) and at < window.end
        all_gone = more and self._subscription.lowest >= at
        if all_gone:
            self.due_ns = 0
        elif more or soonest is not None:
            self._look_again(again if soonest is None else min(soonest, again))
        return all_gone and self._dead_lettering.is_free

    # --- inside -----------------------------------------------------------------------------------------------

    def _give_up_when_over(self, stored: Stored, judge: Judge, again: int) -> int | None:
        """Give up what nobody has of an expired run; of one that stays, when to look at it again."""
        window, policy = self._window, self._dead_lettering.policy
        first, end = stored.position, stored.position + len(stored.run.bodies)
        parts = self._subscription.waiting(first, end - 1)
        reason = LossReason.UNUSED if self.abandoned else LossReason.EXPIRED
        if not self.abandoned:
            ttl = ttl_ns(stored.run, policy) if parts else None
            if ttl is None:
                return None
            over = judge.over(stored.run, ttl)
            if over is False:
                return stored.run.received_at + ttl
            if over is None or (first > window.next and len(window.done) >= SWEEP_RANGES_MAX):
                return again
        for low, high in parts:
            self._subscription.take(low, high)
            self._dead_lettering.give_up(part_of(stored, low - first, high - first + 1), reason)
        return None

    def _pass(self, first: int, end: int) -> None:
        """Nothing below `end` concerns us from `first` on; the cursor moves when that is where it stands."""
        if first <= self._window.next < end:
            self._window.skip_to(end)

    def _look_again(self, at_ns: int) -> None:
        self.due_ns = at_ns if self.due_ns is None else min(self.due_ns, at_ns)
