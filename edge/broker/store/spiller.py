"""Which logs in memory a group spills, what it writes of them, and what that means once it is on disk."""

from __future__ import annotations

from edge.broker.store.buffered_log import BufferedLog
from edge.broker.store.group import Group
from edge.broker.store.limits import Limits
from edge.broker.store.memory_buffer import MemoryBuffer
from edge.broker.store.reservation import MEMORY, SPILLS, SPILLS_KEY, Reservation, pack_count
from edge.broker.store.spill import Spill
from edge.broker.store.tables import Tables


class Spiller:
    """Works on a `MemoryBuffer`."""

    def __init__(self, limits: Limits, tables: Tables, buffer: MemoryBuffer) -> None:
        self._limits = limits
        self._gatherer, self._logs = tables.gatherer, tables.logs
        self._cursors, self._counters = tables.cursors, tables.counters
        self._buffer = buffer
        self._numbered = 0
        """The newest number of a group with spills; one that failed may be found on the medium all the same."""

    # --- for a group ------------------------------------------------------------------------------------------

    def choose(self, group: Group, now: float) -> None:
        """What this group spills: what is due, every log in memory that it touches, and all when it is the last."""
        buffer = self._buffer
        due = buffer.due | group.sizes.keys() | group.evicting.keys() | group.thinning.keys()
        for log in sorted(buffer.logs.keys() if group.last else buffer.logs.keys() & due):
            buffered = buffer.logs[log]
            spill = self._spill(group, buffered, now, releases=group.last or buffered.leaving)
            self._join(group, buffered, spill)
            buffered.touched, buffered.changed_at_s = set(), None
            for address in spill.returned:  # what comes during the commit has no numbers any more
                del buffered.addresses[address]
        for log in sorted(buffer.low & buffer.logs.keys() - {spill.log for spill in group.spills}):
            # nothing is written of what everybody passed, so the cursors have to say that they did
            self._join(group, buffer.logs[log], self._extension(group, buffer.logs[log], now))
        buffer.due.clear()
        buffer.low.clear()
        if group.spills:
            self._numbered = group.spill = max(self._numbered, self._counters.spills) + 1
            group.state[SPILLS, SPILLS_KEY] = pack_count(group.spill)

    def _join(self, group: Group, buffered: BufferedLog, spill: Spill) -> None:
        group.spills.append(spill)
        buffered.positions.cut(spill.end)
        for address in spill.ends.keys() & buffered.addresses.keys():
            buffered.addresses[address].cut(spill.ends[address])
        for address in spill.returned:
            buffered.addresses[address].cut(spill.counters[address])
        group.moved |= buffered.moved
        buffered.moved = set()
        group.state.update(((MEMORY, key), value) for key, value in spill.state())

    def _spill(self, group: Group, buffered: BufferedLog, now: float, *, releases: bool) -> Spill:
        log, state = buffered.log, self._logs[buffered.log]
        self._buffer.let_go(buffered)
        runs = list(self._buffer.unacknowledged(buffered))
        buffer_end = state.next
        upto = group.ends.get(log, buffer_end)
        writes = bool(runs) or upto > buffer_end
        start = runs[0].position if runs else buffer_end
        first = None
        if state.first < buffered.written:
            start = buffered.written
            writes = writes or (releases and start < buffer_end)  # what comes next may be covered by nobody
        else:
            first = start
        touched = buffered.touched | {run.address for number, run in group.runs if number == log and run.bodies}
        returned = list(buffered.addresses) if releases else self._idle(buffered, touched, now)
        counters = {address: self._next_sequence(group, address) for address in {*touched, *returned}}
        return Spill(
            log=log,
            runs=runs,
            size=sum(len(body) for stored in runs for body in stored.run.bodies),
            start=start,
            buffer_end=buffer_end,
            upto=upto,
            following=upto,
            writes=writes,
            first=first,
            end=upto if releases else buffered.positions.next_end(upto, now, self._limits),
            ends={} if releases else self._ends(group, buffered, touched, counters, now),
            counters=counters,
            bases=counters,
            returned=returned,
            at_s=now,
            releases=releases,
        )

    def _ends(
        self, group: Group, buffered: BufferedLog, touched: set[str], counters: dict[str, int], now: float
    ) -> dict[str, int]:
        """Where the reservations of these addresses end from now on, as far as there is room for them."""
        reservations = self._buffer.reservations
        claimed = sum(len(other.ends.keys() - reservations.keys()) for other in group.spills)
        ends: dict[str, int] = {}
        for address in sorted(touched):
            reservation = buffered.addresses.get(address)
            if reservation is None:
                room = len(reservations) + claimed < self._limits.memory_addresses_max
                if not room or address in reservations or any(address in other.ends for other in group.spills):
                    continue  # it goes by the medium, or its numbers are given out in another log yet
                claimed += 1
            ends[address] = (reservation or Reservation()).next_end(counters[address], now, self._limits)
        return ends

    def _extension(self, group: Group, buffered: BufferedLog, now: float) -> Spill:
        """More numbers, and nothing else: what is in memory may stay there."""
        following = self._logs[buffered.log].next
        ends, counters = dict[str, int](), dict[str, int]()
        for address in buffered.touched & buffered.addresses.keys():
            reservation = buffered.addresses[address]
            counters[address] = self._next_sequence(group, address)
            if counters[address] >= reservation.low:
                ends[address] = reservation.next_end(counters[address], now, self._limits)
        bases = dict(counters)
        self._buffer.let_go(buffered)
        for stored, _, _ in reversed(buffered.runs):
            bases[stored.run.address] = stored.sequence
        return Spill(
            log=buffered.log,
            runs=(),
            size=0,
            start=0,
            buffer_end=0,
            upto=buffered.runs[0].stored.position if buffered.runs else following,
            following=following,
            writes=False,
            first=None,
            end=buffered.positions.next_end(following, now, self._limits),
            ends=ends,
            counters=counters,
            bases=bases,
            returned=(),
            at_s=now,
            extends=True,
        )

    def _next_sequence(self, group: Group, address: str) -> int:
        return group.sequences.get(address, self._counters.sequences[address])

    def _idle(self, buffered: BufferedLog, touched: set[str], now: float) -> list[str]:
        """Addresses that have sent nothing for long."""
        if buffered.idle_at_s is None or now < buffered.idle_at_s:
            return []
        latest = now - self._limits.memory_idle_s
        addresses = buffered.addresses.items()
        return [address for address, each in addresses if each.used_at_s <= latest and address not in touched]

    def reserve(self, group: Group) -> None:
        """Counters the group writes are those of the reservations, of addresses that have one or give it back."""
        counters, reservations = group.counters, self._buffer.reservations
        for spill in group.spills:
            counters.update(spill.counters)
        for address, following in counters.items():
            if address in reservations:
                counters[address] = max(following, reservations[address].end)
        for spill in group.spills:
            counters.update(spill.ends)
            counters.update((address, spill.counters[address]) for address in spill.returned)

    # --- the end of a commit ----------------------------------------------------------------------------------

    def committed(self, spill: Spill) -> None:
        """It is on disk."""
        buffered, state = self._buffer.logs[spill.log], self._logs[spill.log]
        self._reserved(buffered, spill)
        if spill.extends:
            return
        self._buffer.drop(buffered, spill.upto)
        buffered.first, buffered.look_at, buffered.uncertain = spill.upto, 0, False
        self._logs.move(state, first=spill.first, size=spill.size)
        if spill.writes:
            buffered.written = spill.upto
        self._gatherer.moved |= buffered.moved  # over what is on disk now
        buffered.moved = set()
        if self._cursors.lowest(state, state.next) > state.first and state.first < buffered.written:
            self._logs.to_reclaim[state.log] = None
        self._buffer.look_within_window(spill.at_s)
        if buffered.leaving and spill.releases:
            self._buffer.left(state, buffered)

    def _reserved(self, buffered: BufferedLog, spill: Spill) -> None:
        """What is reserved on the medium now."""
        reservations = self._buffer.reservations
        buffered.positions.extend(spill.following, spill.end, spill.at_s)
        for address, end in spill.ends.items():
            own = buffered.addresses.setdefault(address, Reservation())
            reservations.setdefault(address, own).extend(spill.counters[address], end, spill.at_s)
        for address in spill.returned:
            del reservations[address]
        used_at_s = min((each.used_at_s for each in buffered.addresses.values()), default=None)
        buffered.idle_at_s = None if used_at_s is None else used_at_s + self._limits.memory_idle_s

    def failed(self, group: Group) -> None:
        """Everything is as it was, and due again.

        A commit whose sync failed may be found all the same when the power goes now. Until another one has succeeded
        nobody may be given the numbers that it gave.
        """
        buffer = self._buffer
        for buffered in buffer.logs.values():
            if buffered.log in group.ends or not group.sequences.keys().isdisjoint(buffered.addresses):
                buffered.uncertain = True
                buffer.due.add(buffered.log)
        for spill in group.spills:
            buffered = buffer.logs[spill.log]
            if spill.extends:
                buffer.low.add(buffered.log)
                continue
            buffered.addresses.update((address, buffer.reservations[address]) for address in spill.returned)
            buffered.touched |= spill.ends.keys() | (spill.counters.keys() - set(spill.returned))
            buffered.changed_at_s = spill.at_s
            buffer.due.add(buffered.log)
            buffer.look_within_window(spill.at_s)
