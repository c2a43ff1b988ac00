"""Backoff is bounded, grows, has jitter, and is reset only by a stable connection."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.backoff import Backoff, BackoffPolicy

policies = st.builds(
    lambda first, times, stable, factor: BackoffPolicy(first, first * times, stable, factor),
    st.floats(0.01, 10),
    st.floats(1, 100),
    st.floats(0.1, 100),
    st.floats(1, 4),
)


@given(policies, st.integers(), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_waits_grow_to_the_limit_and_stay_in_their_half(policy: BackoffPolicy, seed: int, failures: int) -> None:
    backoff = Backoff(policy, Random(seed).random)
    ceiling = policy.first_s
    for attempt in range(failures):
        wait = backoff.failed(float(attempt))
        assert ceiling / 2 <= wait <= ceiling <= policy.limit_s
        ceiling = min(ceiling * policy.factor, policy.limit_s)
        assert backoff.ceiling_s == ceiling


@given(policies, st.integers(), st.lists(st.floats(0, 200), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_only_a_stable_connection_resets(policy: BackoffPolicy, seed: int, stood: list[float]) -> None:
    backoff = Backoff(policy, Random(seed).random)
    now, ceiling = 0.0, policy.first_s
    for seconds in stood:
        backoff.connected(now)
        stable = (now + seconds) - now >= policy.stable_s
        now += seconds
        if stable:
            ceiling = policy.first_s
        wait = backoff.failed(now)
        assert ceiling / 2 <= wait <= ceiling
        ceiling = min(ceiling * policy.factor, policy.limit_s)
        now += wait


def test_failed_attempt_long_after_a_short_connection_does_not_reset() -> None:
    backoff = Backoff(BackoffPolicy(1.0, 60.0, 30.0, 2.0), Random(1).random)
    backoff.connected(0.0)
    backoff.failed(1.0)
    backoff.failed(100.0)
    assert backoff.ceiling_s == 4.0


def test_reset_restarts_the_waits() -> None:
    backoff = Backoff(BackoffPolicy(), Random(1).random)
    backoff.failed(0.0)
    backoff.reset()
    assert backoff.ceiling_s == BackoffPolicy().first_s


def test_many_gateways_spread() -> None:
    waits = {round(Backoff(BackoffPolicy(), Random(seed).random).failed(0.0), 3) for seed in range(1000)}
    assert len(waits) > 300


@pytest.mark.parametrize("bad", [{"first_s": 0.0}, {"limit_s": 0.5}, {"factor": 0.5}, {"stable_s": -1.0}])
def test_invalid_policies_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not a backoff"):
        BackoffPolicy(**bad)
