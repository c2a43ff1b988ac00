"""Logs whose messages are taken in memory (``durability: memory``): giving out numbers, letting go, settling.

A message is named, delivered and acknowledged at once. What all consumers acknowledge soon is never written; what they
have not after `Limits.memory_window_s`, or beyond `Limits.memory_bytes_max`, is *settled*: one commit writes it with
the cursors, the counters and a new reservation of numbers. The reservation is what keeps a name from being given twice:
counters on the medium are always ahead of what is given out. After a crash, `account_for_lost` says in the ledger
which numbers between the last settlement and the reservation's end may have been given to messages that are gone.

What cannot be taken (nothing reserved yet, too much in memory) joins the open group like a message of any other log,
and is answered when that is on disk; its group settles the log, so that the next ones can be taken.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from bridge.message import Run, Stored
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import LedgerEntry, Loss, StoreError
from edge.broker.store.group import CursorState, Group, LogState
from edge.broker.store.limits import MEMORY_HOLDERS_MAX, MEMORY_LOOK_S, POSITION_MAX, Limits
from edge.broker.store.places import Places
from edge.broker.store.tail import MEMORY, Block, Mark, Settlement, Tail, cost_of, mark_key, pack_mark

logger = logging.getLogger(__name__)


class Tails(Places):
    """See the module's docstring, and `contract.Store` for what the public methods promise."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._sequences: dict[str, int] = {}
        """Next sequence of every address known here."""
        self._sealed: Group | None = None
        self._runs: list[tuple[int, Run]] = []
        self._size = 0
        self._sizes: dict[int, int] = {}
        self._blocks: dict[str, Block] = {}
        """Reservations of all tails."""
        self._held = 0
        """`Tail.cost` of all of them."""
        self._look_at_s: float | None = None
        """When some tail may have to be settled."""
        self._unsettled: set[int] = set()
        """Logs to be settled by the next group."""
        self._low: set[int] = set()
        """Logs that are running out of numbers."""
        self._lost: list[Mark] = []
        """What a crash left behind, until it is accounted for."""
        self._accounted: dict[str, bytes | None] = {}
        """Rows of small state that say so."""
        self._filled: dict[int, tuple[int, int]] = {}
        """By log, the positions ``first <= p < end`` that nothing is at, and that a segment has to say so of."""

    @abstractmethod
    def _written(self, log: int, before: int) -> int:
        """Where the last segment of a log ends that begins before a position; 0: there is none. Raises StoreError."""

    @abstractmethod
    def _read_ledger(self, after: int, entries_max: int, subscriptions: str) -> Sequence[LedgerEntry]:
        """Committed entries above `after` of subscriptions that begin so, oldest first. Raises StoreError."""

    def keep_in_memory(self, log: int, *, keep: bool) -> None:
        tail = self._tails.get(log)
        if tail is not None:
            tail.leaving, tail.stays = True, keep  # its addresses may have moved: their numbers are free again
            self._unsettled.add(log)
        elif keep:
            _, filled = self._filled.get(log, (0, 0))
            state = self._logs[log]
            try:
                written = self._written(log, POSITION_MAX)
            except StoreError as error:
                logger.warning("log %r is not kept in memory but written, as it cannot be read: %s", state.name, error)
                return
            self._tails[log] = Tail(log, state.next, max(written, filled))

    def account_for_lost(self) -> None:
        losses, now_ns = list[Loss](), time.time_ns()
        told = self._told({address for _, address, base, end in self._lost if address is not None and base < end})
        for log, address, base, end in self._lost:
            state = self._logs.get(log)
            if address is None:
                self._accounted[mark_key(log, None)] = pack_mark(end, end)
                if state is not None and base < end <= state.next:
                    self._filled[log] = max(self._written(log, end), state.first), end
                    if log in self._tails:
                        self._tails[log].written = end
                    for cursor in list(state.cursors):
                        self.acknowledge(cursor, base, end - 1)
                continue
            self._accounted[mark_key(log, address)] = None
            if state is None or base == end:
                continue
            probe = Run(address, "", 1, b"", [b""], now_ns)
            for cursor in sorted(state.cursors):
                holder = self._cursors[cursor]
                if holder.wants is None or holder.wants(probe):
                    losses += (
                        Loss(holder.name, address, first, last, last - first + 1, 0, MEMORY, now_ns)
                        for first, last in told[holder.name, address].outside(base, end - 1)
                    )
        if losses:
            most = sum(loss.messages for loss in losses)
            logger.warning("it was not stopped in order: at most %d messages were in memory only and are lost", most)
            self._ledger.note(losses)
        self._urgent = self._urgent or bool(self._lost)
        self._lost = []

    def _told(self, addresses: Set[str]) -> dict[tuple[str, str], Ranges]:
        """By subscription and address, what the ledger has already, for another reason: it is lost once."""
        told: dict[tuple[str, str], Ranges] = defaultdict(Ranges)
        entries = self._read_ledger(0, 2 * self._limits.ledger_entries_max, "") if addresses else ()
        for entry in entries:
            if entry.address in addresses and entry.messages == entry.last - entry.first + 1:
                told[entry.subscription, entry.address].add(entry.first, entry.last)
        return told

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        state = self._cursors.get(cursor)
        if state is None or not self._pass(state, first, last):
            return
        tail = self._tails.get(state.log) if self._tails else None
        if tail is not None and first >= tail.first:
            tail.moved.add(cursor)  # what it moved over was never written: it is worth no commit
        else:
            self._moved.add(cursor)

    def open_cursor(self, name: str, log: int, position: int) -> int:
        if log in self._tails:
            position = max(position, self._kept_from(self._logs[log]))  # what went before was never written
        return super().open_cursor(name, log, position)

    def drop_cursor(self, cursor: int) -> None:
        state = self._cursors.get(cursor)
        if state is not None and state.log in self._tails:
            self._tails[state.log].moved.discard(cursor)
        super().drop_cursor(cursor)

    # --- taking -----------------------------------------------------------------------------------------------

    def _take(self, tail: Tail, run: Run, size: int, now: float) -> Stored | None:
        """Name a run and keep it in memory; None when it has to wait for a commit."""
        log, sealed = tail.log, self._sealed
        if log in self._sizes or (sealed is not None and (log in sealed.ends or run.address in sealed.sequences)):
            return None  # behind what waits for the disk
        return self._name(tail, run, size, now)

    def _name(self, tail: Tail, run: Run, size: int, now: float) -> Stored | None:
        address, count = run.address, len(run.bodies)
        block = tail.addresses.get(address)
        if block is None or tail.leaving or tail.doubtful:
            return None
        if (tail.cost >= tail.look_at or self._held >= self._limits.memory_total_bytes_max) and not self._room(tail):
            return None
        state = self._logs[tail.log]
        position, sequence = state.next, self._sequences[address]
        end, following = position + count, sequence + count
        if end > tail.block.end or following > block.end:
            return None
        if end > tail.block.low or following > block.low:
            self._low.add(tail.log)
        stored = Stored(position, sequence, run)
        state.next = end
        self._sequences[address] = following
        tail.add(stored, size, now)
        self._held += cost_of(size, count)
        if self._look_at_s is None or self._look_at_s > now + self._limits.memory_window_s:
            self._look_at_s = now + self._limits.memory_window_s
        return stored

    def _absorb(self, now: float) -> list[tuple[int, Stored]]:
        """Take what has been waiting for a commit, now that there is something reserved for it: else a log that is
        never quiet would go by the medium for ever."""
        waiting = self._tails.keys() & self._sizes.keys()
        taken: list[tuple[int, Stored]] = []
        if not waiting:
            return taken
        runs, self._runs, self._size, self._sizes = self._runs, [], 0, {}
        for log, run in runs:
            size = sum(map(len, run.bodies))
            stored = self._name(self._tails[log], run, size, now) if log in waiting else None
            if stored is not None:
                taken.append((log, stored))
                continue
            waiting.discard(log)  # what comes behind it stays behind it
            self._runs.append((log, run))
            self._size += size
            self._sizes[log] = self._sizes.get(log, 0) + size
        return taken

    # --- letting go -------------------------------------------------------------------------------------------

    def _room(self, tail: Tail) -> bool:
        """Let go of what can go, ask for settling where that is not enough; True when more can be taken."""
        limits = self._limits
        self._let_go(tail)
        if tail.cost >= limits.memory_bytes_max or self._held >= limits.memory_total_bytes_max:
            self._unsettled.add(tail.log)
        room = tail.cost < 2 * limits.memory_bytes_max and self._held < limits.memory_total_bytes_max
        tail.look_at = min(tail.cost + limits.memory_bytes_max // 4, 2 * limits.memory_bytes_max)
        return room

    def _let_go(self, tail: Tail) -> None:
        """Forget the oldest that nobody wants any more."""
        before = tail.cost
        state = self._logs[tail.log]
        tail.drop(self._floor(state, state.next))
        if tail.taken and len(state.cursors) <= MEMORY_HOLDERS_MAX:
            holders = [self._cursors[cursor] for cursor in state.cursors]
            unwanted = 0
            for stored, _, _ in tail.taken:
                if _open_ranges(holders, stored):
                    break
                unwanted = stored.position + len(stored.run.bodies)
            tail.drop(unwanted)
        self._held -= before - tail.cost

    def _look(self, now: float) -> None:
        """Find the tails that have to be settled by now."""
        if self._look_at_s is None or now < self._look_at_s:
            return
        soonest: float | None = None
        for tail in self._tails.values():
            self._let_go(tail)
            dues = [] if tail.changed_at_s is None else [tail.changed_at_s + self._limits.memory_settle_s]
            if tail.taken:
                dues.append(tail.taken[0].at_s + self._limits.memory_window_s)
            if tail.idle_at_s is not None:
                dues.append(tail.idle_at_s)
            if not dues:
                continue
            due = min(dues)
            if due <= now:
                self._unsettled.add(tail.log)
            elif soonest is None or due < soonest:
                soonest = due
        self._look_at_s = None if soonest is None else max(soonest, now + MEMORY_LOOK_S)

    def _look_by(self, at_s: float) -> None:
        if self._look_at_s is None or self._look_at_s > at_s:
            self._look_at_s = at_s

    def _in_memory(self, log: int) -> int:
        """Bytes of bodies of a log that are in memory only and that somebody wants."""
        tail = self._tails.get(log)
        if tail is None:
            return 0
        self._let_go(tail)
        return tail.size

    def _kept_from(self, state: LogState) -> int:
        """The first position that is kept, on the medium or in memory."""
        tail = self._tails.get(state.log)
        if tail is None or state.first < tail.written:
            return state.first
        self._let_go(tail)
        return tail.taken[0].stored.position if tail.taken else state.next

    # --- settling ---------------------------------------------------------------------------------------------

    def _settle(self, group: Group, now: float, *, last: bool) -> None:
        """Choose what this group settles: what is due, and every tail whose log it touches."""
        due = self._unsettled | group.sizes.keys() | group.evicting.keys() | group.thinning.keys()
        for log in sorted(self._tails.keys() if last else self._tails.keys() & due):
            tail = self._tails[log]
            settlement = self._settlement(group, tail, now, release=last or tail.leaving)
            group.settled.append(settlement)
            group.moved |= tail.moved
            group.state.update(((MEMORY, key), value) for key, value in settlement.marks())
            tail.touched, tail.moved, tail.changed_at_s = set(), set(), None
            for address in settlement.gone:  # what comes during the commit has no numbers any more
                del tail.addresses[address]
        for log in sorted(self._low & self._tails.keys() - {settlement.log for settlement in group.settled}):
            tail = self._tails[log]
            extension = self._extension(group, tail, now)
            group.settled.append(extension)
            group.moved |= tail.moved  # nothing is written of what everybody passed, so that they did has to be
            tail.moved = set()
            group.state.update(((MEMORY, key), value) for key, value in extension.marks())
        self._unsettled.clear()
        self._low.clear()
        for key, value in self._accounted.items():
            group.state.setdefault((MEMORY, key), value)
        group.filled = [(log, first, end) for log, (first, end) in self._filled.items()]

    def _settlement(self, group: Group, tail: Tail, now: float, *, release: bool) -> Settlement:
        log, state = tail.log, self._logs[tail.log]
        self._let_go(tail)
        runs = list(self._unacknowledged(tail))
        tail_end = state.next
        upto = group.ends.get(log, tail_end)
        writes = bool(runs) or upto > tail_end
        start = runs[0].position if runs else tail_end
        first = None
        if state.first < tail.written:
            start = tail.written
            writes = writes or (release and start < tail_end)  # what comes next may be covered by nobody
        else:
            first = start
        size = sum(len(body) for stored in runs for body in stored.run.bodies)
        end = upto if release else tail.block.next_end(upto, now, self._limits)
        touched = tail.touched | {run.address for number, run in group.runs if number == log and run.bodies}
        gone = self._idle(tail, touched, now) if not release else list(tail.addresses)
        ends: dict[str, int] = {}
        claimed = sum(len(other.ends.keys() - self._blocks.keys()) for other in group.settled)
        counters = {address: group.sequences.get(address, self._sequences[address]) for address in {*touched, *gone}}
        for address in touched if not release else ():
            block = tail.addresses.get(address)
            if block is None:
                room = len(self._blocks) + claimed < self._limits.memory_addresses_max
                if not room or address in self._blocks or any(address in other.ends for other in group.settled):
                    continue  # it goes by the medium, or its numbers are given out in another log yet
                claimed += 1
            ends[address] = (block or Block()).next_end(counters[address], now, self._limits)
        places = start, tail_end, upto, upto
        return Settlement(
            log, runs, size, *places, writes, first, end, ends, counters, counters, gone, now, release
        )  # fmt: skip

    def _extension(self, group: Group, tail: Tail, now: float) -> Settlement:
        """More numbers, and nothing else: what is in memory may stay there."""
        following = self._logs[tail.log].next
        end = tail.block.next_end(following, now, self._limits)
        ends, counters, bases = dict[str, int](), dict[str, int](), dict[str, int]()
        for address in tail.touched & tail.addresses.keys():
            counters[address] = bases[address] = group.sequences.get(address, self._sequences[address])
            ends[address] = tail.addresses[address].next_end(counters[address], now, self._limits)
        ends = {address: end for address, end in ends.items() if end != tail.addresses[address].end}
        self._let_go(tail)
        for stored, _, _ in reversed(tail.taken):
            bases[stored.run.address] = stored.sequence
        upto = tail.taken[0].stored.position if tail.taken else following
        return Settlement(
            tail.log, (), 0, 0, 0, upto, following, False, None, end, ends, counters, bases, (), now, extends=True
        )  # fmt: skip

    def _idle(self, tail: Tail, touched: set[str], now: float) -> list[str]:
        """Addresses that have sent nothing for long."""
        if tail.idle_at_s is None or now < tail.idle_at_s:
            return []
        latest = now - self._limits.memory_idle_s
        return [a for a, block in tail.addresses.items() if block.used_at_s <= latest and a not in touched]

    def _unacknowledged(self, tail: Tail) -> Iterator[Stored]:
        """The parts of what was taken that some cursor is owed and has not acknowledged."""
        state = self._logs[tail.log]
        if len(state.cursors) > MEMORY_HOLDERS_MAX:
            yield from (taken.stored for taken in tail.taken)
            return
        holders = [self._cursors[cursor] for cursor in state.cursors]
        for stored, _, _ in tail.taken:
            position, sequence, run = stored
            for first, last in _open_ranges(holders, stored):
                low, high = first - position, last - position + 1
                yield Stored(first, sequence + low, run.part(low, high))

    def _reserved_ends(self, group: Group) -> dict[str, int]:
        """What `group` writes as counters of addresses that have a reservation, or give it back."""
        counters = dict(group.counters)
        for settlement in group.settled:
            counters.update(settlement.counters)
        ends = {a: max(n, self._blocks[a].end) if a in self._blocks else n for a, n in counters.items()}
        for settlement in group.settled:
            ends.update(settlement.ends)
            ends.update((address, settlement.counters[address]) for address in settlement.gone)
        return ends

    # --- after a commit ---------------------------------------------------------------------------------------

    def _settled(self, settlement: Settlement) -> None:
        """The settlement is on disk."""
        tail, state, now = self._tails[settlement.log], self._logs[settlement.log], settlement.at_s
        self._reserved(tail, settlement)
        if settlement.extends:
            return
        before = tail.cost
        tail.drop(settlement.upto)
        self._held -= before - tail.cost
        tail.first, tail.look_at, tail.doubtful = settlement.upto, 0, False
        state.bytes += settlement.size
        if settlement.first is not None:
            state.first = max(state.first, settlement.first)
        if settlement.writes:
            tail.written = settlement.upto
        self._moved |= tail.moved  # over what is on disk now
        tail.moved = set()
        if self._floor(state, state.next) > state.first and state.first < tail.written:
            self._reclaim[state.log] = None
        self._look_by(now + self._limits.memory_window_s)
        if tail.leaving and settlement.released:
            self._left(tail)

    def _reserved(self, tail: Tail, settlement: Settlement) -> None:
        """What is reserved on the medium now."""
        tail.block.reserved(settlement.following, settlement.end, settlement.at_s)
        for address, end in settlement.ends.items():
            block = self._blocks.setdefault(address, tail.addresses.setdefault(address, Block()))
            block.reserved(settlement.counters[address], end, settlement.at_s)
        for address in settlement.gone:
            del self._blocks[address]
        used_at_s = min((block.used_at_s for block in tail.addresses.values()), default=None)
        tail.idle_at_s = None if used_at_s is None else used_at_s + self._limits.memory_idle_s

    def _left(self, tail: Tail) -> None:
        """Everything is given back: begin anew, or go by the medium from now on."""
        del self._tails[tail.log]
        if tail.stays:
            self._tails[tail.log] = Tail(tail.log, tail.first, tail.written)

    def _not_settled(self, group: Group) -> None:
        """The group failed: everything is as it was, and due again.

        A commit whose sync failed may be found all the same when the power goes now. Until another one has succeeded
        nobody may be given the numbers that it gave.
        """
        for tail in self._tails.values():
            if tail.log in group.ends or not group.sequences.keys().isdisjoint(tail.addresses):
                tail.doubtful = True
                self._unsettled.add(tail.log)
        for settlement in group.settled:
            tail = self._tails[settlement.log]
            if settlement.extends:
                self._low.add(tail.log)
                continue
            tail.addresses.update((address, self._blocks[address]) for address in settlement.gone)
            tail.touched |= settlement.ends.keys() | (settlement.counters.keys() - set(settlement.gone))
            tail.changed_at_s = settlement.at_s
            self._unsettled.add(tail.log)
            self._look_by(settlement.at_s + self._limits.memory_window_s)


def _open_ranges(holders: Sequence[CursorState], stored: Stored) -> Ranges:
    """Positions of a run that some of these cursors is owed and has not acknowledged."""
    first, last = stored.position, stored.position + len(stored.run.bodies) - 1
    found = Ranges()
    for holder in holders:
        parts = holder.progress.outside(first, last)
        if parts and (holder.wants is None or holder.wants(stored.run)):
            if parts == [(first, last)]:
                whole = Ranges()
                whole.add(first, last)
                return whole
            for low, high in parts:
                found.add(low, high)
    return found
