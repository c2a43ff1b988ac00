"""What a subscription gives up of its log: rejected, tried too often, undeliverable, or expired, here or with nobody
reading it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from bridge.message import Run, Stored
from edge.broker.delivery.attempts import Attempts, unpack
from edge.broker.delivery.dead_letters import DeadLetters, Reason
from edge.broker.delivery.group import part_of
from edge.broker.delivery.place import Place
from edge.broker.delivery.sweep import Judge
from edge.broker.limits import (
    ATTEMPTS_WRITTEN_S,
    GIVEN_UP_READ_BYTES,
    GIVING_UP_MAX,
    READ_BYTES_MAX,
    SWEEP_AGAIN_S,
    SWEEP_RANGES_MAX,
)
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import Store

ATTEMPTS: Final = "attempts"
"""Kind of the small state that says how often messages failed: `Burying.name_in_log` -> `Attempts.pack`."""

SWEEP_AGAIN_NS: Final = int(SWEEP_AGAIN_S * 1e9)


class Burying(Place, ABC):
    """See the module's docstring; base of `LogSubscription`. It is the `Owner` of what `DeadLetters` has under way."""

    def __init__(
        self,
        store: Store,
        log: int,
        cursor: int,
        *,
        position: int,
        name: str,
        deadletters: DeadLetters,
        acknowledged: Iterable[tuple[int, int]],
    ) -> None:
        """As `LogSubscription`."""
        super().__init__(store, log, cursor, position, acknowledged)
        self.name = name
        self.policy = AddressPolicy()
        """What the address promises of redelivery, time to live and dead letters."""
        self.expires = True
        """False: a time to live does not count here (a forwarder sends on what it was given)."""
        self._closed = False
        self._buffer: deque[Stored] = deque()
        self._deadletters = deadletters
        self._attempts = Attempts()
        self._failed = self._attempts.counts  # empty nearly always: then nothing is looked at message by message
        self._giving_up: deque[tuple[int, int, Reason]] = deque()  # to be read from the store
        self._refused: deque[tuple[int, int, Reason]] = deque()  # the same, at the next tick
        self._given_up = 0  # on their way to a dead letter address
        self._leaving = Ranges()
        """All that is to be given up, and is not yet."""
        self._burying = False
        self._attempts_kept = False
        self._attempts_due_s = 0.0  # when their counts may be written again
        self._timeless = b""  # properties seen last that say nothing of a time to live
        self._due_ns: int | None = 0 if position < store.bounds(log)[1] else None
        """When something that waits in the store may have expired (UTC); 0: not known, None: nothing expires."""

    @abstractmethod
    def wants(self, run: Run) -> bool:
        """True when the run is one this subscription delivers."""

    @abstractmethod
    def pump(self) -> None:
        """Deliver what is waiting, or give it up when it has expired."""

    @abstractmethod
    def raised(self, error: Exception) -> None:
        """One of the calls below raised."""

    @abstractmethod
    def tick(self, now_s: float) -> bool:
        """Do what is due; False when nothing more is to come."""

    # --- from the sweeper -------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """See `edge.broker.delivery.sweep.Swept`."""
        if not self.expires or self._closed or not self._may_bury:
            return False
        if self._buffer and (self.policy.ttl_max_s is not None or self._buffer[0].run.properties != self._timeless):
            self.pump()  # which begins with what has expired, whether or not somebody has credit
        due_ns = self._due_ns
        if due_ns is None or now_ns < due_ns < now_ns + 2 * SWEEP_AGAIN_NS:  # further off: the clock was set back
            return False
        self._due_ns = None
        return self.lowest < self._store.bounds(self.log)[1]

    def bury_expired(self, start: int, runs: Sequence[Stored], judge: Judge) -> bool:
        """See `edge.broker.delivery.sweep.Swept`."""
        if self._closed:
            return False
        at, again = start, judge.now_ns + SWEEP_AGAIN_NS
        soonest: int | None = None
        for stored in runs:
            self._pass(at, stored.position)
            first, at = stored.position, stored.position + len(stored.run.bodies)
            if not self.wants(stored.run):
                self._pass(first, at)
                continue
            due_ns = self._bury_when_over(stored, judge, again)
            if due_ns is not None:
                soonest = due_ns if soonest is None else min(soonest, due_ns)
        more = bool(runs) and at < self._store.bounds(self.log)[1]
        all_gone = more and self.lowest >= at
        if all_gone:
            self._due_ns = 0
        elif more or soonest is not None:
            self._look_again(again if soonest is None else min(soonest, again))
        return all_gone and self._may_bury

    def _bury_when_over(self, stored: Stored, judge: Judge, again: int) -> int | None:
        """Give up what nobody has of an expired run; of one that stays, when to look at it again."""
        first, end = stored.position, stored.position + len(stored.run.bodies)
        parts = self.available(first, end - 1)
        ttl = ttl_ns(stored.run, self.policy) if parts else None
        if ttl is None:
            return None
        over = judge.over(stored.run, ttl)
        if over is False:
            return stored.run.received_at + ttl
        if over is None or (first > self._next and len(self._done) >= SWEEP_RANGES_MAX):
            return again
        for low, high in parts:
            self._take(low, high)
            self._bury(part_of(stored, low - first, high - first + 1), Reason.EXPIRED)
        return None

    def _pass(self, first: int, end: int) -> None:
        """Nothing below `end` concerns us from `first` on; the cursor moves when that is where it stands."""
        if first <= self._next < end:
            self._skip_to(end)

    def _note_due(self, run: Run) -> None:
        """A run stays in the store: it may expire there."""
        ttl = ttl_ns(run, self.policy) if self.expires else None
        if ttl is None:
            self._timeless = run.properties
        else:
            self._look_again(run.received_at + ttl)

    def _look_again(self, at_ns: int) -> None:
        self._due_ns = at_ns if self._due_ns is None else min(self._due_ns, at_ns)

    # --- from the dead letters --------------------------------------------------------------------------------

    def given_up(self, first: int, last: int) -> None:
        """These messages are in the ledger, or on disk at their dead letter address."""
        full = self._given_up > GIVING_UP_MAX
        self._given_up -= last - first + 1
        self._leaving.remove(first, last)
        if self._closed:
            return
        self._store.acknowledge(self.cursor, first, last)
        if self._failed:
            self._forget_attempts(first, last)
        if full and self._given_up <= GIVING_UP_MAX:
            self._bury_next()
            self.pump()

    def give_up_again(self, first: int, last: int, reason: Reason) -> None:
        """The dead letter was not stored; `tick` tries again."""
        self._given_up -= last - first + 1
        if self._refused and self._refused[-1][1:] == (first - 1, reason):
            first = self._refused.pop()[0]
        self._refused.append((first, last, reason))

    # --- attempts over a restart ------------------------------------------------------------------------------

    def recall_attempts(self, packed: bytes) -> None:
        """Count on from what a former process kept, for messages that are still to be had."""
        self._attempts_kept = True
        for position, count in unpack(packed).items():
            if position < self._store.bounds(self.log)[1] and self.available(position, position):
                self._failed[position] = count

    def _forget_attempts(self, first: int, last: int) -> None:
        """These are settled."""
        self._attempts.forget(first, last)
        if self._attempts.changed:
            self._deadletters.wake_later(self)

    def _keep_attempts(self, now_s: float) -> None:
        """Have the store remember how often what is here has failed, if that decides about anything."""
        if not self._attempts.changed or now_s < self._attempts_due_s or self._closed:
            return
        self._attempts_due_s = now_s + ATTEMPTS_WRITTEN_S
        packed = self._attempts.pack()
        if packed is not None and self.policy.redelivery.attempts_max is not None:
            self._store.put(ATTEMPTS, self.name_in_log, packed)
            self._attempts_kept = True
        else:
            self._drop_attempts()

    def _drop_attempts(self) -> None:
        if self._attempts_kept:
            self._store.delete(ATTEMPTS, self.name_in_log)
            self._attempts_kept = False

    @property
    def name_in_log(self) -> str:
        """What the cursor is called among those of all logs."""
        return f"{self.log} {self.name}"

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _may_bury(self) -> bool:
        """There is room at the dead letter address, as far as is known, and not too much on its way to it."""
        return not (self._giving_up or self._refused) and self._given_up <= GIVING_UP_MAX

    def _bury_later(self, first: int, last: int, reason: Reason) -> None:
        """To be read from the store, as it is not in memory any more."""
        self._leaving.add(first, last)
        self._giving_up.append((first, last, reason))

    def _bury(self, stored: Stored, reason: Reason) -> None:
        count = len(stored.run.bodies)
        self._leaving.add(stored.position, stored.position + count - 1)
        self._given_up += count
        self._deadletters.give_up(self, stored, reason)

    def _bury_again(self) -> None:
        """What was refused at the last tick may be taken now."""
        self._giving_up += self._refused
        self._refused.clear()
        self._bury_next()

    def _bury_next(self) -> None:
        """Read what is to be given up, a piece at a time: it is not in memory any more."""
        if self._giving_up and not self._burying and not self._closed and self._given_up <= GIVING_UP_MAX:
            self._burying = True
            first, last, _ = self._giving_up[0]
            bytes_max = min(READ_BYTES_MAX, (last - first + 1) * GIVEN_UP_READ_BYTES)
            self._store.read(self.log, first, bytes_max, self._read_dead)

    def _read_dead(self, runs: Sequence[Stored]) -> None:
        self._burying = False
        if self._closed:
            return
        try:
            self._bury_read(runs)
        except Exception as error:
            self.raised(error)

    def _bury_read(self, runs: Sequence[Stored]) -> None:
        first, last, reason = self._giving_up.popleft()
        self._leaving.remove(first, last)
        end = first
        for stored in runs:
            start, end = max(stored.position, first), min(stored.position + len(stored.run.bodies), last + 1)
            if start < end:
                self._bury(part_of(stored, start - stored.position, end - stored.position), reason)
            if end > last:
                break
        if runs and end <= last:
            self._giving_up.appendleft((max(end, first), last, reason))
            self._leaving.add(max(end, first), last)
        if not self._refused:
            self._bury_next()
