"""Probes measure this machine: plausible numbers, and clear words where a measurement is impossible."""

from __future__ import annotations

import math

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.measuring.probes import KINDS, ProbeError, ProbeRates, make_probe

HERE = [kind for kind in KINDS if kind != "temperature"]


@pytest.mark.parametrize("kind", HERE)
def test_every_kind_gives_finite_numbers_of_the_same_metrics(kind: str) -> None:
    probe = make_probe(kind)
    first, second = probe(0.0), probe(0.5)
    assert first.keys() == second.keys()
    assert first
    assert all(math.isfinite(value) and value >= 0 for value in [*first.values(), *second.values()])


def test_percentages_are_within_0_and_100() -> None:
    probe = make_probe("cpu")
    probe(0.0)
    assert all(0 <= value <= 100 for value in probe(1e-9).values())
    assert 0 < make_probe("memory")(0.0)["memory_percent"] < 100


def test_probe_can_be_reduced_to_some_metrics() -> None:
    assert list(make_probe("load", ["load_1m"])(0.0)) == ["load_1m"]


def test_unknown_kind_or_metric_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ProbeError, match=r"'smell': .*cpu, memory"):
        make_probe("smell")
    with pytest.raises(ProbeError, match=r"mood: .*load_1m"):
        make_probe("load", ["mood"])


def test_temperature_needs_a_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_temperatures", dict)
    with pytest.raises(ProbeError, match="no temperature sensors"):
        make_probe("temperature")


class TestRates:
    def test_first_sample_has_no_rate(self) -> None:
        assert ProbeRates().update(5.0, {"a": 1e9}) == {"a": 0.0}

    def test_counter_that_appears_later_starts_at_zero(self) -> None:
        rates = ProbeRates()
        rates.update(0.0, {"a": 1.0})
        assert rates.update(1.0, {"a": 2.0, "b": 7.0}) == {"a": 1.0, "b": 0.0}

    @given(st.floats(0.1, 1e4), st.integers(2, 200), st.floats(0.01, 0.9))
    def test_steady_counter_has_its_rate_at_any_interval(self, rate: float, samples: int, pace: float) -> None:
        rates = ProbeRates()
        for i in range(samples):
            found = rates.update(i * pace, {"a": i * pace * rate})
        assert found["a"] == pytest.approx(rate)

    def test_samples_before_the_window_are_forgotten(self) -> None:
        rates = ProbeRates(window_s=1.0)
        for i in range(50):
            rates.update(i * 0.1, {"a": 1000.0})
        assert rates.update(5.0, {"a": 1000.0})["a"] == 0
        for i in range(51, 62):
            found = rates.update(i * 0.1, {"a": 1000.0 + (i - 50)})
        assert found["a"] == pytest.approx(10.0)
