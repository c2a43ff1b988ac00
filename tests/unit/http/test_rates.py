"""Limits on the rate of requests to the API."""

from __future__ import annotations

import asyncio
import base64

import pytest
from starlette.requests import Request

from edge.broker.configuration import AuthenticationMode
from edge.broker.http.access import HttpAccess
from edge.broker.http.limits import API_ADDRESS_BURST, API_USER_BURST, API_USER_PER_S
from edge.broker.http.rates import ADDRESS_LIMIT, ApiRates, RateLimit, RequestRates
from edge.broker.http.refusal import RequestRefused
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialSnapshot, new_user, with_secret
from edge.broker.security.proof import VerifiedIdentity

PROXY = "10.0.0.7"


def request(**fields: str) -> Request:
    """Return a request to the API through a proxy."""
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    path = "/api/v1/status"
    return Request({"type": "http", "method": "GET", "path": path, "headers": headers, "client": (PROXY, 4711)})


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


def test_stranger_behind_a_proxy_does_not_lock_people_out() -> None:
    ann = with_secret(new_user("ann"), "pass-ann", at_s=0.0)
    gate = Authenticator(
        AuthenticationMode.STANDARD,
        CredentialSnapshot({"ann": ann}),
        worker=lambda work, done: done(work()),
        clock=lambda: 1.0,
        utc_s=lambda: 1.0,
    )
    access = HttpAccess(gate, clock=lambda: 1.0, utc_s=lambda: 1.0)

    async def status(**fields: str) -> int:
        try:
            await access.require_user(request(**fields))
        except RequestRefused as refused:
            return refused.status
        return 200

    async def ask() -> None:
        strangers = [await status() for _ in range(API_ADDRESS_BURST + 1)]
        assert (set(strangers[:-2]), strangers[-1]) == ({401}, 429)
        basic = "Basic " + base64.b64encode(b"ann:pass-ann").decode()
        assert await status(authorization=basic) == 200
        opened = await access.open_session(VerifiedIdentity("ann"), stays=False)
        assert opened is not None
        cookie = f"{access.cookie.name(request())}={opened.token}"
        own = [await status(cookie=cookie) for _ in range(API_USER_BURST)]
        assert (set(own[:-2]), own[-1]) == ({200}, 429)
        assert await status(cookie=cookie.replace("=", "=x")) == 429, "an unknown cookie is no credential"

    asyncio.run(ask())
