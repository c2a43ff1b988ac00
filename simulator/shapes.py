"""Times of readings: pauses between them, by the kind of device. Pure, but for the clock that callers give."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from simulator.kinds import DeviceGroup, ReadingTimes


def day_phase(seconds: float, day_s: float) -> float:
    """Return -1 at the begin of a day, 1 in its middle."""
    return -math.cos(2.0 * math.pi * seconds / day_s)


def pauses(
    group: DeviceGroup, mean_s: float, day_s: float, chance: random.Random, now: Callable[[], float]
) -> Iterator[float]:
    """Yield the pauses before readings, in seconds, for ever. `mean_s`: mean of them; `now`: seconds of any clock."""
    if group.times is ReadingTimes.DIURNAL:
        yield from _diurnal(mean_s, day_s, chance, now)
    elif group.times is ReadingTimes.BURSTY:
        yield from _bursty(mean_s, group.burst, chance)
    while True:
        yield mean_s * (0.9 + 0.2 * chance.random())


def _diurnal(mean_s: float, day_s: float, chance: random.Random, now: Callable[[], float]) -> Iterator[float]:
    """Yield pauses that are a ninth as long at noon as at midnight. A day has as many readings as the mean says."""
    while True:
        rate = 1.0 + 0.8 * day_phase(now(), day_s)
        yield mean_s * (0.5 + chance.random()) / rate


def _bursty(mean_s: float, burst: int, chance: random.Random) -> Iterator[float]:
    while True:
        yield burst * mean_s * (0.5 + chance.random())
        yield from [0.0] * (burst - 1)
