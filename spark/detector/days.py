"""Times of a series as slots of five minutes, and data kept by slot: means of some days, sums of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark.detector.limits import (
    BLOCK_VALUES,
    DAY_S,
    DAYS,
    INTERVAL_S_MIN,
    INTERVAL_VALUES,
    SLOT_MAX,
    SLOT_SEARCH,
    SLOTS,
    SLOTS_WEEK,
)
from spark.detector.running import Numbers

Slots = NDArray[np.int64]

_SLOT_S: Final = DAY_S / SLOTS


class SeriesClock:
    """Slots of values, which never go back, and the number of values per day."""

    __slots__ = ("_intervals", "_last_s", "_latest", "_weeks", "day")

    def __init__(self) -> None:
        self.day: int | None = None
        """Values a day, by the median distance of the first ones; None while that is not known."""
        self._intervals: Numbers = np.empty(0)
        self._last_s: float | None = None
        self._latest: int | None = None
        self._weeks = 0
        """Slots of whole weeks by which this clock is ahead of that of the times."""

    def learn(self, times_s: Numbers) -> int:
        """Return how many of `times_s` to process now: those before the number of values per day becomes known."""
        if self.day is not None:
            return len(times_s)
        before = times_s[:1] if self._last_s is None else [self._last_s]
        distances = np.diff(np.concatenate((before, times_s)))
        rows = np.flatnonzero(distances > 0)[: INTERVAL_VALUES - len(self._intervals)]
        known_with = rows[-1] if len(rows) + len(self._intervals) == INTERVAL_VALUES else len(times_s)
        if known_with:
            self._intervals = np.concatenate((self._intervals, distances[rows[rows < known_with]]))
            self._last_s = float(times_s[known_with - 1])
            return int(known_with)
        interval_s = np.sort(np.append(self._intervals, distances[0]))[INTERVAL_VALUES // 2]
        self.day = max(24, round(DAY_S / max(interval_s, INTERVAL_S_MIN)))
        self._intervals = np.empty(0)
        return len(times_s)

    def slots(self, times_s: Numbers) -> Slots:
        """Return the slot of each time; the latest one so far if a time goes back.

        After a clock is set back by more than a day, slots are ahead by whole weeks: hours and days of the week stay
        right.
        """
        slots = np.clip(np.floor(times_s / _SLOT_S), -SLOT_MAX, SLOT_MAX).astype(np.int64) + self._weeks
        while True:
            latest = np.maximum.accumulate(slots)
            if self._latest is not None:
                latest = np.maximum(latest, self._latest)
            back = np.flatnonzero(slots < latest - SLOTS)
            if not len(back):
                self._latest = int(latest[-1])
                return latest
            first = back[0]
            weeks = -(-int(latest[first] - slots[first]) // SLOTS_WEEK) * SLOTS_WEEK
            slots[first:] += weeks
            self._weeks += weeks


class DayMeans:
    """One number for each slot of the last days, the newest one in the slot."""

    _NEAR: Final = 2 * SLOT_SEARCH + 1

    __slots__ = ("_slots", "_values")

    def __init__(self) -> None:
        self._slots: Slots = np.empty(0, dtype=np.int64)
        self._values: Numbers = np.empty(0)

    def add(self, slots: Slots, values: Numbers, days_ago: Sequence[int]) -> list[Numbers]:
        """Add values; return the numbers of the same time on these days before each, NaN without one."""
        known_slots, known = np.concatenate((self._slots, slots)), np.concatenate((self._values, values))
        newest = np.append(known_slots[1:] != known_slots[:-1], True)
        known_slots, known = known_slots[newest], known[newest]
        kept = known_slots > slots[-1] - SLOTS * DAYS
        self._slots, self._values = known_slots[kept], known[kept]
        opens = np.flatnonzero(np.append(True, slots[1:] != slots[:-1]))  # many values may come in one slot
        wanted = slots[opens] - SLOTS * np.array(days_ago)[:, None]
        found = self._nearest(known_slots, known, wanted.ravel()).reshape(wanted.shape)
        return list(np.repeat(found, np.diff(opens, append=len(slots)), axis=1))

    def _nearest(self, known_slots: Slots, known: Numbers, wanted: Slots) -> Numbers:
        first = np.searchsorted(known_slots, wanted - SLOT_SEARCH)
        found = np.full(len(wanted), np.nan)
        nearest = np.full(len(wanted), self._NEAR)
        for place in range(self._NEAR):
            index = np.minimum(first + place, len(known) - 1)
            distance = known_slots[index] - wanted
            # The earlier one of two that are as near; none that is further than is searched.
            far = 2 * np.abs(distance) + (distance > 0)
            nearer = far < nearest
            found[nearer], nearest[nearer] = known[index][nearer], far[nearer]
        return found


class DaySpread:
    """Standard deviation of a day's values, slot by slot: a new slot replaces the one of a day ago."""

    __slots__ = ("_opened", "_origin", "_totals")

    def __init__(self) -> None:
        self._origin: float | None = None
        self._opened: Slots = np.empty(0, dtype=np.int64)
        """The slots of the day."""
        self._totals = np.zeros((3, 1))
        """Count, sum and sum of squares of the values before each of these slots, and of all so far."""

    def add(self, slots: Slots, values: Numbers, count: int) -> Numbers:
        """Return the standard deviation with each of the values. `count`: values of the series, including these."""
        if self._origin is None:
            self._origin = float(values[0])
        if (count - len(values)) % BLOCK_VALUES == 0:
            # Start the sums again: adding and subtracting forever accumulates rounding errors.
            self._totals -= self._totals[:, :1]
        values = values - self._origin
        latest = self._opened[-1] if len(self._opened) else slots[0] - 1
        opens = np.flatnonzero(np.diff(slots, prepend=latest))
        added = np.vstack((np.ones(len(values)), values, values * values))
        upto = np.cumsum(np.concatenate((self._totals[:, -1:], added), axis=1), axis=1)
        opened = np.concatenate((self._opened, slots[opens]))
        before = np.concatenate((self._totals[:, :-1], upto[:, opens], upto[:, -1:]), axis=1)
        number, total, squares = upto[:, 1:] - before[:, np.searchsorted(opened, slots - SLOTS, side="right")]
        of_day = int(np.searchsorted(opened, slots[-1] - SLOTS, side="right"))
        self._opened, self._totals = opened[of_day:], before[:, of_day:]
        mean = total / number
        return np.asarray(np.sqrt(np.maximum(0.0, squares / number - mean * mean)))
