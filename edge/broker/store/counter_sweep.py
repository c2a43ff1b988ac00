"""Writes the counters of very many addresses in parts, one part a commit, in the order of names that share pages.

A sweep records the ends of the logs when it starts. When each counter that waited at the start is on the medium, with
its value or a later one, these ends are written to table ``log``, because all messages before them are counted. Later
messages belong to the next sweep.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge.broker.store.group import CommitGroup, SweepPart
from edge.broker.store.limits import StoreLimits


class CounterSweep:
    """State of the current sweep. Only committed parts count; a part that was not committed is selected again."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._names: list[str] = []
        """Sorted names of this sweep and of earlier ones. Sorting a list that is nearly sorted is fast."""
        self._known: set[str] = set()
        self._characters = 0
        """Total length of the names."""
        self._following: int | None = None
        """Index of the next name; None: no sweep is running."""
        self._lag = 0.0
        """Lag of the medium at the start, 0 to 1."""
        self.ends: dict[int, int] = {}
        """Ends of the logs at the start."""
        self._sizes: dict[int, int] = {}
        """Bytes of bodies appended to these logs since the start."""
        self.commits = 0
        """Commits with messages since the start."""
        self.bytes = 0
        """Bytes of bodies since the start."""

    @property
    def runs(self) -> bool:
        return self._following is not None

    def start(self, waiting: Mapping[str, int], ends: dict[int, int], lag: float) -> None:
        """Start a sweep over the counters in `waiting`. `lag`: lag of the medium as a share of its limit, 0 to 1."""
        self._following, self._lag, self.ends = 0, lag, ends
        self._sizes, self.commits, self.bytes = dict.fromkeys(ends, 0), 0, 0
        many = len(self._names) > 2 * len(waiting) + self._limits.counted_at_once
        if many or self._characters > self._limits.addresses_characters_max:
            self._forget_names()
        new = [name for name in waiting if name not in self._known]
        if new:
            new.sort()
            self._characters += sum(map(len, new))
            self._known.update(new)
            self._names += new
            self._names.sort()

    def _forget_names(self) -> None:
        self._names, self._known, self._characters = [], set(), 0

    def stop(self) -> None:
        """End the sweep, because a commit wrote all counters."""
        self._following, self.ends, self._sizes = None, {}, {}
        self._forget_names()

    def part(self, waiting: Mapping[str, int], fresh: Mapping[str, int], *, lag: float, full: bool) -> SweepPart | None:
        """Return the part for a commit with `fresh` counters; None: nothing to write yet. `full`: the limit of waiting
        counters is reached."""
        count = self._count(len(fresh), lag, full=full)
        if not count or self._following is None:
            return None
        counters: dict[str, int] = {}
        following, names = self._following, self._names
        while len(counters) < count and following < len(names):
            name = names[following]
            following += 1
            if name in fresh:
                counters[name] = fresh[name]
            elif name in waiting:
                counters[name] = waiting[name]
        return SweepPart(counters, following)

    def _count(self, fresh: int, lag: float, *, full: bool) -> int:
        """Return the number of counters to write, so that the sweep ends before the lag reaches its limit."""
        if self._following is None:
            return 0
        names, least = len(self._names), self._limits.counted_at_once
        left = names - self._following
        share = (lag - self._lag) / (1.0 - self._lag) if self._lag < 1.0 else 1.0
        late = int(names * min(1.0, share)) - self._following
        most = max(4 * least, 2 * fresh)  # bounds the time of one commit, and the sweep still ends
        if late > 0 or left <= least:
            return min(max(late, least), most)
        return max(least, fresh) if full else 0

    def is_last(self, part: SweepPart) -> bool:
        """Return True when this part completes the sweep."""
        return part.following == len(self._names)

    def size_since(self, log: int) -> int:
        """Return the bytes of bodies appended to a log since the start of the sweep."""
        return self._sizes[log]

    def committed(self, group: CommitGroup) -> None:
        """Record a committed group that did not write all counters."""
        if self._following is None:
            return
        self.commits += bool(group.runs)
        self.bytes += group.size + sum(map(len, group.sequences))
        for log, size in group.sizes.items():
            if log in self._sizes:
                self._sizes[log] += size
        part = group.part
        if part is None:
            return
        self._following = part.following
        if self.is_last(part):
            self._following, self.ends, self._sizes = None, {}, {}
