"""Distance from the shape of the latest values to the most similar earlier shape.

A *course* is a shape: a subsequence of a fixed number of points, each the mean of several values.
"""

from __future__ import annotations

import math

import numpy as np

from spark.detector.history import Windows
from spark.detector.limits import (
    BLOCK_VALUES,
    COURSE_PRODUCTS,
    COURSE_STEPS,
    COURSE_STEPS_USUAL,
    INTERVAL_VALUES,
    STRIDE_VALUES_MAX,
)
from spark.detector.running import Numbers, median, sliding_windows


class Courses:
    """Keeps the courses of a series, and measures the distance of the latest one to its nearest neighbour.

    Consecutive courses overlap and share most points, so the points are stored once, in `_line`.
    """

    __slots__ = (
        "_distance", "_every", "_kept", "_line", "_newest", "_origin", "_points", "_ratio", "_unit", "_values"
    )  # fmt: skip

    def __init__(self, points: int, stride: int, kept: int, newest: int) -> None:
        """Set the shape.

        `points`: points of a course; `stride`: values from one point to the next; `kept`: number of earlier courses
        to compare with; `newest`: number of courses directly before, which are not compared.
        """
        stride = max(1, min(stride, STRIDE_VALUES_MAX))
        self._every = max(1, stride // 2)
        """Values from the end of one course to the end of the next."""
        self._ratio = stride // self._every
        """Points of `_line` from one point of a course to the next."""
        self._points = points
        self._kept = kept
        self._newest = newest
        self._values = 0
        self._line: Numbers = np.empty(0)
        self._origin = 0.0
        self._unit = 0.0
        """Points are rounded to multiples of this step from `_origin`."""
        self._distance = 0.0

    def add(self, windows: Windows, count: int) -> Numbers:
        """Return the distance at each value; 0 before the first comparison.

        `count`: values of the series, including these.
        """
        rows = windows.rows
        if not self._unit:
            values = min(INTERVAL_VALUES, count)
            self._scale(float(windows.mean(values)[0]), float(windows.spread(values)[0]))
        elif (count - rows) % BLOCK_VALUES == 0:
            self._begin_block()
        ends = np.arange(self._every - 1 - self._values % self._every, rows, self._every)
        self._values += rows
        known = len(self._line)
        self._line = np.concatenate((self._line, windows.mean(self._every * self._ratio)[ends]))
        distances = np.concatenate(((self._distance,), self._nearest(known)))
        self._distance = float(distances[-1])
        # Between the ends of courses, values have the distance of the last course.
        return distances[np.searchsorted(ends, np.arange(rows), side="right")]

    def _begin_block(self) -> None:
        """Drop points that are no longer compared, and derive the scale from the rest."""
        self._line = line = self._line[-(self._kept + self._newest + self._before) :]
        if len(line):
            origin = median(line)
            far = np.abs(line - origin)
            self._scale(origin, median(far) or float(far.mean()))

    def _scale(self, origin: float, usual: float) -> None:
        self._origin, self._unit = origin, (usual or 1.0) / COURSE_STEPS_USUAL

    @property
    def _before(self) -> int:
        """Points of `_line` from the first point of a course to its last."""
        return (self._points - 1) * self._ratio

    def _nearest(self, known: int) -> Numbers:
        """Return the distances of the courses that end at index `known` of `_line` or later."""
        steps = np.clip(np.rint((self._line - self._origin) / self._unit), -COURSE_STEPS, COURSE_STEPS)
        found = np.zeros(len(steps) - known)
        if len(steps) <= self._before + self._newest + 1:
            return found
        courses = np.ascontiguousarray(sliding_windows(steps, self._points, self._ratio))
        squares = np.einsum("ij,ij->i", courses, courses)
        begin = max(known - self._before, self._newest + 1)
        # Compare blocks of rows, so that the products of rows and kept courses stay within `COURSE_PRODUCTS`.
        block = max(1, math.isqrt((self._kept // 2) ** 2 + COURSE_PRODUCTS // self._points) - self._kept // 2)
        for first in range(begin, len(courses), block):
            rows = np.arange(first, min(first + block, len(courses)))[:, None]
            others = np.arange(max(0, first - self._newest - self._kept), rows[-1, 0] - self._newest)
            other_rows, own_rows = slice(others[0], others[-1] + 1), slice(first, first + len(rows))
            distances = squares[other_rows] - 2 * (courses[own_rows] @ courses[other_rows].T)
            back = rows - others
            distances[(back <= self._newest) | (back > self._newest + self._kept)] = np.inf
            at = first + self._before - known
            found[at : at + len(rows)] = self._unit * np.sqrt(distances.min(axis=1) + squares[own_rows])
        return found
