"""Positions and sequences reserved ahead for logs kept in memory: used, extended and released."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

from edge.broker.store.group import CommitGroup
from edge.broker.store.limits import StoreLimits
from edge.broker.store.reservation import MEMORY, SPILLS, SPILLS_KEY, Reservation, pack_count, pack_range, range_key
from edge.broker.store.ring import MessageRing
from edge.broker.store.ring_part import RingPart, SequenceGrant
from edge.broker.store.tables import StoreTables


class RunNumbers(NamedTuple):
    """Numbers of the first message of a run."""

    position: int
    sequence: int
    reservation: Reservation
    """Reservation of the sequences of its address."""


class RingNumbers:
    """Reserved numbers of all rings of a store."""

    def __init__(
        self,
        limits: StoreLimits,
        tables: StoreTables,
        load: Callable[[Iterable[str]], dict[str, int]],
        rings: dict[int, MessageRing],
    ) -> None:
        """`load` reads the next sequences of addresses from the medium."""
        self._limits = limits
        self._gatherer, self._logs = tables.gatherer, tables.logs
        self._cursors, self._counters = tables.cursors, tables.counters
        self._load = load
        self._rings = rings
        self.reservations: dict[str, Reservation] = {}
        """Reserved sequences of each address."""
        self._low: set[str] = set()
        """Addresses with few numbers left."""
        self._low_logs: set[int] = set()
        self._idle: set[str] = set()
        """Addresses that release their reservation."""
        self._numbered = 0
        """Newest `RingPart.number`, including failed commits, as they may be on the medium after all."""

    # --- use --------------------------------------------------------------------------------------------------

    def take(self, ring: MessageRing, address: str, count: int) -> RunNumbers | None:
        """Take numbers for `count` messages of an address. Return None when too few are reserved."""
        reservation, sealed = self.reservations.get(address), self._gatherer.sealed
        if ring.start is None or reservation is None or ring.log not in reservation.logs:
            return None
        if sealed is not None and address in sealed.sequences:
            return None  # the next numbers belong to messages of another log
        position, sequence = self._logs[ring.log].next, self._counters.sequences[address]
        end, following = position + count, sequence + count
        if end > ring.positions.end or following > reservation.end:
            return None
        if end > ring.positions.low:
            self._low_logs.add(ring.log)
        if following > reservation.low:
            self._low.add(address)
        self._counters.sequences[address] = following
        return RunNumbers(position, sequence, reservation)

    def are_enough(self, ring: MessageRing, messages: dict[str, int]) -> bool:
        """Return True when `take` has numbers for all these messages, given by address."""
        if ring.start is None or ring.leaving:
            return False
        for address, needed in messages.items():
            reservation = self.reservations.get(address)
            if reservation is None or ring.log not in reservation.logs:
                return False
            if self._counters.sequences[address] + needed > reservation.end:
                return False
        return self._logs[ring.log].next + sum(messages.values()) <= ring.positions.end

    # --- when a commit is due ---------------------------------------------------------------------------------

    @property
    def are_due(self) -> bool:
        """True when numbers should be reserved or released, even without other changes to commit."""
        return bool(self._low or self._low_logs or self._idle)

    def release(self, addresses: Set[str]) -> None:
        """Release the reservations of these addresses with the next group."""
        self._idle |= addresses

    def find_idle(self) -> None:
        """Find addresses that used no number since the last call."""
        for address, reservation in self.reservations.items():
            following = self._counters.sequences[address]
            if reservation.seen == following and not reservation.held:
                self._idle.add(address)
            reservation.seen = following

    # --- for a group ------------------------------------------------------------------------------------------

    def choose(self, group: CommitGroup, now: float, leaving: set[int], needed: dict[int, dict[str, int]]) -> RingPart:
        """Select what a sealed group reserves and releases. `needed`: waiting messages by log and address."""
        part = RingPart()
        self._leave(group, part, leaving)
        for address in self._idle & self.reservations.keys():
            self._release(group, part, address)
        self._grant(group, part, leaving, needed, now)
        self._extend(group, part, needed, now)
        self._idle, self._low, self._low_logs = set(), set(), set()
        if part:
            self._numbered = part.number = max(self._numbered, self._counters.spills) + 1
            group.state[SPILLS, SPILLS_KEY] = pack_count(part.number)
        return part

    def _leave(self, group: CommitGroup, part: RingPart, leaving: set[int]) -> None:
        """Release all numbers of leaving logs. Their cursors have passed the ring."""
        for log in leaving:
            ring, state = self._rings[log], self._logs[log]
            start, end = ring.start or 0, state.next
            part.left.append(log)
            part.ends[log] = group.ends.get(log, end)
            if state.first >= start:
                part.firsts[log] = end
            elif start < end:
                group.filled.append((log, start, end))  # segments must be adjacent
            group.moved |= {cursor.cursor for cursor in self._cursors.in_use(state)}
            group.state[MEMORY, range_key(log, None)] = pack_range(part.ends[log], part.ends[log])
            for address in ring.addresses:
                group.state[MEMORY, range_key(log, address)] = None
                if leaving.issuperset(self.reservations[address].logs):
                    self._release(group, part, address)

    def _release(self, group: CommitGroup, part: RingPart, address: str) -> None:
        """Release the reservation of an address. Its next message needs a new one."""
        reservation, following = self.reservations[address], self._next_sequence(group, address)
        reservation.cut(following)
        if reservation.held:
            part.cut[address] = following
        else:
            part.released[address] = following
        for log in reservation.logs:
            value = None
            if reservation.held:
                base = self._rings[log].lowest_sequences({address}).get(address, following)
                value = pack_range(base, following)
            group.state[MEMORY, range_key(log, address)] = value

    def _grant(
        self, group: CommitGroup, part: RingPart, leaving: set[int], needed: dict[int, dict[str, int]], now: float
    ) -> None:
        """Reserve sequences for waiting messages, and for addresses with few left."""
        wanted: dict[str, dict[int, int]] = {address: {} for address in self._low & self.reservations.keys()}
        for log, counts in needed.items():
            for address, count in counts.items():
                wanted.setdefault(address, {})[log] = count
        self._counters.load(wanted.keys() - self.reservations.keys(), self._load)
        room = self._limits.memory_addresses_max - len(self.reservations) + len(part.released)
        kept = part.released.keys() | part.cut.keys() | wanted.keys()
        victims = (address for address, each in self.reservations.items() if not each.held and address not in kept)
        bases: dict[int, dict[str, int]] = {}
        for address, by_log in wanted.items():
            known = self.reservations.get(address)
            logs = tuple(sorted({*by_log, *(() if known is None else known.logs)} - leaving))
            following, count = self._next_sequence(group, address), sum(by_log.values())
            if not logs or (known is not None and following + count < known.low and by_log.keys() <= {*known.logs}):
                continue  # its log leaves, or it has enough numbers and waits only for another address
            if known is None and room <= 0:
                victim = next(victims, None)
                if victim is None:
                    part.refused |= by_log.keys()
                    continue
                self._release(group, part, victim)
                room += 1
            room -= known is None
            part.released.pop(address, None)
            part.cut.pop(address, None)
            end = (known or Reservation()).next_end(following, count, now, self._limits)
            part.grants[address] = SequenceGrant(logs, following, end)
            for log in logs:
                if log not in bases:
                    bases[log] = self._rings[log].lowest_sequences({*wanted})
                group.state[MEMORY, range_key(log, address)] = pack_range(bases[log].get(address, following), end)

    def _extend(self, group: CommitGroup, part: RingPart, needed: dict[int, dict[str, int]], now: float) -> None:
        """Reserve positions for logs with waiting messages, and for those with few left."""
        for log in (self._low_logs & self._rings.keys()) | needed.keys():
            ring, following = self._rings[log], self._logs[log].next
            count = sum(needed.get(log, {}).values())
            if ring.start is not None and not ring.leaving and following + count >= ring.positions.low:
                end = ring.positions.next_end(following, count, now, self._limits)
                part.ends[log], part.followings[log] = end, following
                group.state[MEMORY, range_key(log, None)] = pack_range(ring.start, end)

    def _next_sequence(self, group: CommitGroup, address: str) -> int:
        return group.sequences.get(address, self._counters.sequences[address])

    def reserve(self, group: CommitGroup) -> None:
        """Write the ends of reservations instead of the counters of their addresses."""
        counters, reservations, part = group.counters, self.reservations, group.ring
        for address, following in counters.items():
            if address in reservations:
                counters[address] = max(following, reservations[address].end)
        if part is not None:
            counters.update(part.released)
            counters.update(part.cut)
            counters.update((address, grant.end) for address, grant in part.grants.items())

    # --- the end of a commit ----------------------------------------------------------------------------------

    def committed(self, part: RingPart, now: float) -> None:
        """Use the reservations of a committed group."""
        for log, following in part.followings.items():
            self._rings[log].positions.extend(following, part.ends[log], now)
        for address, (logs, following, end) in part.grants.items():
            reservation = self.reservations.setdefault(address, Reservation())
            reservation.extend(following, end, now)
            reservation.logs = logs
            for log in logs:
                self._rings[log].addresses.add(address)
        for address in part.released:
            for log in self.reservations.pop(address).logs:
                self._rings[log].addresses.discard(address)
        for log in part.left:
            for address in self._rings[log].addresses:  # also reserved for another log
                reservation = self.reservations[address]
                reservation.logs = tuple(other for other in reservation.logs if other != log)

    def failed(self, group: CommitGroup) -> None:
        """Schedule the changes of a failed group again.

        A commit with a failed sync may be on the medium after a power cut. So its numbers are used for no message in
        memory until another commit has succeeded.
        """
        for address in group.sequences.keys() & self.reservations.keys():
            self.reservations[address].cut(self._counters.sequences[address])
        part = group.ring
        if part is not None:
            self._low |= part.grants.keys() & self.reservations.keys()
            self._low_logs |= part.followings.keys()
            self._idle |= part.released.keys() | part.cut.keys()
