"""Idempotency keys of requests: stored before the request is done, bounded in number and age."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloud.hub.limits import (
    REQUEST_KEYS_KEPT_S,
    REQUEST_KEYS_KEPT_S_MIN,
    REQUEST_KEYS_OF_ONE_MAX,
    REQUEST_KEYS_OF_TENANT_MAX,
)
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.request_keys import KeptRequest, RequestKey, RequestKeys, TooManyKeys
from tests.contract.registry.conftest import Place

DAY_US = int(REQUEST_KEYS_KEPT_S * 1_000_000)
HOUR_US = int(REQUEST_KEYS_KEPT_S_MIN * 1_000_000)
MINE = RequestKey("ann@acme", "k1", "acme")


@pytest.fixture
def keys(place: Place) -> Iterator[RequestKeys]:
    database = open_registry(place.url).database
    yield RequestKeys(database)
    database.close()


def test_key_is_known_from_the_begin_and_has_its_answer_at_the_end(keys: RequestKeys) -> None:
    assert keys.begin(MINE, "digest", 5) is None
    assert keys.begin(MINE, "other", 6) == KeptRequest("digest", 5, None, None)
    keys.finish(MINE, 201, b"{}")
    assert keys.begin(MINE, "digest", 7) == KeptRequest("digest", 5, 201, b"{}")
    assert keys.begin(MINE._replace(user="bob@acme"), "digest", 8) is None, "a key belongs to its user"
    keys.forget(MINE)
    assert keys.begin(MINE, "digest", 9) is None


def test_keys_are_kept_for_a_day(keys: RequestKeys) -> None:
    keys.begin(MINE, "digest", 5)
    assert keys.begin(MINE, "digest", DAY_US) is not None
    assert keys.begin(MINE, "digest", DAY_US + 5) is None


def test_answered_keys_of_an_hour_ago_make_room(keys: RequestKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.request_keys.REQUEST_KEYS_OF_ONE_MAX", 2)
    keys.begin(MINE._replace(key="answered"), "digest", 5)
    keys.finish(MINE._replace(key="answered"), 201, b"{}")
    keys.begin(MINE._replace(key="running"), "digest", 6)
    with pytest.raises(TooManyKeys) as refused:
        keys.begin(MINE, "digest", HOUR_US - 999_995)
    assert refused.value.wait_s == 1
    assert keys.begin(MINE, "digest", HOUR_US + 5) is None
    assert keys.begin(MINE._replace(key="running"), "digest", HOUR_US + 5) is not None, "it has no answer"


def test_request_that_takes_long_is_still_being_done(keys: RequestKeys) -> None:
    keys.begin(MINE, "digest", 5)
    keys.renew(MINE, 70)
    assert keys.begin(MINE, "digest", 71) == KeptRequest("digest", 70, None, None)
    keys.finish(MINE, 201, b"{}")
    keys.renew(MINE, 90)
    assert keys.begin(MINE, "digest", 91) == KeptRequest("digest", 70, 201, b"{}")


def test_user_and_tenant_have_a_limit(keys: RequestKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (REQUEST_KEYS_OF_ONE_MAX, REQUEST_KEYS_OF_TENANT_MAX) == (1_000, 5_000)
    monkeypatch.setattr("cloud.hub.registry.request_keys.REQUEST_KEYS_OF_ONE_MAX", 2)
    monkeypatch.setattr("cloud.hub.registry.request_keys.REQUEST_KEYS_OF_TENANT_MAX", 3)
    for number in range(2):
        assert keys.begin(MINE._replace(key=f"n{number}"), "digest", 1) is None
    with pytest.raises(TooManyKeys, match=r"ann@acme .*2 "):
        keys.begin(MINE, "digest", 1)
    assert keys.begin(RequestKey("bob@acme", "k", "acme"), "digest", 1) is None
    with pytest.raises(TooManyKeys, match=r"acme .*3 "):
        keys.begin(RequestKey("eve@acme", "k", "acme"), "digest", 1)
    assert keys.begin(RequestKey("tim@other", "k", "other"), "digest", 1) is None
    assert keys.begin(MINE, "digest", DAY_US + 1) is None, "old ones make room"
