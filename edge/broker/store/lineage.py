"""Identity of the store: its epochs, its openings, and the next sequence of each address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edge.broker.store.counters import SequenceCounters
from edge.broker.store.epochs import Epochs
from edge.broker.store.logs import LogTable
from edge.broker.store.medium import Medium
from edge.broker.store.reservation import SPILLS_LOG
from edge.broker.store.rings import MemoryRings


class StoreLineage:
    """Implements `contract.EpochLineage`."""

    def __init__(self, logs: LogTable, counters: SequenceCounters, rings: MemoryRings, medium: Medium) -> None:
        self._logs = logs
        self._rings = rings
        self._counters = counters
        self._medium = medium

    @property
    def epochs(self) -> Epochs:
        return self._medium.epochs

    @property
    def epoch(self) -> str:
        return self._medium.epochs.current

    @property
    def openings(self) -> Sequence[str]:
        return self._medium.openings

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        return self._medium.opening_ends()

    @property
    def reached(self) -> Mapping[int, int]:
        return {SPILLS_LOG: self._counters.spills} if self._counters.spills else {}

    def sequences(self) -> Iterator[tuple[str, int]]:
        return iter({**dict(self._medium.sequences()), **self._counters.known}.items())

    def fork(self, shared: str) -> None:
        ends = self._medium.ends_after(shared)
        since = {log: ends.get(log, 0) for log in range(1, len(self._logs) + 1)}
        self._begin_epoch(since, "the hub knows a later opening")

    def begin_epoch(self) -> None:
        self._begin_epoch({}, "by command")

    def _begin_epoch(self, since: Mapping[int, int], why: str) -> None:
        """Start a new epoch. `since`: first position of each log with messages that belong to it."""
        starts = dict(self.sequences())
        for log, end in since.items():
            for address, sequence in self._appended_since(log, end):
                starts[address] = min(starts.get(address, sequence), sequence)
        self._medium.begin_epoch(starts, why)

    def _appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        yield from self._medium.appended_since(log, end)
        ring = self._rings.rings.get(log)
        for kept in ring.runs if ring is not None else ():
            if kept.stored.position >= end:
                yield kept.stored.run.address, kept.stored.sequence
