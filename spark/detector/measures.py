"""How far a value is from what was to be expected, measured in 23 ways of six families.

A measure is a number that is small for what is usual. Its unit does not matter: it is compared with itself alone
(`record.py`). Each family says what it expected, in the unit of the series, where it can.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark.detector.history import History, Median
from spark.detector.limits import (
    BIN_VALUES,
    BINS,
    DAY_S,
    DAYS,
    INTERVAL_VALUES,
    SLOT_SEARCH,
    SLOTS,
    STRIDE_VALUES_MAX,
)

_SLOT_S = DAY_S // SLOTS
_HOURS = 24
_RECENT = 24
"""Values of "now" where something of now is compared with what was before."""


class Moment(NamedTuple):
    """A value and what the families share about it."""

    time_s: float
    """Seconds since 1970."""
    value: float
    history: History
    """With `value` in it."""
    overall: float
    """The mean of all values."""
    day: int | None
    """Values a day; None while that is not known."""


class Measured(NamedTuple):
    """What one family says of a value. `amounts`: as many each time, 0 for what cannot be said yet."""

    amounts: tuple[float, ...]
    expected: float | None = None


class UnusualValue:
    """Far from the mean of the series: of all of it, of the last weeks, on a scale of factors, or below."""

    rule = "unusual value"
    count = 5
    _FADING = 1 / 1_500

    def __init__(self) -> None:
        self._fading = 0.0
        self._factors = 0.0
        self._values = 0

    def measure(self, moment: Moment) -> Measured:
        """Distances of the value, and of the mean of six."""
        value, history, overall = moment.value, moment.history, moment.overall
        self._values += 1
        if self._values == 1:
            self._fading = value
        from_fading = abs(value - self._fading)
        self._fading += max(self._FADING, 1 / (self._values + 1)) * (value - self._fading)
        factor = _factor(history.mean(3))
        self._factors += (factor - self._factors) / self._values
        amounts = (
            abs(value - overall),
            abs(history.mean(6) - overall),
            from_fading,
            abs(factor - self._factors),
            max(0.0, overall - value),
        )
        return Measured(amounts, overall)


class LevelShift:
    """The mean of some values against the mean of six times as many before them."""

    rule = "level shift"
    _WINDOWS = (6, 12, 48, 144)
    count = len(_WINDOWS)

    def measure(self, moment: Moment) -> Measured:
        """One distance a window."""
        mean = moment.history.mean
        before = [mean(6 * window, window) for window in self._WINDOWS]
        amounts = tuple([abs(mean(window) - each) for window, each in zip(self._WINDOWS, before, strict=True)])
        return Measured(amounts, before[1])


class Spike:
    """A value against the one before, and against the median of the eleven before."""

    rule = "spike"
    count = 2

    def __init__(self) -> None:
        self._median = Median(11)
        self._before: float | None = None
        self._expected = 0.0

    def measure(self, moment: Moment) -> Measured:
        """Both distances."""
        value, before, expected = moment.value, self._before, self._expected
        self._before, self._expected = value, self._median.add(value)
        if before is None:
            return Measured((0.0, 0.0), value)
        return Measured((abs(value - before), abs(value - expected)), expected)


class Season:
    """The mean of the last hour against the same time of other days."""

    rule = "season"
    count = 4
    _DAYS_AGO = (1, 2, 3, 7)

    def __init__(self) -> None:
        self._slots: list[tuple[int, float] | None] = [None] * (SLOTS * DAYS)

    def measure(self, moment: Moment) -> Measured:
        """Against yesterday; the median, and the nearest, of three days; the nearest of one, two and seven days ago."""
        if moment.day is None:
            return Measured((0.0,) * self.count)
        now = moment.history.mean(max(1, moment.day // _HOURS))
        slot = int(moment.time_s // _SLOT_S)
        self._slots[slot % len(self._slots)] = (slot, now)
        one, two, three, week = [self._at(slot - SLOTS * days) for days in self._DAYS_AGO]
        if one is None:
            return Measured((0.0,) * self.count)
        first = abs(now - one)
        if two is None or three is None:
            return Measured((first, 0.0, 0.0, 0.0), one)
        second = abs(now - two)
        usual = sorted((one, two, three))[1]
        nearest = min(first, second, abs(now - three))
        return Measured(
            (first, abs(now - usual), nearest, min(first, second, abs(now - week)) if week is not None else 0.0), usual
        )

    def _at(self, slot: int) -> float | None:
        for near in _NEAR:
            there = self._slots[(slot + near) % len(self._slots)]
            if there is not None and there[0] == slot + near:
                return there[1]
        return None


class Variability:
    """How much values vary: more or less than before, than ever, than on other days; and which values are common."""

    rule = "variability"
    count = 5
    _LEAST = 0.02
    """Of the usual spread: a spread that is nothing would be infinitely quiet."""

    def __init__(self) -> None:
        self._spreads = History()
        self._quiet_mean = _Running()
        self._day_mean = _Running()
        self._day = _DaySpread()
        self._common = _Common()

    def measure(self, moment: Moment) -> Measured:
        """The spread of 24 values, its change, how quiet 36 are, how other a day is, how other the sizes of 48 are."""
        history = moment.history
        spread = history.spread(_RECENT)
        self._spreads.add(spread)
        before = self._spreads.mean(144, _RECENT)
        quiet = history.spread(36)
        usual_quiet = self._quiet_mean.add(quiet)
        day = self._day.add(moment.time_s, moment.value)
        usual_day = self._day_mean.add(day)
        least = 0.05 * usual_day + 1e-12
        amounts = (
            spread,
            abs(spread - before),
            usual_quiet / (quiet + self._LEAST * usual_quiet + 1e-12),
            abs(math.log((day + least) / (usual_day + least))),
            self._common.add(moment.value),
        )
        return Measured(amounts)


class Pattern:
    """The course of the last hours against the most similar one that was seen."""

    rule = "pattern"
    _SHAPES = ((8, 96, 400, 16), (24, 48, 300, 48), (48, 48, 300, 96))
    """Points of a course, parts of a day from point to point, courses kept, and how many of the newest do not count."""
    count = len(_SHAPES)

    def __init__(self) -> None:
        self._courses: list[_Courses] = []

    def measure(self, moment: Moment) -> Measured:
        """One distance a shape."""
        day = moment.day
        if day is None:
            return Measured((0.0,) * self.count)
        if not self._courses:
            # The first values give the unit: courses are kept in single precision.
            history = moment.history
            scale = Scale(history.mean(INTERVAL_VALUES), history.spread(INTERVAL_VALUES) or 1.0)
            self._courses = [
                _Courses(points, day // part, kept, newest, scale) for points, part, kept, newest in self._SHAPES
            ]
        return Measured(tuple([courses.add(moment) for courses in self._courses]))


Family = UnusualValue | LevelShift | Spike | Season | Variability | Pattern


def families() -> list[Family]:
    """One of each, for a new series. Where several say the same, the first one is the simplest explanation."""
    return [Spike(), UnusualValue(), LevelShift(), Season(), Variability(), Pattern()]


_NEAR = sorted(range(-SLOT_SEARCH, SLOT_SEARCH + 1), key=abs)


def _factor(value: float) -> float:
    """Logarithmic where values are large, linear around nothing; values below nothing mirror those above."""
    return math.copysign(math.log1p(abs(value)), value)


class _Running:
    """The mean of all that was added."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0

    def add(self, value: float) -> float:
        self._count += 1
        self._mean += (value - self._mean) / self._count
        return self._mean


class _DaySpread:
    """The standard deviation of a day's values, slot by slot: a slot that comes replaces the one of a day ago."""

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self._origin: float | None = None
        self._total = _Slot(0)
        self._opened = 0

    def add(self, time_s: float, value: float) -> float:
        if self._origin is None:
            self._origin = value
        value -= self._origin
        slot = int(time_s // _SLOT_S)
        if not self._slots or self._slots[-1].slot != slot:
            self._open(slot)
        self._slots[-1].add(value)
        total = self._total
        total.add(value)
        mean = total.sum / total.count
        variance = total.squares / total.count - mean * mean
        return math.sqrt(variance) if variance > 0 else 0.0

    def _open(self, slot: int) -> None:
        slots, total = self._slots, self._total
        slots.append(_Slot(slot))
        while slots[0].slot <= slot - SLOTS or len(slots) > SLOTS:
            total.take_away(slots.popleft())
        self._opened += 1
        if self._opened % SLOTS == 0:
            # Added up anew once in a while: a sum that is only ever corrected drifts.
            total.count = sum(each.count for each in slots)
            total.sum = sum(each.sum for each in slots)
            total.squares = sum(each.squares for each in slots)


class _Slot:
    """Values of one slot of a day, as far as a standard deviation asks for them."""

    __slots__ = ("count", "slot", "squares", "sum")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.count = 0
        self.sum = 0.0
        self.squares = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.squares += value * value

    def take_away(self, other: _Slot) -> None:
        self.count -= other.count
        self.sum -= other.sum
        self.squares -= other.squares


class _Common:
    """How other the sizes of the last 48 values are than those before: the relative entropy of their classes."""

    _WINDOW = 48
    _ADDED = 0.2
    """To each class, so that none has a share of nothing."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._edges: list[float] | None = None
        self._before = [1] * BINS
        self._before_in_all = BINS
        self._now = [0] * BINS
        self._window: deque[int] = deque()

    def add(self, value: float) -> float:
        if self._edges is None:
            self._first.append(value)
            if len(self._first) < BIN_VALUES:
                return 0.0
            self._edges = [float(edge) for edge in np.quantile(self._first, np.arange(1, BINS) / BINS)]
        bin_ = bisect_left(self._edges, value)
        self._window.append(bin_)
        self._now[bin_] += 1
        if len(self._window) > self._WINDOW:
            old = self._window.popleft()
            self._now[old] -= 1
            self._before[old] += 1
            self._before_in_all += 1
        added, log = self._ADDED, math.log
        total_now, total_before = len(self._window) + added * BINS, self._before_in_all
        entropy = 0.0
        for now, before in zip(self._now, self._before, strict=True):
            share = (now + added) / total_now
            entropy += share * log(share * total_before / before)
        return entropy


class Scale(NamedTuple):
    """Where values are counted from, and in what unit."""

    origin: float
    unit: float

    def of(self, value: float) -> float:
        """The value on this scale, which ends where squares would have no single precision."""
        scaled = (value - self.origin) / self.unit
        return scaled if -_SCALE_END <= scaled <= _SCALE_END else math.copysign(_SCALE_END, scaled)


_SCALE_END = 1e15


class _Courses:
    """Courses of so many points, each a mean of `stride` values, and the distance of the last one to the nearest."""

    def __init__(self, points: int, stride: int, kept: int, newest: int, scale: Scale) -> None:
        self._scale = scale
        self._stride = max(1, min(stride, STRIDE_VALUES_MAX))
        self._every = max(1, self._stride // 2)
        self._points = points
        self._means: deque[float] = deque(maxlen=(points - 1) * self._stride + 1)
        self._courses = np.zeros((kept, points), dtype=np.float32)
        self._squares = np.zeros(kept)
        self._count = 0
        self._newest: deque[NDArray[np.float64]] = deque()
        self._newest_max = newest
        self._values = 0
        self._distance = 0.0

    def add(self, moment: Moment) -> float:
        self._means.append(self._scale.of(moment.history.mean(self._stride)))
        self._values += 1
        if self._values % self._every or len(self._means) < (self._points - 1) * self._stride + 1:
            return self._distance
        course = np.array(list(self._means)[:: self._stride])
        filled = min(self._count, len(self._courses))
        if filled:
            square = float(course.dot(course))
            nearest = float((self._squares[:filled] - 2 * self._courses[:filled].dot(course)).min()) + square
            self._distance = math.sqrt(max(0.0, nearest))
        self._newest.append(course)
        if len(self._newest) > self._newest_max:
            place = self._count % len(self._courses)
            oldest = self._newest.popleft()
            self._courses[place] = oldest
            self._squares[place] = oldest.dot(oldest)
            self._count += 1
        return self._distance
