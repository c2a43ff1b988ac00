"""Axes: where ticks go and what stands beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from spark.report import formatting

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_DAY_S = 86_400
_LEAST = 1e-9
"""What counts as nothing on an axis of counts, rates and seconds."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from `low` to `high` (never equal) with labelled ticks at values on it."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()

    def share(self, value: float) -> float:
        """Where `value` is between `low` (0) and `high` (1); clamped."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


def time_axis(first: float, last: float, ticks_max: int = 7) -> Axis:
    """From `first` to `last` (seconds since 1970), ticks on round UTC times."""
    last = max(last, first + 1.0)
    step = next((step for step in _STEPS_S if (last - first) / step <= ticks_max), 0)
    if not step:
        step = _DAY_S * math.ceil((last - first) / _DAY_S / ticks_max)
    ticks = []
    at = math.ceil(first / step) * step
    while at <= last:
        ticks.append((float(at), _time_label(at, step)))
        at += step
    return Axis(first, last, tuple(ticks))


def _time_label(at: float, step: float) -> str:
    time = datetime.fromtimestamp(at, UTC)
    if step >= _DAY_S:
        return f"{time:%d %b}"
    if step >= 60:
        return f"{time:%d %b}" if at % _DAY_S == 0 else f"{time:%H:%M}"
    return f"{time:%H:%M:%S}"


def count_axis(highest: float, ticks_max: int = 4) -> Axis:
    """From zero to a round number at or above `highest`."""
    step = nice_step(highest, ticks_max)
    ticks = max(1, math.ceil(highest / step - 1e-9))
    marks = tuple((step * tick, formatting.number(step * tick)) for tick in range(ticks + 1))
    return Axis(0.0, step * ticks, marks)


def value_axis(lowest: float, highest: float) -> Axis:
    """Around the values themselves, with a little air; ticks at the lowest and the highest only."""
    if highest <= lowest:
        pad = abs(lowest) * 0.1 or 1.0
        return Axis(lowest - pad, lowest + pad, ((lowest, formatting.number(lowest)),))
    air = (highest - lowest) * 0.08
    marks = ((lowest, formatting.number(lowest)), (highest, formatting.number(highest)))
    return Axis(lowest - air, highest + air, marks)


def nice_step(highest: float, ticks_max: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that reaches `highest` in `ticks_max` steps."""
    if highest < _LEAST:
        return 1.0
    rough = highest / ticks_max
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough * (1 - 1e-9))
