"""Logs kept in memory (``durability: memory``): each is a bounded ring that is lost with the process.

A message gets its numbers, is stored and acknowledged at once, and is never written. It leaves the ring when every
cursor has passed it. When the ring is full, the oldest messages are dropped. The rest is dropped when the store is
closed, or when the log is kept on the medium again. The loss ledger gets an entry for each consumer group that wanted
dropped messages.

Only numbers are written. Positions and sequences are reserved ahead (`reservation`), in a few commits a minute. So none
is used twice after a crash, and then the ledger gets the reserved range (`crash_losses`). A message without a reserved
number waits for the commit that reserves one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from bridge.message import Run, Stored
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.eviction import EVICTED
from edge.broker.store.group import CommitGroup
from edge.broker.store.limits import MEMORY_AHEAD_SHARE, MEMORY_LOSSES_MAX, StoreLimits
from edge.broker.store.logs import LogState
from edge.broker.store.losses import losses_of
from edge.broker.store.records import Loss
from edge.broker.store.reservation import MEMORY
from edge.broker.store.ring import MessageRing, WaitingRuns, cost_of
from edge.broker.store.ring_numbers import RingNumbers
from edge.broker.store.ring_part import RingPart
from edge.broker.store.tables import StoreTables
from edge.broker.store.ticket import Ticket


class MemoryRings:
    """Rings of all logs that are kept in memory."""

    def __init__(
        self,
        limits: StoreLimits,
        tables: StoreTables,
        load: Callable[[Iterable[str]], dict[str, int]],
        clock: Callable[[], float],
    ) -> None:
        """`load` reads the next sequences of addresses from the medium. `clock`: seconds, monotonic."""
        self._limits = limits
        self._clock = clock
        self._gatherer, self._logs, self._cursors = tables.gatherer, tables.logs, tables.cursors
        self.rings: dict[int, MessageRing] = {}
        self.numbers = RingNumbers(limits, tables, load, self.rings)
        self.cost = 0
        """Sum of `MessageRing.cost`."""
        self.waiting_bytes = 0
        """Bytes of bodies that wait for numbers to be reserved."""
        self._entering: set[int] = set()
        """Logs without `MessageRing.start` so far."""
        self._leaving: set[int] = set()
        self._waiting: set[int] = set()
        """Logs with `MessageRing.waiting`."""
        self._losses: dict[tuple[str, str, str], Loss] = {}
        """Ranges for the ledger that may still grow, by subscription, address and reason."""
        self._ended: list[Loss] = []
        """Ranges for the ledger that are complete."""
        self._losses_since_s: float | None = None
        self._checked_at_s = 0.0

    @property
    def size(self) -> int:
        """Bytes of bodies in all rings."""
        return sum(ring.size for ring in self.rings.values())

    # --- logs -------------------------------------------------------------------------------------------------

    def enter(self, state: LogState) -> None:
        """Keep further messages of this log in memory."""
        ring = self.rings.get(state.log)
        if ring is None:
            self._cursors.of(state)  # load idle cursors: a ring needs the progress of each
            state.ring = self.rings[state.log] = MessageRing(state.log)
            self._entering.add(state.log)
        elif ring.leaving:
            ring.returns = True
        else:  # addresses may have moved to other logs, which need their numbers
            self.numbers.release(ring.addresses)

    def leave(self, ring: MessageRing, group: CommitGroup | None = None) -> None:
        """Keep further messages of this log on the medium.

        The messages in the ring are entered into the ledger, except those that `group` enters anyway.
        """
        ring.returns = False
        if not ring.leaving:
            ring.leaving = True
            self._leaving.add(ring.log)
            self._refuse(ring, StoreError("the durability of the address is changing: send the message again"))
            self.settle()
            self._drop(ring, MEMORY, cost=0, group=group)
            if ring.start is None:
                self._forget(ring)

    def _forget(self, ring: MessageRing) -> None:
        state = self._logs[ring.log]
        del self.rings[ring.log]
        self._entering.discard(ring.log)
        self._leaving.discard(ring.log)
        state.ring = None
        if ring.returns:
            self.enter(state)

    # --- append -----------------------------------------------------------------------------------------------

    def append(self, ring: MessageRing, run: Run, size: int) -> Stored | Ticket:
        """Number a run and store it. Return a ticket when numbers have to be reserved first."""
        stored = None if ring.waiting else self._take(ring, run, size)
        if stored is not None:
            return stored
        if not ring.waiting or ring.waiting[-1].sealed:
            ring.waiting.append(WaitingRuns())
            self._waiting.add(ring.log)
        ring.waiting[-1].runs.append((run, size))
        self.waiting_bytes += size
        self._gatherer.open.urgent = True
        return ring.waiting[-1].ticket

    def _take(self, ring: MessageRing, run: Run, size: int) -> Stored | None:
        numbers = self.numbers.take(ring, run.address, len(run.bodies))
        if numbers is None:
            return None
        position, sequence, reservation = numbers
        cost, state = cost_of(size, len(run.bodies)), self._logs[ring.log]
        self._make_room(ring, cost)
        stored = Stored(position, sequence, run)
        ring.add(stored, size, reservation)
        self.cost += cost
        self._logs.move(state, end=position + len(run.bodies), size=size)
        if not state.has_cursors:
            self._logs.passed.add(state.log)
        return stored

    def _take_waiting(self, ring: MessageRing) -> list[tuple[int, Stored]]:
        """Take waiting runs while there are numbers for all runs of a ticket."""
        taken: list[tuple[int, Stored]] = []
        while ring.waiting and self.numbers.are_enough(ring, ring.waiting[0].messages):
            waiting = ring.waiting.popleft()
            for run, size in waiting.runs:
                self.waiting_bytes -= size
                stored = self._take(ring, run, size)
                if stored is None:
                    raise RuntimeError("reserved numbers are missing")
                taken.append((ring.log, stored))
            waiting.ticket.decide(None)
        return taken

    def _refuse(self, ring: MessageRing, error: StoreError) -> None:
        for waiting in ring.waiting:
            self.waiting_bytes -= sum(size for _, size in waiting.runs)
            waiting.ticket.decide(error)
        ring.waiting.clear()
        self._waiting.discard(ring.log)

    # --- removal ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Remove messages that every cursor has passed."""
        while self._logs.passed:
            ring = self.rings.get(self._logs.passed.pop())
            if ring is not None and ring.start is not None:
                state, cost, size = self._logs[ring.log], ring.cost, ring.size
                lowest = self._cursors.lowest(state, state.next)
                while ring.runs and ring.runs[0].end <= lowest:
                    ring.pop()
                self._shrank(ring, cost, size)

    def release_space(self, ring: MessageRing, size: int, at_most: int | None) -> None:
        """Drop the oldest messages: `size` bytes of bodies or a little more, and never more than `at_most`."""
        self._drop(ring, EVICTED, size=size, at_most=at_most)

    def _make_room(self, ring: MessageRing, cost: int) -> None:
        """Drop the oldest messages until there is room for `cost`. A message above the limits is kept alone."""
        limits = self._limits
        if ring.cost + cost > limits.memory_bytes_max:
            self.settle()
            if ring.cost + cost > limits.memory_bytes_max:
                ahead = max(cost, limits.memory_bytes_max // MEMORY_AHEAD_SHARE)
                self._drop(ring, EVICTED, cost=max(0, limits.memory_bytes_max - ahead))
        total, ahead = limits.memory_total_bytes_max, limits.memory_total_bytes_max // MEMORY_AHEAD_SHARE
        if self.cost + cost > total:
            self.settle()
            while self.cost and self.cost + cost > total:
                largest = max(self.rings.values(), key=lambda each: each.cost)
                self._drop(largest, EVICTED, cost=max(0, largest.cost - max(cost, ahead)))

    def _drop(
        self,
        ring: MessageRing,
        reason: str,
        *,
        size: int = 0,
        cost: int | None = None,
        at_most: int | None = None,
        group: CommitGroup | None = None,
    ) -> None:
        """Drop the oldest messages until `size` bytes of bodies are removed and the ring costs at most `cost`."""
        if not ring.runs:
            return
        state, first, end = self._logs[ring.log], ring.runs[0].stored.position, 0
        cost_before, size_before, now_ns = ring.cost, ring.size, time.time_ns()
        claims = self._cursors.claims_of(state) if group is None else self._cursors.claims(state, group)
        while ring.runs and (size_before - ring.size < size or (cost is not None and ring.cost > cost)):
            room = ring.size if at_most is None else at_most - (size_before - ring.size)
            if ring.runs[0].size > room:
                if not ring.cut(room):
                    break
                continue
            run = ring.pop()
            end = run.end
            for loss in losses_of(claims, [run.stored], reason, now_ns):
                self._note(loss)
        if end:
            for cursor in self._cursors.in_use(state):
                self._cursors.advance(cursor, first, end - 1)
            self._shrank(ring, cost_before, size_before)

    def _shrank(self, ring: MessageRing, cost: int, size: int) -> None:
        """Update the totals after messages left a ring. `cost` and `size` are its previous values."""
        self.cost -= cost - ring.cost
        state = self._logs[ring.log]
        first = None
        if ring.start is None or state.first >= ring.start:
            first = ring.runs[0].stored.position if ring.runs else state.next
        self._logs.move(state, first=first, size=ring.size - size)

    def _note(self, loss: Loss) -> None:
        """Collect a loss for the ledger. Adjacent ranges are merged, because a ring may overflow for months."""
        kind = (loss.subscription, loss.address, loss.reason)
        before = self._losses.get(kind)
        if before is not None and before.last + 1 == loss.first:
            messages, size = before.messages + loss.messages, before.bytes + loss.bytes
            self._losses[kind] = loss._replace(first=before.first, messages=messages, bytes=size)
        else:
            if before is not None:
                self._ended.append(before)
            self._losses[kind] = loss
        if self._losses_since_s is None:
            self._losses_since_s = self._clock()

    # --- when a commit is due ---------------------------------------------------------------------------------

    def maintain(self, now: float) -> None:
        """Remove messages that every cursor has passed, and find idle addresses."""
        self.settle()
        if now - self._checked_at_s >= self._limits.memory_idle_s:
            self._checked_at_s = now
            self.numbers.find_idle()

    def is_due(self, now: float) -> bool:
        """Return True when the rings alone require a commit."""
        if self.numbers.are_due or self._leaving:
            return True
        since = self._losses_since_s
        many = len(self._losses) + len(self._ended) > MEMORY_LOSSES_MAX
        return since is not None and (many or now >= since + self._limits.memory_ledger_s)

    # --- for a group ------------------------------------------------------------------------------------------

    def choose(self, group: CommitGroup, now: float, *, accounted: bool) -> None:
        """Select what a sealed group writes. `accounted`: `CrashLosses.account` has nothing left to do."""
        self.settle()
        for ring in [*self.rings.values()] if group.last else ():
            self.leave(ring, group)
        for log in [log for log in self._entering if accounted and log not in group.ends]:
            self.rings[log].start = self._logs[log].next
            self._entering.remove(log)
        part = self.numbers.choose(group, now, self._leaving, self._needed())
        for log in part.refused:
            most = self._limits.memory_addresses_max
            error = StoreFull(f"{most} addresses have messages in memory: no other address is accepted")
            self._refuse(self.rings[log], error)
        group.losses += [*self._ended, *self._losses.values()]
        self._ended, self._losses, self._losses_since_s = [], {}, None
        if part:
            group.ring = part
        if accounted and self._entering & self._waiting:
            self._gatherer.open.urgent = True

    def _needed(self) -> dict[int, dict[str, int]]:
        """Return the number of waiting messages by log and address, and assign them to the group being sealed."""
        needed: dict[int, dict[str, int]] = {}
        for log in self._waiting - self._entering:
            counts = needed[log] = {}
            for waiting in self.rings[log].waiting:
                waiting.sealed = True
                for address, count in waiting.messages.items():
                    counts[address] = counts.get(address, 0) + count
        return needed

    # --- the end of a commit ----------------------------------------------------------------------------------

    def committed(self, part: RingPart) -> None:
        """Use the reservations of a committed group."""
        self.numbers.committed(part, self._clock())
        for log in part.left:
            self._logs.to_reclaim[log] = None
            self._forget(self.rings[log])

    def take_waiting(self) -> list[tuple[int, Stored]]:
        """Store waiting runs that have numbers now, and return them for `Committed`."""
        taken: list[tuple[int, Stored]] = []
        for log in sorted(self._waiting - self._entering):
            ring = self.rings[log]
            taken += self._take_waiting(ring)
            if ring.waiting:
                self._gatherer.open.urgent = True
            else:
                self._waiting.remove(log)
        return taken

    def failed(self, group: CommitGroup, error: StoreError) -> None:
        """Refuse waiting runs, and schedule the changes of a failed group again."""
        for log in list(self._waiting):
            self._refuse(self.rings[log], error)
        self.numbers.failed(group)
