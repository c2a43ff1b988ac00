"""Limits of the device registry: quotas of tenants, waiting requests, identifiers and authorities."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from bridge.limits import AUTH_ID_CHARACTERS_MAX
from cloud.hub.devices import service
from cloud.hub.devices.credentials import SaltChanged, read_credentials
from cloud.hub.devices.documents import InvalidDocument
from cloud.hub.devices.limits import TRUST_ANCHORS_MAX
from cloud.hub.devices.service import DeviceRegistry, DevicesBusy
from cloud.hub.devices.tenants import DeviceTenantDocument, read_tenant
from cloud.hub.registry.device_search import SearchPage, SearchQuery
from cloud.hub.registry.devices import CredentialRow, DevicesFull, NewDeviceRow
from cloud.hub.registry.location import sqlite_url
from cloud.hub.tenants import Quota, Tenants

KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7L"
    "tkBoN79R9Q=="
)
"""Public key of RFC 7515 appendix A.3.1, DER in Base64: of P-256."""


def new(device: str) -> NewDeviceRow:
    return NewDeviceRow("acme", device, '{"enabled":true}', (), 1, "ann")


def test_a_quota_limits_devices(tmp_path: Path) -> None:
    quotas = Tenants(Quota(devices=1))

    async def run() -> None:
        registry = DeviceRegistry(sqlite_url(tmp_path / "registry.db"), quotas, lambda: 1)
        await registry.open()
        try:
            await registry.add(new("one"), "acme", implicit=True)
            with pytest.raises(DevicesFull):
                await registry.add(new("two"), "acme", implicit=True)
            assert (await registry.search("acme", SearchQuery(SearchPage(10)))).total == 1
        finally:
            await registry.close()

    asyncio.run(run())
    assert quotas.reached["acme", "devices"] == 1


def test_waiting_requests_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WAITING_MAX", 2)

    async def run() -> None:
        registry = DeviceRegistry(sqlite_url(tmp_path / "registry.db"), Tenants(), lambda: 1)
        with pytest.raises(DevicesBusy):
            await registry.tenant("acme")
        await registry.open()
        release = threading.Event()
        worker = registry._reading
        waiting = [asyncio.ensure_future(worker.ask(lambda _: release.wait())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(DevicesBusy):
            await registry.tenant("acme")
        release.set()
        assert all(await asyncio.gather(*waiting))
        assert await registry.tenant("acme") is None
        await registry.close()

    asyncio.run(run())


def credentials(auth_id: str, kind: str = "psk", secret: str = '{"key": "c2VjcmV0"}') -> bytes:
    return f'[{{"type": "{kind}", "auth-id": "{auth_id}", "secrets": [{secret}]}}]'.encode()


def test_identifiers_are_limited() -> None:
    read_credentials(credentials("x" * AUTH_ID_CHARACTERS_MAX))
    for kind in ("psk", "x509-cert"):
        with pytest.raises(InvalidDocument):
            read_credentials(credentials("x" * (AUTH_ID_CHARACTERS_MAX + 1), kind))
    with pytest.raises(InvalidDocument):
        read_credentials(credentials("x" * 256, "hashed-password", '{"pwd-plain": "x"}'))


def test_authorities_are_limited() -> None:
    times = {"not-before": "2026-01-01T00:00:00Z", "not-after": "2027-01-01T00:00:00Z"}
    found = [{"subject-dn": f"CN={number}", "public-key": KEY, **times} for number in range(TRUST_ANCHORS_MAX + 1)]
    assert len(read_tenant(msgspec.json.encode({"trusted-ca": found[1:]})).anchors) == TRUST_ANCHORS_MAX
    with pytest.raises(InvalidDocument):
        read_tenant(msgspec.json.encode({"trusted-ca": found}))
    with pytest.raises(InvalidDocument):
        read_tenant(msgspec.json.encode({"trusted-ca": [{**found[0], "subject-dn": "CN=" + "x" * 512}]}))


def test_a_password_is_hashed_again_with_the_salt_that_another_request_has_stored() -> None:
    body, tenant = credentials("p", "hashed-password", '{"pwd-plain": "one"}'), DeviceTenantDocument()
    first, second = read_credentials(body), read_credentials(body)
    first.hash_passwords([])
    second.hash_passwords([])
    stored: list[CredentialRow] = first.merge(tenant, [])
    with pytest.raises(SaltChanged):
        second.merge(tenant, stored)
    second.hash_passwords(stored)
    [row] = second.merge(tenant, stored)
    salts = [msgspec.json.decode(each.document)["scram_salt"] for each in (*stored, row)]
    assert salts[0] == salts[1]
