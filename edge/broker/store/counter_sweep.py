"""Counters of very many addresses are written a part a commit, in order of their names: neighbours share pages.

A sweep notes where the logs end when it begins. Once each counter that waited then is on the medium, with what it was
or more, table ``log`` may be told of these ends: everything before them is counted. What came meanwhile is the next
one's.
"""

from __future__ import annotations

from collections.abc import Mapping

from edge.broker.store.group import CommitGroup, SweepPart
from edge.broker.store.limits import StoreLimits


class CounterSweep:
    """One at a time. It holds what commits have written; a part that was not committed is taken again."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._names: list[str] = []
        """Those of this sweep among those of earlier ones, in order: sorting what is nearly in order is quick."""
        self._known: set[str] = set()
        self._characters = 0
        """Of these names."""
        self._following: int | None = None
        """Index of the name that is next; None: no sweep runs."""
        self._lag = 0.0
        """How far the medium was behind when it began."""
        self.ends: dict[int, int] = {}
        """Where logs ended then."""
        self._sizes: dict[int, int] = {}
        """Bytes of bodies that came to them since."""
        self.commits = 0
        """Commits with messages since it began."""
        self.bytes = 0
        """Bytes of bodies since it began."""

    @property
    def runs(self) -> bool:
        return self._following is not None

    def begin(self, waiting: Mapping[str, int], ends: dict[int, int], lag: float) -> None:
        """Everything in `waiting` is written from here on. `lag`: how far the medium is behind what it may be, 0-1."""
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
        """Everything was written at once."""
        self._following, self.ends, self._sizes = None, {}, {}
        self._forget_names()

    def part(self, waiting: Mapping[str, int], fresh: Mapping[str, int], *, lag: float, full: bool) -> SweepPart | None:
        """What a commit that brings `fresh` counters writes; None: it is in time without. `full`: no more may wait."""
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
        """How many counters, so that the last is written before the medium is behind as far as it may be."""
        if self._following is None:
            return 0
        names, least = len(self._names), self._limits.counted_at_once
        left = names - self._following
        share = (lag - self._lag) / (1.0 - self._lag) if self._lag < 1.0 else 1.0
        late = int(names * min(1.0, share)) - self._following
        most = max(4 * least, 2 * fresh)  # nobody waits long for one commit, and the sweep ends all the same
        if late > 0 or left <= least:
            return min(max(late, least), most)
        return max(least, fresh) if full else 0

    def is_last(self, part: SweepPart) -> bool:
        """With this one everything is written."""
        return part.following == len(self._names)

    def size_since(self, log: int) -> int:
        """Bytes of bodies that came to a log since the sweep began."""
        return self._sizes[log]

    def committed(self, group: CommitGroup) -> None:
        """The group is on disk, and was not one that writes everything."""
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
