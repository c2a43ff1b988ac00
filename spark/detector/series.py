"""Judge a series of readings from where it stopped: the new values, and the state to continue from."""

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
    """Progress of a series: the state of its detector, and the time of its last value."""

    state: bytes
    last_us: int


class SeriesResult(NamedTuple):
    """Findings by place among the values, and the new progress.

    `judged`, `late`: how many values were judged, and how many came after a later one. The others only number messages.
    """

    anomalies: dict[int, DetectorFinding]
    stopped: SeriesProgress
    judged: int
    late: int


def judge_values(metric: str, at_us: Times, values: Numbers, before: SeriesProgress | None) -> SeriesResult:
    """Judge at least one value, in the order of their times.

    `before`: progress of the series. A detector only goes forward, so earlier values are not judged. A state of another
    version of the detector is replaced by a new one.
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
