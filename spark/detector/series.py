"""One series of readings judged from where it stopped, whoever keeps that: the values, and what to go on from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark.detector import numbering
from spark.detector.detector import REPORTED, Detector, DetectorFinding
from spark.detector.numbering import Numbering
from spark.detector.running import Numbers
from spark.detector.state import StateError, dumps, loads

Times = NDArray[np.int64]
"""Microseconds since 1970."""


class SeriesProgress(NamedTuple):
    """Where a series stopped: the state of what judged it, and the time of its last value."""

    state: bytes
    last_us: int


class SeriesResult(NamedTuple):
    """What is said of values, each named by its place among them, and where the series stops now.

    `judged`, `late`: how many were, and how many came after a later one. The others only number messages.
    """

    anomalies: dict[int, DetectorFinding]
    stopped: SeriesProgress
    judged: int
    late: int


def judge_values(metric: str, at_us: Times, values: Numbers, before: SeriesProgress | None) -> SeriesResult:
    """Judge values, of which there is one at least, in the order of their times.

    `before`: where the series stopped; a detector goes forward only, and nothing is said of a value before that. A
    state of another version of the detector is begun anew.
    """
    late = int(np.searchsorted(at_us, before.last_us)) if before is not None else 0
    state = _load_state(metric, before)
    begin = late
    if isinstance(state, Numbering):
        begin += state.take(values[late:].tolist())
        if begin < len(values):
            state = Detector()
    anomalies = {}
    if isinstance(state, Detector):
        findings = state.judge(at_us[begin:] / 1e6, values[begin:])
        places = np.flatnonzero(findings.scores >= REPORTED).tolist()
        anomalies = {begin + place: findings[place] for place in places}
    last_us = before.last_us if before is not None and late == len(values) else int(at_us[-1])
    return SeriesResult(anomalies, SeriesProgress(dumps(state), last_us), len(values) - begin, late)


def _load_state(metric: str, before: SeriesProgress | None) -> Detector | Numbering:
    if before is not None:
        try:
            return loads(before.state)
        except StateError:
            pass
    return Numbering() if numbering.is_numbering_name(metric) else Detector()
