"""Realistic series of devices: healthy ones give no findings, faults are found."""

from __future__ import annotations

import pytest

from spark.detector.detector import REPORTED
from tests.bench.devices import KINDS, Kind, false_reports, healthy, reported_faults

CLEAR = 0.75


def test_healthy_devices_are_reported_rarely() -> None:
    of_all = false_reports(300.0, 20, range(1))["all"]
    assert of_all[REPORTED] < 0.5
    assert of_all[CLEAR] < 0.15


@pytest.mark.slow
def test_most_faults_are_reported_soon() -> None:
    shares = reported_faults(300.0, 20, range(2, 3))
    assert min(share[REPORTED] for share in shares.values()) >= 0.6
    assert shares["dropout"][CLEAR] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_series_is_the_same_each_time(kind: Kind) -> None:
    one, other = (healthy(kind, interval_s=60.0, days=3, seed=5) for _ in range(2))
    assert one.values.tolist() == other.values.tolist()
    assert (one.times_s[1:] >= one.times_s[:-1]).all()
