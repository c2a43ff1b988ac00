"""Counters of the next positions and sequences, and which of them are not on the medium yet.

The counters on the medium lag behind, because opening the store computes them again from the segments written after
them. They are written from time to time to bound that work (`StoreLimits.counted_commits_max` and its neighbours). The
counters of addresses may be ahead of those of logs, because opening takes the larger value it finds. When thousands of
counters wait, each commit writes a part of them (`counter_sweep`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from edge.broker.store import loops
from edge.broker.store.counter_sweep import CounterSweep
from edge.broker.store.errors import StoreError
from edge.broker.store.group import CommitGroup
from edge.broker.store.limits import POSITION_MAX, StoreLimits
from edge.broker.store.log_rows import LogRow
from edge.broker.store.logs import LogTable

ADDRESS_AGE_S: Final = 2.0
"""Interval of aging when there are many addresses. An address unused for this time moves to the older ones. After
another interval it has to be read from the medium, which takes 10 us."""

COUNTED_SOON: Final = 3 / 4
"""Share of the limits on uncounted commits or bytes. Beyond it each commit writes a part of the counters, if many wait.
Writing 4 096 at once takes 8 ms, and one message in a hundred would wait for that at 20 000 a second."""


class SequenceCounters:
    """Next sequence of each address, and the ends of logs that are not written yet."""

    def __init__(self, limits: StoreLimits, logs: LogTable) -> None:
        self._limits = limits
        self._logs = logs
        self.sequences: dict[str, int] = {}
        """Next sequence of recently used addresses."""
        self._older: dict[str, int] = {}
        """Next sequence of addresses used before these."""
        self._new: dict[str, None] = {}
        """New addresses since the last clean-up."""
        self._once: dict[str, int] = {}
        """Addresses that were new before the last clean-up, with their next sequence then."""
        self._aged_at = 0.0
        self.uncounted: dict[str, int] = {}
        self.uncounted_logs: set[int] = set()
        self.uncounted_bytes = 0
        """Bytes of bodies, and of addresses with changed counters, since the counters were written."""
        self.spills = 0
        """Number of the newest commit that reserved or released numbers."""
        self._uncounted_commits = 0
        self._sweep = CounterSweep(limits)
        self._characters = 0
        """Total length of the addresses in memory."""

    @property
    def lag(self) -> bool:
        """True when some counters are not on the medium."""
        return bool(self.uncounted or self.uncounted_logs)

    @property
    def known(self) -> dict[str, int]:
        """Next sequence of every address that the medium may be behind on, and of others."""
        return {**self._older, **self.uncounted, **self.sequences}

    @property
    def keeps_many_logs(self) -> bool:
        """True when enough logs are uncounted to justify a commit in a calm moment."""
        return len(self.uncounted_logs) > self._limits.counted_logs_calm_max

    def age(self, now: float, reserved: Collection[str]) -> None:
        """Forget addresses that were used once if there are many new ones, and old addresses if there are many.

        `reserved` addresses stay. Do not call it during a commit. `now`: seconds, monotonic.
        """
        if len(self._new) >= self._limits.addresses_new_max:
            self._forget_once(reserved)
        many = len(self.sequences) + len(self._older) > self._limits.addresses_kept
        if not many or now - self._aged_at < ADDRESS_AGE_S:
            return
        self._aged_at = now
        self._older, self.sequences = self.sequences, {}
        self._keep(reserved)

    def _forget_once(self, reserved: Collection[str]) -> None:
        """Forget addresses that were used only once: a client may create names without end."""
        for address, following in self._once.items():
            if self.sequences.get(address) == following and address not in reserved:  # it was not used again
                del self.sequences[address]
                self._characters -= len(address)
        self._once = {address: self.sequences[address] for address in self._new if address in self.sequences}
        self._new = {}

    def _keep(self, reserved: Collection[str]) -> None:
        """Keep `reserved` addresses of the older ones, and restart the search for addresses used once."""
        self._new, self._once = {}, {}
        self.sequences.update((name, self._older[name]) for name in reserved if name in self._older)
        self._characters = sum(map(len, self.sequences)) + sum(map(len, self._older))

    def number(self, group: CommitGroup, load: Callable[[Iterable[str]], dict[str, int]]) -> None:
        """Assign position and sequence to every run of a group. `load` reads counters of addresses from the medium.

        Raises StoreError.
        """
        runs, ends, at, number = group.runs, group.ends, 0, loops.number
        while (at := number(runs, at, self.sequences, ends, group.sequences, group.appended)) < len(runs):
            log, run = runs[at]
            if run.address not in self.sequences:
                self.load({run.address for _, run in group.runs}, load)
            ends.setdefault(log, self._logs[log].next)
        for log, end in ends.items():
            state = self._logs[log]
            if end > POSITION_MAX:
                raise StoreError(f"log {state.name!r} has used up its positions: export it and start a new one")
            if not state.has_cursors:
                self._logs.to_reclaim[log] = None

    def load(self, addresses: Iterable[str], load: Callable[[Iterable[str]], dict[str, int]]) -> None:
        """Load the counters of addresses that are not in `sequences`. Read the medium only for those not in memory."""
        older, waiting = self._older, self.uncounted
        missing = {address for address in addresses if address not in self.sequences}
        back = {name: older.pop(name) for name in missing if name in older}  # never iterate over all addresses
        self.sequences.update(back)
        missing.difference_update(back)
        found = {name: waiting[name] for name in missing if name in waiting}
        asked = missing.difference(found)
        if asked:
            loaded = load(asked)
            found.update(loaded)
            self._new.update(dict.fromkeys(asked.difference(loaded)))
        self.sequences.update(dict.fromkeys(missing, 0))
        self.sequences.update(found)
        self._characters += sum(map(len, missing))

    def count(self, group: CommitGroup) -> None:
        """Select the counters and the rows of table ``log`` that this group writes."""
        limits = self._limits
        group.counting = (
            group.last
            or group.while_idle
            or bool(group.evicting or group.thinning or group.ring)
            or self._lags_enough(group)
            or self._characters > limits.addresses_characters_max
            or bool(group.freed)
            or any(self._logs[log].next for log in group.new_logs)  # a reused log: its row has counters
            or (not group.runs and bool(self._logs.to_reclaim) and bool(self.uncounted_logs))
        )
        if group.counting:
            group.counters = {**self.uncounted, **group.sequences}
        else:
            self._count_part(group)
            self._count_new(group)
        self._write_logs(group)

    def _count_part(self, group: CommitGroup) -> None:
        """Select a part of the waiting counters, if they are many."""
        lag, waiting = self._lag(group), len(self.uncounted)
        full = waiting + len(group.sequences) > self._limits.counted_addresses_many_max
        if not self._sweep.runs and self._writes_in_parts and (full or lag >= COUNTED_SOON):
            self._sweep.start(self.uncounted, {log: self._logs[log].next for log in self.uncounted_logs}, lag)
        group.part = self._sweep.part(self.uncounted, group.sequences, lag=lag, full=full)
        if group.part is not None:
            group.counters = group.part.counters
            if self._sweep.is_last(group.part):
                group.swept = dict(self._sweep.ends)

    def _count_new(self, group: CommitGroup) -> None:
        """Select the counters of messages in new logs. The rows of new logs are written in any case."""
        if group.new_logs:
            new = group.counted = group.ends.keys() & group.new_logs
            group.counters |= {run.address: group.sequences[run.address] for log, run in group.runs if log in new}

    def _write_logs(self, group: CommitGroup) -> None:
        touched = group.freed.union(group.new_logs, group.swept)
        if group.counting:
            touched |= self.uncounted_logs | group.ends.keys()
        if group.ring is not None:
            touched |= group.ring.ends.keys()
        for log in sorted(touched):
            group.log_rows.append(self._row(group, log))

    def _row(self, group: CommitGroup, log: int) -> LogRow:
        state = self._logs[log]
        end, size = group.ends.get(log, state.next), state.bytes + group.sizes.get(log, 0)
        if state.ring is not None and state.ring.start is not None:
            end, size = state.ring.reserved_end, size - state.ring.size
            if group.ring is not None:
                end = group.ring.ends.get(log, end)
        elif log in group.swept:
            end, size = group.swept[log], state.bytes - self._sweep.size_since(log)
        elif not group.counting and log not in group.counted:
            return LogRow(log, state.name, 0, 0, 0)
        return LogRow(log, state.name, state.first, end, size)

    def _lags_enough(self, group: CommitGroup) -> bool:
        """Return True when all waiting counters must be written."""
        if self._writes_in_parts:
            return False
        return len(self.uncounted) + len(group.sequences) >= self._limits.counted_addresses_max or self._lag(group) >= 1

    @property
    def _writes_in_parts(self) -> bool:
        """True when commits write the counters in parts: many wait, for few logs, and all are in memory."""
        limits = self._limits
        return (
            len(self.uncounted) > limits.counted_at_once
            and len(self.uncounted_logs) <= limits.counted_logs_few
            and len(self.sequences) + len(self._older) <= limits.addresses_cached_max
        )

    def _lag(self, group: CommitGroup) -> float:
        """Return the lag of the medium as a share of its limit."""
        limits = self._limits
        commits, size = self._uncounted_commits + 1, self.uncounted_bytes + _size(group)
        if not self._writes_in_parts:
            return max(commits / limits.counted_commits_max, size / limits.counted_bytes_max)
        deleting = bool(self._logs.to_reclaim)
        bytes_max = limits.counted_bytes_deleting_max if deleting else limits.counted_bytes_many_max
        return max(commits / limits.counted_commits_many_max, size / bytes_max)

    def committed(self, group: CommitGroup, reserved: Collection[str]) -> None:
        """Record a committed group. Counters of `reserved` addresses stay in memory."""
        self.sequences.update(group.sequences)
        if group.ring is not None:
            self.spills = max(self.spills, group.ring.number)
        if group.counting:
            self._all_counted(group, reserved)
        else:
            self._some_counted(group)

    def _some_counted(self, group: CommitGroup) -> None:
        self.uncounted.update(group.sequences)
        for address in group.counters:
            self.uncounted.pop(address, None)
        before = len(self.uncounted_logs)
        self.uncounted_logs.update(group.ends.keys() - group.counted)
        self._logs.came += len(self.uncounted_logs) - before
        for log in group.counted:
            self._logs[log].counted = group.ends[log]
        for log, end in group.swept.items():
            self._logs[log].counted = end
            if self._logs[log].next == end:
                self.uncounted_logs.discard(log)
        self._uncounted_commits += bool(group.runs)
        self.uncounted_bytes += _size(group)
        self._sweep.committed(group)
        if group.part is not None and not self._sweep.runs:
            self._uncounted_commits, self.uncounted_bytes = self._sweep.commits, self._sweep.bytes

    def _all_counted(self, group: CommitGroup, reserved: Collection[str]) -> None:
        for row in group.log_rows:
            self._logs[row.log].counted = row.next
        self.uncounted.clear()
        self.uncounted_logs.clear()
        self._sweep.stop()
        self._uncounted_commits = self.uncounted_bytes = 0
        limits = self._limits
        count = len(self.sequences) + len(self._older)
        if count > limits.addresses_cached_max or self._characters > limits.addresses_characters_max:
            self._older, self.sequences = self.sequences, {}
            self._keep(reserved)
            self._older = {}
            self._keep(())


def _size(group: CommitGroup) -> int:
    """Return the bytes of bodies and addresses in a group, which opening would read again."""
    return group.size + sum(map(len, group.sequences))
