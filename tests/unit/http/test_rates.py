"""Limits on the rate of requests to the API."""

from __future__ import annotations

import pytest

from edge.broker.http.limits import API_ADDRESS_BURST, API_USER_BURST, API_USER_PER_S
from edge.broker.http.rates import ADDRESS_LIMIT, ApiRates, RateLimit, RequestRates
from edge.broker.http.refusal import RequestRefused


def test_burst_then_rate() -> None:
    rates = RequestRates(RateLimit(per_s=2.0, burst=3))
    assert [rates.take("ann", 10.0) for _ in range(4)] == [0.0, 0.0, 0.0, pytest.approx(0.5)]
    assert rates.take("bob", 10.0) == 0.0
    assert rates.take("ann", 10.5) == 0.0
    assert rates.take("ann", 10.5) > 0
    assert [rates.take("ann", 60.0) for _ in range(4)] == [0.0, 0.0, 0.0, pytest.approx(0.5)]


def test_refused_requests_do_not_count() -> None:
    rates = RequestRates(RateLimit(per_s=1.0, burst=1))
    rates.take("ann", 0.0)
    assert all(rates.take("ann", 0.5) > 0 for _ in range(100))
    assert rates.take("ann", 1.0) == 0.0


def test_number_of_subjects_is_bounded() -> None:
    rates = RequestRates(RateLimit(per_s=1.0, burst=1), subjects_max=2)
    for subject in ("a", "b", "c"):
        rates.take(subject, 0.0)
    assert rates.take("c", 0.1) > 0
    assert rates.take("a", 0.1) == 0.0, "the one that paused for longest was dropped"


def test_user_over_the_limit_is_told_when_to_try_again() -> None:
    rates = ApiRates()
    for _ in range(API_USER_BURST):
        rates.check_user("/api/v1/status", "ann", 1.0)
    with pytest.raises(RequestRefused) as refused:
        rates.check_user("/api/v1/status", "ann", 1.0)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
    rates.check_user("/t/plant", "ann", 1.0)  # devices have quotas instead
    rates.check_user("/api/v1/status", "bob", 1.0)
    rates.check_user("/api/v1/status", "ann", 1.0 + 1.01 / API_USER_PER_S)


def test_address_has_a_limit_of_its_own() -> None:
    rates = ApiRates()
    for number in range(API_ADDRESS_BURST):
        rates.check_address("/api/v1/status", "10.0.0.7", number * 1e-9)
    with pytest.raises(RequestRefused, match=r"from 10\.0\.0\.7"):
        rates.check_address("/api/v1/status", "10.0.0.7", 0.0)
    assert ADDRESS_LIMIT.per_s > API_USER_PER_S
