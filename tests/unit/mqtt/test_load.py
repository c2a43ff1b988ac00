"""Moving averages for `$SYS/broker/load`."""

from __future__ import annotations

import math

import pytest

from edge.broker.mqtt.load import LoadAverages

PERIOD_S = 10.0


def values(loads: LoadAverages) -> dict[str, float]:
    return {name: float(value) for name, value in loads}


def test_shorter_averages_reach_a_steady_rate_sooner() -> None:
    loads = LoadAverages()
    for period in range(7):  # the first call records the start of the counter
        loads.update({"messages/sent": 100 * period}, PERIOD_S * period)
    found = values(loads)
    assert found["messages/sent/1min"] == pytest.approx(600 * (1 - math.exp(-1)), abs=0.01)
    assert found["messages/sent/5min"] == pytest.approx(600 * (1 - math.exp(-1 / 5)), abs=0.01)
    assert found["messages/sent/15min"] == pytest.approx(600 * (1 - math.exp(-1 / 15)), abs=0.01)


def test_averages_decay_without_messages_over_any_period() -> None:
    once, parts = LoadAverages(), LoadAverages()
    for each in (once, parts):
        each.update({"connections": 0}, 0.0)
        each.update({"connections": 60}, PERIOD_S)
    begun = values(once)["connections/1min"]
    once.update({"connections": 60}, PERIOD_S + 60)
    for second in range(1, 61):
        parts.update({"connections": 60}, PERIOD_S + second)
    assert values(once) == values(parts)
    assert values(once)["connections/1min"] == pytest.approx(begun / math.e, abs=0.01)


def test_averages_start_at_zero() -> None:
    loads = LoadAverages()
    loads.update({"bytes/sent": 1_000}, 5.0)
    loads.update({"bytes/sent": 2_000}, 5.0)
    assert set(values(loads).values()) == {0.0}
