"""Quotas of tenants in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from cloud.fleet.tenants import LIMITS
from cloud.hub.quotas_http import QuotaLimits
from cloud.hub.registry import tenant_quotas
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.tenant_quotas import TenantQuotas, TooManyQuotas
from cloud.hub.shared_quotas import SharedQuotas
from cloud.hub.tenants import Quota, Tenants
from tests.contract.registry.conftest import Place

SMALL, LARGE = Quota(gateways=5, bytes_per_second=1_000), Quota(gateways=500)


def accept(_before: Quota | None) -> None:
    """Check nothing."""


@pytest.fixture
def quotas(place: Place) -> Iterator[TenantQuotas]:
    opened = TenantQuotas(place.url)
    yield opened
    opened.close()


def test_quota_is_set_replaced_and_removed(quotas: TenantQuotas) -> None:
    assert quotas.read() == ({}, 0)
    assert quotas.change("acme", SMALL, accept) is None
    assert quotas.change("acme", LARGE, accept) == SMALL
    assert quotas.read() == ({"acme": LARGE}, 2)
    assert quotas.change("acme", None, accept) == LARGE
    assert quotas.read() == ({}, 3), "a removal is a change, too"
    assert quotas.number() == 3
    assert quotas.change("acme", None, accept) is None
    assert quotas.number() == 3


def test_refused_change_changes_nothing(quotas: TenantQuotas) -> None:
    quotas.change("acme", SMALL, accept)
    seen: list[Quota | None] = []

    def refuse(before: Quota | None) -> None:
        seen.append(before)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        quotas.change("acme", LARGE, refuse)
    assert seen == [SMALL]
    assert quotas.read() == ({"acme": SMALL}, 1)


def test_number_of_tenants_is_bounded(quotas: TenantQuotas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_quotas, "TENANT_QUOTAS_MAX", 2)
    quotas.change("a", SMALL, accept)
    quotas.change("b", SMALL, accept)
    with pytest.raises(TooManyQuotas):
        quotas.change("c", SMALL, accept)
    quotas.change("b", LARGE, accept)


def test_change_at_one_hub_is_in_force_at_the_other(place: Place) -> None:
    here, there = Tenants(own={"acme": LARGE}), Tenants()
    named_here, named_there = set[str](), set[str]()

    async def test() -> None:
        hints = [ChangeHint(), ChangeHint()]
        hubs = [
            SharedQuotas(place.url, here, named_here.update, hints[0]),
            SharedQuotas(place.url, there, named_there.update, hints[1]),
        ]
        for hub in hubs:
            await hub.open()
        try:
            await hubs[1].change("acme", SMALL, accept)
            assert (there.of("acme"), there.source_of("acme")) == (SMALL, "operator")
            hints[0].give()
            async with asyncio.timeout(60):
                while here.of("acme") != SMALL:
                    await asyncio.sleep(0.005)
            assert named_here == named_there == {"acme"}
            await hubs[0].change("acme", None, accept)
            assert (here.of("acme"), here.source_of("acme")) == (LARGE, "configuration")
        finally:
            for hub in hubs:
                await hub.close()

    asyncio.run(test())


def test_every_limit_can_be_set() -> None:
    """A limit that the request lacks would go back to its default with every change."""
    names = {field.encode_name for field in msgspec.structs.fields(Quota)}
    assert {field.encode_name for field in msgspec.structs.fields(QuotaLimits)} == names == set(LIMITS)
