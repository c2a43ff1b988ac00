"""One series of values: a score for each, as it comes.

A value is an anomaly when several measures at once go beyond anything they have shown in memory. Nothing is assumed of
the distribution, and nothing has to be set for a series: each measure is compared with its own record. A record that
was just broken is high, so that one event is not reported again and again; it fades, so that the next one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from spark.detector.history import History
from spark.detector.limits import (
    DAY_S,
    INTERVAL_VALUES,
    LEARNING_VALUES,
    LOUDER,
    QUIET_VALUES,
    SUPPRESSED,
    VALUE_MAX,
    VOTES,
    WARM_UP_VALUES,
)
from spark.detector.measures import Moment, UnusualValue, families
from spark.detector.record import Records

REPORTED = 0.5
"""The score from which a value is an anomaly."""


class Finding(NamedTuple):
    """What is said of one value."""

    score: float
    """From 0 to 1; an anomaly from `REPORTED` on."""
    rule: str | None = None
    """The family of which the largest share of measures spoke up; None when none did."""
    expected: float | None = None
    """What that family expected, in the unit of the series; None where it expects no value."""


_NOTHING = Finding(0.0)


class Detector:
    """The state of one series; of bounded size, whatever its length."""

    def __init__(self, records: Callable[[int], Records] = Records) -> None:
        """`records`: makes what remembers so many measures; another one for whoever wants to see their amounts."""
        self._history = History()
        self._families = [(family, records(family.count)) for family in families()]
        self._overall = 0.0
        self._intervals: list[float] = []
        self._last_s: float | None = None
        self._day: int | None = None
        self._reported = -QUIET_VALUES
        self._reported_strength = 0.0

    def add(self, time_s: float, value: float) -> Finding:
        """The finding about the next value. `time_s`: seconds since 1970; a value that is not finite is no reading."""
        if not math.isfinite(value):
            return _NOTHING
        if abs(value) > VALUE_MAX:
            return Finding(1.0, UnusualValue.rule, self._overall)
        self._learn_interval(time_s)
        self._history.add(value)
        count = self._history.count
        self._overall += (value - self._overall) / count
        moment = Moment(time_s, value, self._history, self._overall, self._day)
        votes, best, rule, expected = 0.0, 0.0, None, None
        for family, records in self._families:
            measured = family.measure(moment)
            of_family = records.votes(measured.amounts)
            votes += of_family
            if of_family > best * family.count:
                best, rule, expected = of_family / family.count, family.rule, measured.expected
        if count <= WARM_UP_VALUES or rule is None:
            return _NOTHING
        strength = votes / (VOTES * (1 + math.exp(-count / LEARNING_VALUES)))
        return Finding(self._score(strength, count), rule, expected)

    def _score(self, strength: float, count: int) -> float:
        """Rises with the strength, and is `REPORTED` at 1; values of an event that is reported stay below."""
        score = 1 - math.exp2(-strength)
        if strength < 1:
            return score
        if count - self._reported < QUIET_VALUES and strength < LOUDER * self._reported_strength:
            return min(score, SUPPRESSED)
        self._reported, self._reported_strength = count, strength
        return score

    def _learn_interval(self, time_s: float) -> None:
        """How many values a day has, by the median distance of the first ones."""
        last, self._last_s = self._last_s, time_s
        if self._day is not None or last is None or time_s <= last:
            return
        self._intervals.append(time_s - last)
        if len(self._intervals) == INTERVAL_VALUES:
            interval_s = sorted(self._intervals)[INTERVAL_VALUES // 2]
            self._day = max(24, round(DAY_S / interval_s))
            self._intervals = []
