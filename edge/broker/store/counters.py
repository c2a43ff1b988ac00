"""Positions and sequences: which come next, and which of them the medium has not been told.

The counters on the medium lag behind, as opening can work them out again from the segments that came after them. They
are written now and then, so that this stays little (`StoreLimits.counted_commits_max` and its neighbours). On disk
those of addresses may be ahead of those of logs, as opening takes the larger of what it finds: where thousands wait,
each commit writes a part of them (`counter_sweep`).
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
"""How often many addresses age: one that has not come for so long is looked for among the older ones, and after as
long again on the medium, 10 us."""

COUNTED_SOON: Final = 3 / 4
"""Of the commits or bytes that may wait: from here on commits write some counters each, if many wait. 4 096 at once
take 8 ms, which one message in a hundred would wait for at 20 000 a second."""


class SequenceCounters:
    """Of sequences by address, and what of the logs' ends is not written."""

    def __init__(self, limits: StoreLimits, logs: LogTable) -> None:
        self._limits = limits
        self._logs = logs
        self.sequences: dict[str, int] = {}
        """Next sequence of addresses that came lately."""
        self._older: dict[str, int] = {}
        """Of those that came before."""
        self._new: dict[str, None] = {}
        """Addresses that came for the first time, lately."""
        self._once: dict[str, int] = {}
        """Those that did so before them, and what was next then."""
        self._aged_at = 0.0
        self.uncounted: dict[str, int] = {}
        self.uncounted_logs: set[int] = set()
        self.uncounted_bytes = 0
        """Of bodies, and of addresses whose counters changed."""
        self.spills = 0
        """Number of the newest commit on the medium that reserved numbers or gave some back."""
        self._uncounted_commits = 0
        self._sweep = CounterSweep(limits)
        self._characters = 0
        """Of the addresses in `sequences`."""

    @property
    def lag(self) -> bool:
        """The medium has not been told of all."""
        return bool(self.uncounted or self.uncounted_logs)

    @property
    def known(self) -> dict[str, int]:
        """Next sequence of every address of which the medium may not have been told, and of others."""
        return {**self._older, **self.uncounted, **self.sequences}

    @property
    def keeps_many_logs(self) -> bool:
        """So many are not counted that they are worth a commit once nothing comes to any others."""
        return len(self.uncounted_logs) > self._limits.counted_logs_calm_max

    def age(self, now: float, reserved: Collection[str]) -> None:
        """Where there are many new addresses, forget those that came once; where there are many that came again, those
        that have not for some seconds. Those that are `reserved` stay. Not while a commit is running. `now`: seconds,
        monotonic."""
        if len(self._new) >= self._limits.addresses_new_max:
            self._forget_once(reserved)
        many = len(self.sequences) + len(self._older) > self._limits.addresses_kept
        if not many or now - self._aged_at < ADDRESS_AGE_S:
            return
        self._aged_at = now
        self._older, self.sequences = self.sequences, {}
        self._keep(reserved)

    def _forget_once(self, reserved: Collection[str]) -> None:
        """Who makes names without end uses each of them once: what is kept for all of them would be in the way."""
        for address, following in self._once.items():
            if self.sequences.get(address) == following and address not in reserved:  # it did not come again
                del self.sequences[address]
                self._characters -= len(address)
        self._once = {address: self.sequences[address] for address in self._new if address in self.sequences}
        self._new = {}

    def _keep(self, reserved: Collection[str]) -> None:
        """Of the older ones; and no address that is among them is forgotten before they are."""
        self._new, self._once = {}, {}
        self.sequences.update((name, self._older[name]) for name in reserved if name in self._older)
        self._characters = sum(map(len, self.sequences)) + sum(map(len, self._older))

    def number(self, group: CommitGroup, load: Callable[[Iterable[str]], dict[str, int]]) -> None:
        """Give every run of a group its position and sequence. `load` says what the medium has of addresses.

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
        """Find at once those of these addresses that have not come lately; the medium is asked for what no other place
        has."""
        older, waiting = self._older, self.uncounted
        missing = {address for address in addresses if address not in self.sequences}
        back = {name: older.pop(name) for name in missing if name in older}  # nothing here walks over all there are
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
        """Decide which counters this group writes, and which rows of table ``log``."""
        limits = self._limits
        group.counting = (
            group.last
            or group.calm
            or bool(group.evicting or group.thinning or group.ring)
            or self._lags_enough(group)
            or self._characters > limits.addresses_characters_max
            or bool(group.freed)
            or any(self._logs[log].next for log in group.new_logs)  # one that was another's: its row has counters
            or (not group.runs and bool(self._logs.to_reclaim) and bool(self.uncounted_logs))
        )
        if group.counting:
            group.counters = {**self.uncounted, **group.sequences}
        else:
            self._count_part(group)
            self._count_new(group)
        self._write_logs(group)

    def _count_part(self, group: CommitGroup) -> None:
        """Some of what waits, if it is much."""
        lag, waiting = self._lag(group), len(self.uncounted)
        full = waiting + len(group.sequences) > self._limits.counted_addresses_many_max
        if not self._sweep.runs and self._goes_in_parts and (full or lag >= COUNTED_SOON):
            self._sweep.begin(self.uncounted, {log: self._logs[log].next for log in self.uncounted_logs}, lag)
        group.part = self._sweep.part(self.uncounted, group.sequences, lag=lag, full=full)
        if group.part is not None:
            group.counters = group.part.counters
            if self._sweep.is_last(group.part):
                group.swept = dict(self._sweep.ends)

    def _count_new(self, group: CommitGroup) -> None:
        """What comes with a new log, whose row is written in any case."""
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
        """All that waits is to be written."""
        if self._goes_in_parts:
            return False
        return len(self.uncounted) + len(group.sequences) >= self._limits.counted_addresses_max or self._lag(group) >= 1

    @property
    def _goes_in_parts(self) -> bool:
        """Commits write some counters each: many wait, all of which are kept, and those of few logs."""
        limits = self._limits
        return (
            len(self.uncounted) > limits.counted_at_once
            and len(self.uncounted_logs) <= limits.counted_logs_few
            and len(self.sequences) + len(self._older) <= limits.addresses_cached_max
        )

    def _lag(self, group: CommitGroup) -> float:
        """How far the medium is behind, as a share of what it may be."""
        limits = self._limits
        commits, size = self._uncounted_commits + 1, self.uncounted_bytes + _size(group)
        if not self._goes_in_parts:
            return max(commits / limits.counted_commits_max, size / limits.counted_bytes_max)
        deleting = bool(self._logs.to_reclaim)
        bytes_max = limits.counted_bytes_deleting_max if deleting else limits.counted_bytes_many_max
        return max(commits / limits.counted_commits_many_max, size / bytes_max)

    def committed(self, group: CommitGroup, reserved: Collection[str]) -> None:
        """The group is on disk. Counters of `reserved` addresses never leave memory."""
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
    """Bytes of what it brings, which opening reads again: bodies and addresses."""
    return group.size + sum(map(len, group.sequences))
