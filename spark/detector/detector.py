"""Score the values of one series, as they arrive.

A value is an anomaly when several measures at once exceed anything that they have shown in memory. Nothing is assumed
about the distribution, and nothing has to be configured for a series: each measure is compared with its own record. A
record that was just broken is high, so that one event is not reported repeatedly; it fades, so that the next one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark.detector.days import DayMeans, SeriesClock, Slots
from spark.detector.history import SeriesHistory, Windows
from spark.detector.limits import (
    BLOCK_VALUES,
    HOURS,
    LEARNING_DAYS,
    LEARNING_VALUES,
    LOUDER,
    MEMORY_DAYS,
    MEMORY_VALUES,
    QUIET_VALUES,
    SUPPRESSED,
    VALUE_MAX,
    VOTES,
    WARM_UP_VALUES,
)
from spark.detector.measures import DAYS_AGO, UnusualValue, ValueChunk, make_families
from spark.detector.running import MeasureRecords, Numbers, RunningMean, sum_rows

Places = NDArray[np.int64]

REPORTED = 0.5
"""Score from which a value is an anomaly."""

RULES: Final = tuple(family.rule for family in make_families())
_NO_RULE: Final = -1


class DetectorFinding(NamedTuple):
    """Result for one value."""

    score: float
    """Number from 0 to 1; an anomaly from `REPORTED` on."""
    rule: str | None = None
    """Family with the largest share of measures that voted; None if none did."""
    expected: float | None = None
    """Value that the family expected, in the unit of the series; None if it expects none."""


class DetectorFindings:
    """Results for values, as columns."""

    def __init__(self, values: int) -> None:
        self.scores: Numbers = np.zeros(values)
        self._rules = np.full(values, _NO_RULE)
        self._expected: Numbers = np.full(values, np.nan)

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[DetectorFinding]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> DetectorFinding:
        rule, expected = int(self._rules[row]), float(self._expected[row])
        return DetectorFinding(
            float(self.scores[row]),
            None if rule == _NO_RULE else RULES[rule],
            None if math.isnan(expected) else expected,
        )

    def put(self, rows: Places, scores: Numbers, rules: Places | int, expected: Numbers) -> None:
        """Set the results of these rows."""
        self.scores[rows], self._rules[rows], self._expected[rows] = scores, rules, expected


class Detector:
    """State of one series; its size does not grow with the series."""

    def __init__(self, records: Callable[[int], MeasureRecords] = MeasureRecords) -> None:
        """Create an empty state. `records`: factory of the records of measures; a test passes one that exposes the
        amounts.
        """
        self._history = SeriesHistory()
        self._families = make_families()
        self._records = [records(family.count) for family in self._families]
        self._overall = RunningMean()
        self._usual = 0.0
        """The mean of all values."""
        self._clock = SeriesClock()
        self._hours = DayMeans()
        self._memory = MEMORY_VALUES
        """Values after which a record counts half."""
        self._learning = LEARNING_VALUES
        self._reported = -QUIET_VALUES
        self._reported_strength = 0.0

    def judge(self, times_s: Numbers, values: Numbers) -> DetectorFindings:
        """Return the findings about the next values, each without knowledge of later ones.

        The result does not depend on how many arrive at once. `times_s`: seconds since 1970; a value that is not finite
        is not a reading.
        """
        findings = DetectorFindings(len(values))
        sizes = np.abs(values)
        learned = np.flatnonzero(sizes <= VALUE_MAX)
        usual = np.full(len(learned) + 1, self._usual)
        done = 0
        while done < len(learned):
            room = BLOCK_VALUES - self._history.count % BLOCK_VALUES
            rows = learned[done : done + room]
            rows = rows[: self._clock.learn(times_s[rows])]
            usual[done + 1 : done + 1 + len(rows)] = self._judge(rows, times_s[rows], values[rows], findings)
            done += len(rows)
        self._usual = float(usual[-1])
        too_large = np.flatnonzero((sizes > VALUE_MAX) & np.isfinite(sizes))
        if len(too_large):
            expected = usual[np.searchsorted(learned, too_large)]
            findings.put(too_large, np.ones(len(too_large)), RULES.index(UnusualValue.rule), expected)
        return findings

    def _judge(self, rows: Places, times_s: Numbers, values: Numbers, findings: DetectorFindings) -> Numbers:
        """Judge values that do not cross the end of a block; return the means of the series up to each."""
        windows = self._history.add(values)
        count = self._history.count
        overall = self._overall.add(values, count)
        slots, day = self._clock.slots(times_s), self._clock.day
        chunk = ValueChunk(values, slots, windows, overall, count, day, *self._by_day(slots, windows))
        if day is not None and (count - len(values)) % BLOCK_VALUES == 0:
            self._memory = max(MEMORY_VALUES, MEMORY_DAYS * day)
            self._learning = max(LEARNING_VALUES, LEARNING_DAYS * day)
        votes = np.zeros(len(values))
        largest = np.zeros(len(values))
        rules = np.full(len(values), _NO_RULE)
        expected = np.full(len(values), np.nan)
        for rule, (family, records) in enumerate(zip(self._families, self._records, strict=True)):
            measured = family.measure(chunk)
            of_family = sum_rows(records.votes(measured.amounts, count, self._memory))
            votes += of_family
            share = of_family / family.count
            larger = share > largest
            largest[larger], rules[larger] = share[larger], rule
            expected[larger] = np.nan if measured.expected is None else measured.expected[larger]
        counts = np.arange(count - len(values) + 1, count + 1)
        scored = (counts > WARM_UP_VALUES) & (rules != _NO_RULE)
        strengths = votes / (VOTES * (1 + np.exp(-counts / self._learning)))
        scores = self._scores(strengths[scored], counts[scored])
        findings.put(rows[scored], scores, rules[scored], expected[scored])
        return overall

    def _by_day(self, slots: Slots, windows: Windows) -> tuple[Numbers, dict[int, Numbers]]:
        """Return the means of an hour, and those of the same time on other days."""
        if self._clock.day is None:
            unknown = np.full(len(slots), np.nan)
            return unknown, dict.fromkeys(DAYS_AGO, unknown)
        hour = windows.mean(max(1, self._clock.day // HOURS))
        return hour, dict(zip(DAYS_AGO, self._hours.add(slots, hour, DAYS_AGO), strict=True))

    def _scores(self, strengths: Numbers, counts: Places) -> Numbers:
        """Return scores that rise with the strength and are `REPORTED` at 1; values of a reported event stay below."""
        scores = 1 - np.exp2(-strengths)
        for row in np.flatnonzero(strengths >= 1):
            strength, count = float(strengths[row]), int(counts[row])
            if count - self._reported < QUIET_VALUES and strength < LOUDER * self._reported_strength:
                scores[row] = min(scores[row], SUPPRESSED)
            else:
                self._reported, self._reported_strength = count, strength
        return scores
