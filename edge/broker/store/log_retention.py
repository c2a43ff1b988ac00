"""Bytes that the logs of a store keep, and removal of old messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edge.broker.store.gatherer import Gatherer
from edge.broker.store.logs import LogTable
from edge.broker.store.medium import Medium
from edge.broker.store.meter import ByteMeter
from edge.broker.store.rings import MemoryRings


class StoreRetention:
    """Implements `contract.Retention`."""

    def __init__(self, gatherer: Gatherer, logs: LogTable, rings: MemoryRings, medium: Medium) -> None:
        self._gatherer = gatherer
        self._logs = logs
        self._rings = rings
        self._medium = medium

    def log_bytes(self, log: int) -> int:
        self._rings.settle()
        return max(0, self._logs.kept_bytes(log) + self._gatherer.bytes_of(log))

    def holding(self) -> Iterator[tuple[int, str]]:
        return self._logs.holding()

    def free_bytes(self) -> int | None:
        return self._medium.free_bytes()

    # --- removal ----------------------------------------------------------------------------------------------

    def evict(self, log: int, size: int, at_most: int | None = None) -> None:
        self._release(self._gatherer.evict, log, size, at_most)

    def thin(self, log: int, size: int, at_most: int | None = None) -> None:
        self._release(self._gatherer.thin, log, size, at_most)

    def _release(
        self, of_medium: Callable[[int, int, int | None], None], log: int, size: int, at_most: int | None
    ) -> None:
        """Drop messages on the medium first, as they are older than those in memory."""
        ring = self._rings.rings.get(log)
        if ring is not None:
            kept = min(size, max(0, self.log_bytes(log) - ring.size))
            size, rest = kept, size - kept
            if rest:
                self._rings.release_space(ring, rest, None if at_most is None else at_most - kept)
        if size or ring is None:
            of_medium(log, size, at_most)

    # --- meters -----------------------------------------------------------------------------------------------

    def meter(self, log: int, meter: ByteMeter | None) -> bool:
        return self._logs.set_meter(log, meter)

    def meter_of(self, log: int) -> ByteMeter | None:
        return self._logs.meter_of(log)

    def metered_bytes(self, meter: ByteMeter) -> int:
        self._rings.settle()
        mine = (log for log in self._gatherer.changing if self._logs.meter_of(log) is meter)
        return meter.bytes + sum(self.log_bytes(log) - self._logs.kept_bytes(log) for log in mine)

    def metered(self, meter: ByteMeter) -> Iterator[int]:
        return self._logs.metered(meter)

    def largest(self, meter: ByteMeter, count: int) -> Sequence[int]:
        return self._logs.largest(meter, count)
