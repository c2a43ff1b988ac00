"""Distance of values from what was expected, measured in 27 ways of seven families.

A measure is a number that is small for the usual. Its unit does not matter: it is compared only with itself
(`running.MeasureRecords`). A family returns the value that it expected, in the unit of the series, if it can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spark.detector.courses import Courses
from spark.detector.days import DaySpread, Slots
from spark.detector.forecast import Forecast
from spark.detector.history import SeriesHistory, Windows
from spark.detector.limits import BIN_VALUES, BINS
from spark.detector.running import FadingMean, Numbers, RunningMean

DAYS_AGO = (1, 2, 3, 7)
_RECENT = 24
"""Values that count as the present when it is compared with the past."""


@dataclass(frozen=True, slots=True)
class ValueChunk:
    """Consecutive values, with data that the families share."""

    values: Numbers
    slots: Slots
    """Slots of the values."""
    windows: Windows
    """Windows that end in each of them."""
    overall: Numbers
    """Mean of all values up to each."""
    count: int
    """Values of the series, including these."""
    day: int | None
    """Values per day; None while unknown."""
    hour: Numbers
    """Means of an hour up to each."""
    days_ago: Mapping[int, Numbers]
    """Means of the same hour as many days ago as `DAYS_AGO` has; NaN without one."""


class Measurement(NamedTuple):
    """Result of one family for a chunk.

    `amounts`: a row for each of its measures, 0 while it cannot be computed; `expected`: NaN if it expects nothing,
    None if it never does.
    """

    amounts: Numbers
    expected: Numbers | None = None


class UnusualValue:
    """Distance from the mean of the series: of all of it, of the last weeks, on a logarithmic scale, or below."""

    rule = "unusual value"
    count = 5

    def __init__(self) -> None:
        self._fading = FadingMean()
        self._factors = RunningMean()

    def measure(self, chunk: ValueChunk) -> Measurement:
        """Measure distances of the value, and of the mean of six."""
        values, overall, windows = chunk.values, chunk.overall, chunk.windows
        factors = _signed_log(windows.mean(3))
        amounts = (
            values - overall,
            windows.mean(6) - overall,
            values - self._fading.add(values, chunk.count),
            factors - self._factors.add(factors, chunk.count),
            np.minimum(0.0, values - overall),
        )
        return Measurement(np.abs(amounts), overall)


class LevelShift:
    """Mean of some values against the mean of six times as many before them."""

    rule = "level shift"
    _WINDOWS = (6, 12, 48, 144)
    count = len(_WINDOWS)

    def measure(self, chunk: ValueChunk) -> Measurement:
        """Measure one distance per window."""
        mean = chunk.windows.mean
        before = [mean(6 * window, window) for window in self._WINDOWS]
        return Measurement(np.abs(np.array([mean(window) for window in self._WINDOWS]) - before), before[1])


class Spike:
    """Value against the previous one, and against the median of the previous eleven."""

    rule = "spike"
    count = 2

    def measure(self, chunk: ValueChunk) -> Measurement:
        """Measure both distances."""
        before = chunk.windows.before(11)
        expected = np.sort(before, axis=1)[:, 5]
        last = before[:, -1].copy()
        if chunk.count == len(chunk.values):
            expected[0] = last[0] = chunk.values[0]
        return Measurement(np.abs((chunk.values - last, chunk.values - expected)), expected)


class Season:
    """Mean of the last hour against the same time on other days."""

    rule = "season"
    count = 4

    def measure(self, chunk: ValueChunk) -> Measurement:
        """Compare with yesterday, the median and nearest of three days, and with one, two and seven days ago."""
        now = chunk.hour
        one, two, three, week = chunk.days_ago.values()
        # NaN of one day makes all results of these days NaN.
        usual = np.maximum(np.minimum(one, two), np.minimum(np.maximum(one, two), three))
        first, second = np.abs(now - one), np.abs(now - two)
        nearest = np.minimum(np.minimum(first, second), np.abs(now - three))
        of_week = np.where(np.isnan(usual), np.nan, np.minimum(np.minimum(first, second), np.abs(now - week)))
        amounts = np.nan_to_num((first, np.abs(now - usual), nearest, of_week))
        return Measurement(amounts, np.where(np.isnan(usual), one, usual))


class Variability:
    """Variation of values against before, ever, and other days; and how common the values are."""

    rule = "variability"
    count = 6
    _LEAST = 0.02
    """Share of the usual spread: without it a spread of zero would be infinitely quiet."""

    def __init__(self) -> None:
        self._spreads = SeriesHistory(144 + _RECENT)
        self._quiet_mean = RunningMean()
        self._day_mean = RunningMean()
        self._day = DaySpread()
        self._common = _Common()
        self._same = Same()

    def measure(self, chunk: ValueChunk) -> Measurement:
        """Measure the spread of 24 values, its change, how quiet 36 are, and three more.

        The others are the difference of the day's spread, that of the sizes of 48 values, and how long the value is the
        same.
        """
        spread = chunk.windows.spread(_RECENT)
        before = self._spreads.add(spread).mean(144, _RECENT)
        quiet = chunk.windows.spread(36)
        usual_quiet = self._quiet_mean.add(quiet, chunk.count)
        day = self._day.add(chunk.slots, chunk.values, chunk.count)
        usual_day = self._day_mean.add(day, chunk.count)
        least = 0.05 * usual_day + 1e-12
        amounts = (
            spread,
            np.abs(spread - before),
            usual_quiet / (quiet + self._LEAST * usual_quiet + 1e-12),
            np.abs(np.log((day + least) / (usual_day + least))),
            self._common.add(chunk.values),
            self._same.add(chunk.values),
        )
        return Measurement(np.array(amounts))


class Pattern:
    """Course of the last hours against the most similar earlier one."""

    rule = "pattern"
    _SHAPES = ((8, 96, 400, 16), (24, 48, 300, 48), (48, 48, 300, 96))
    """Points of a course, parts of a day from point to point, courses kept, and how many of the newest are left out."""
    count = len(_SHAPES)

    def __init__(self) -> None:
        self._courses: list[Courses] = []

    def measure(self, chunk: ValueChunk) -> Measurement:
        """Measure one distance per shape."""
        day = chunk.day
        if day is None:
            return _no_amounts(self.count, chunk)
        if not self._courses:
            self._courses = [Courses(points, day // part, kept, newest) for points, part, kept, newest in self._SHAPES]
        return Measurement(np.array([courses.add(chunk.windows, chunk.count) for courses in self._courses]))


class Unforeseen:
    """Value, and mean of some, against the forecast from earlier ones and from those of a day and a week ago."""

    rule = "forecast"
    _WINDOWS = (1, 12, 48)
    _LAST = 3
    """Values before each from which it is predicted."""
    count = len(_WINDOWS)

    def __init__(self) -> None:
        self._forecast = Forecast(self._LAST - 1 + 2)
        self._errors = SeriesHistory(self._WINDOWS[-1])

    def measure(self, chunk: ValueChunk) -> Measurement:
        """Measure one mean of errors per window."""
        *others, last = chunk.windows.before(self._LAST).T
        with np.errstate(invalid="ignore"):
            differences = np.array([*others, chunk.days_ago[1], chunk.days_ago[7], chunk.values]) - last
        differences[~np.isfinite(differences)] = 0.0
        errors = self._forecast.errors(differences[-1], differences[:-1], chunk.count)
        windows = self._errors.add(errors)
        return Measurement(np.abs([windows.mean(window) for window in self._WINDOWS]), chunk.values - errors)


Family = UnusualValue | LevelShift | Spike | Season | Variability | Pattern | Unforeseen


def make_families() -> list[Family]:
    """Return one of each family, for a new series. If several agree, the first one is the simplest explanation."""
    return [Spike(), UnusualValue(), LevelShift(), Season(), Variability(), Pattern(), Unforeseen()]


def _no_amounts(count: int, chunk: ValueChunk) -> Measurement:
    return Measurement(np.zeros((count, len(chunk.values))))


def _signed_log(values: Numbers) -> Numbers:
    """Return values on a scale that is logarithmic for large ones, linear around zero, and symmetric."""
    return np.asarray(np.copysign(np.log1p(np.abs(values)), values))


class Same:
    """Counts how many previous values in a row equal each value."""

    def __init__(self) -> None:
        self._last = math.nan
        self._run = 0

    def add(self, values: Numbers) -> Numbers:
        places = np.arange(1, len(values) + 1)
        changes = np.append(values[0] != self._last, values[1:] != values[:-1])
        changed = np.maximum.accumulate(np.where(changes, places, 0))
        runs = np.where(changed > 0, places - changed, self._run + places)
        self._last, self._run = float(values[-1]), int(runs[-1])
        return runs.astype(np.float64)


class _Common:
    """Relative entropy of the sizes of the last 48 values against those before."""

    _WINDOW = 48
    _ADDED = 0.2
    """Added to each class, so that none has a share of zero."""

    def __init__(self) -> None:
        self._first: Numbers = np.empty(0)
        self._edges: Numbers | None = None
        self._before = np.ones(BINS)
        self._window = np.empty(0, dtype=np.int64)
        """Classes of the last values."""

    def add(self, values: Numbers) -> Numbers:
        entropies = np.zeros(len(values))
        begin = 0
        if self._edges is None:
            begin = BIN_VALUES - 1 - len(self._first)
            self._first = np.concatenate((self._first, values[: begin + 1]))
            if len(self._first) < BIN_VALUES:
                return entropies
            self._edges = np.quantile(self._first, np.arange(1, BINS) / BINS)
            self._first = np.empty(0)
        classes = np.concatenate((self._window, np.searchsorted(self._edges, values[begin:])))
        known = len(self._window)
        # Count each class among the first n values, for every n.
        upto = np.zeros((BINS, len(classes) + 1))
        upto[classes, np.arange(1, len(classes) + 1)] = 1.0
        np.cumsum(upto, axis=1, out=upto)
        ends = np.arange(known + 1, len(classes) + 1)
        begins = np.maximum(0, ends - self._WINDOW)
        before = self._before[:, None] + upto[:, begins]
        shares = (upto[:, ends] - upto[:, begins] + self._ADDED) / (ends - begins + self._ADDED * BINS)
        of_each = shares * np.log(shares * before.sum(axis=0) / before)
        entropies[begin:] = np.cumsum(of_each, axis=0)[-1]
        self._window = classes[begins[-1] :]
        self._before = before[:, -1]
        return entropies
