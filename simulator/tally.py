"""Counts of a group of devices, and the times until their acknowledgements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from simulator.limits import LATENCY_STEP

_LOG: Final = math.log(LATENCY_STEP)
_LEAST_S: Final = 1e-5
"""Upper limit of the first bucket."""


class LatencyCounts:
    """Counts of times in buckets, each `LATENCY_STEP` times as long as the one before: small at any number of times."""

    def __init__(self, counts: Counter[int] | None = None) -> None:
        self._counts: Counter[int] = counts if counts is not None else Counter()

    def add(self, seconds: float) -> None:
        """Count a time."""
        self._counts[max(0, math.ceil(math.log(max(seconds, _LEAST_S) / _LEAST_S) / _LOG))] += 1

    def copy(self) -> LatencyCounts:
        """Return a copy, to compare later counts with."""
        return LatencyCounts(Counter(self._counts))

    def since(self, before: LatencyCounts) -> LatencyCounts:
        """Return the counts since a copy was made."""
        return LatencyCounts(self._counts - before._counts)

    def percentile_ms(self, share: float) -> float | None:
        """Return the milliseconds below which this share of the times is; None without any."""
        return percentile_ms([self], share)

    def bucket_counts(self) -> Counter[int]:
        """Return the counts by bucket."""
        return self._counts


def percentile_ms(parts: Iterable[LatencyCounts], share: float) -> float | None:
    """Return the milliseconds below which this share of all times is; None without any."""
    counts: Counter[int] = Counter()
    for each in parts:
        counts.update(each.bucket_counts())
    total = counts.total()
    if not total:
        return None
    passed, wanted = 0, share * total
    for bucket in sorted(counts):
        passed += counts[bucket]
        if passed >= wanted:
            return 1e3 * _LEAST_S * LATENCY_STEP**bucket
    raise AssertionError("the counts add up to their total")


class DeviceTally:
    """Counts of one or more devices. Devices add to them as things happen."""

    def __init__(self) -> None:
        self.connected = 0
        """Devices that are connected now."""
        self.known = 0
        """Devices that have been connected."""
        self.published = self.acknowledged = self.repeated = self.dropped = 0
        """Readings taken; acknowledged; sent more than once; dropped as the buffer was full."""
        self.breaks = 0
        """Links that the simulation has broken."""
        self.resets = 0
        self.commands = 0
        """Commands answered."""
        self.latency = LatencyCounts()
        """Times from a send of a reading to its PUBACK."""
        self.errors: Counter[str] = Counter()
        """Errors by reason code."""
        self.states: Counter[str] = Counter()
        """Reported states of updates."""
        self.versions: Counter[str] = Counter()
        """Devices by the version that they run."""

    def record_wait(self, _started_s: float, wait_s: float) -> None:
        """Record the time until a PUBACK. `_started_s`: monotonic time of the send."""
        self.latency.add(wait_s)

    def record_state(self, state: str) -> None:
        """Record a state of an update with an acknowledged report."""
        self.states[state] += 1

    @property
    def waiting(self) -> int:
        """Readings that are not acknowledged."""
        return self.published - self.acknowledged - self.dropped
