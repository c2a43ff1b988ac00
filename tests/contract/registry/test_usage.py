"""Usage of tenants in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloud.hub.groups import Presence
from cloud.hub.limits import USAGE_DAYS_KEPT
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.usage import DayAmount, TenantAmount, TenantUsage
from tests.contract.registry.conftest import Place

DAY = 20_000


@pytest.fixture
def usage(place: Place) -> Iterator[TenantUsage]:
    database = open_registry(place.url).database
    yield TenantUsage(database)
    database.close()


def test_hubs_add_to_the_same_days(usage: TenantUsage, place: Place) -> None:
    other = open_registry(place.url).database
    usage.add(DAY, [TenantAmount("acme", 5, 500), TenantAmount("umbrella", 1, 10)])
    TenantUsage(other).add(DAY, [TenantAmount("acme", 2, 1 << 40)])
    usage.add(DAY + 1, [TenantAmount("acme", 1, 1)])
    other.close()
    assert usage.days("acme", DAY) == [DayAmount(DAY + 1, 1, 1), DayAmount(DAY, 7, 500 + (1 << 40))]
    assert usage.days("acme", DAY + 1) == [DayAmount(DAY + 1, 1, 1)]
    assert usage.sums(["acme", "umbrella", "nobody"], DAY) == {
        "acme": TenantAmount("acme", 8, 501 + (1 << 40)),
        "umbrella": TenantAmount("umbrella", 1, 10),
    }


def test_old_days_are_deleted(usage: TenantUsage) -> None:
    for day in range(DAY, DAY + USAGE_DAYS_KEPT + 3, 100):
        usage.add(day, [TenantAmount("acme", 1, 1)])
    assert [each.day for each in usage.days("acme", 0)][-1] == DAY + 100 * (USAGE_DAYS_KEPT // 100) - 300
    usage.add(DAY + 2 * USAGE_DAYS_KEPT, [])
    assert [each.day for each in usage.days("acme", 0)] == []


def test_tenants_with_gateways_or_usage(usage: TenantUsage, place: Place) -> None:
    registry = place.open()
    registry.directory.presence({("acme", name): Presence("here", True, 1, 1) for name in ("g1", "g2")})
    registry.close()
    usage.add(DAY, [TenantAmount("umbrella", 1, 10)])
    assert usage.gateways() == {"acme": 2, "umbrella": 0}
