"""Times and values of readings, and counts of times."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from simulator.kinds import DeviceGroup, ReadingTimes, SensorFault, SimulatedSensor
from simulator.limits import LATENCY_STEP
from simulator.shapes import pauses
from simulator.signals import DeviceSensors
from simulator.tally import LatencyCounts, percentile_ms

DAY_S = 1_000.0
SENSOR = SimulatedSensor(name="celsius", base=20.0, noise=1.0, decimals=1)


def times(times: ReadingTimes, seconds: float, seed: int = 1) -> list[float]:
    """Return the times of the readings of a device with a mean of one a second."""
    group = DeviceGroup(name="a", count=1, times=times, burst=5)
    found = [0.0]
    for pause_s in pauses(group, 1.0, DAY_S, random.Random(seed), lambda: found[-1]):
        if found[-1] + pause_s >= seconds:
            return found
        found.append(found[-1] + pause_s)
    raise AssertionError("pauses have no end")


@pytest.mark.parametrize("kind", ReadingTimes)
def test_the_mean_is_as_asked_and_a_seed_repeats_it(kind: ReadingTimes) -> None:
    found = times(kind, 3 * DAY_S)
    assert len(found) == pytest.approx(3 * DAY_S, rel=0.15)
    assert found == times(kind, 3 * DAY_S)
    assert found != times(kind, 3 * DAY_S, seed=2)


def test_noon_has_more_readings_than_midnight() -> None:
    found = times(ReadingTimes.DIURNAL, DAY_S)
    night = sum(at < DAY_S / 10 for at in found)
    noon = sum(abs(at - DAY_S / 2) < DAY_S / 20 for at in found)
    assert noon > 4 * night > 0


def test_bursts_come_at_once() -> None:
    found = times(ReadingTimes.BURSTY, DAY_S)
    assert sum(a == b for a, b in itertools.pairwise(found)) == pytest.approx(0.8 * len(found), rel=0.1)


def values(fault: SensorFault | None, sensor: SimulatedSensor = SENSOR) -> Iterator[float | None]:
    """Yield a value each second; the sensor fails after ten."""
    sensors = DeviceSensors((sensor,), random.Random(3), DAY_S, fault, 10.0)
    for second in itertools.count():
        yield sensors.read(float(second), float(second))["celsius"]


@pytest.mark.parametrize("fault", SensorFault)
def test_sensors_work_until_they_fail(fault: SensorFault) -> None:
    good = list(itertools.islice(values(None), 10))
    assert list(itertools.islice(values(fault), 10)) == good


def test_each_fault_is_seen() -> None:
    stuck = list(itertools.islice(values(SensorFault.STUCK), 40))
    assert set(stuck[10:]) == {stuck[9]}
    assert set(itertools.islice(values(SensorFault.SILENT), 10, 40)) == {None}
    spikes = [value for value in itertools.islice(values(SensorFault.SPIKES), 10, 400) if value is not None]
    assert 5 < sum(abs(value - 20) > 5 for value in spikes) < 40
    drift = [value for value in itertools.islice(values(SensorFault.DRIFTING), 3_600, 3_700) if value is not None]
    assert sum(drift) / len(drift) == pytest.approx(22.0, abs=0.5)


def test_values_swing_over_the_day_and_drift() -> None:
    sensor = SimulatedSensor(name="celsius", base=10.0, swing=5.0, drift_per_hour=3.6)
    found = list(itertools.islice(values(None, sensor), int(DAY_S) + 1))
    assert found[0] == 5.0
    assert found[500] == pytest.approx(15.5)
    assert found[1_000] == pytest.approx(6.0)


def test_percentiles_are_at_most_one_step_too_high() -> None:
    counts = LatencyCounts()
    assert counts.percentile_ms(0.5) is None
    for number in range(1, 1_001):
        counts.add(number / 1_000)
    for share in (0.01, 0.5, 0.99, 1.0):
        found = counts.percentile_ms(share)
        assert found is not None
        assert 1_000 * share <= found <= 1_000 * share * LATENCY_STEP + 1e-6


def test_times_since_a_copy_are_apart() -> None:
    counts, other = LatencyCounts(), LatencyCounts()
    counts.add(1.0)
    before = counts.copy()
    counts.add(0.001)
    other.add(0.001)
    assert counts.since(before).bucket_counts() == other.bucket_counts()
    assert percentile_ms([counts, other], 1.0) == counts.percentile_ms(1.0)
