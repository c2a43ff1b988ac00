"""Devices travel from a registry to gateways: any order of changes, pages, losses and kills ends in the same state."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bridge.device_pages import DevicePage
from cloud.hub.devices.pages import make_page, read_cursor
from cloud.hub.devices.tenants import read_tenant
from cloud.hub.labels import parse_selector
from cloud.hub.registry import labels
from cloud.hub.registry.device_changes import DeviceChanges, DeviceCursor
from cloud.hub.registry.device_targets import TargetUpkeep
from cloud.hub.registry.device_tenants import DeviceTenants, TenantChange
from cloud.hub.registry.devices import CredentialRow, NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from edge.broker.security.hub_device_file import PageOutOfStep
from edge.broker.security.hub_devices import FittedPage, HubDevices
from tests.support.device_certificates import DeviceAuthority

OWNER: Final = "acme"
TENANTS: Final = ("acme", "plant")
GATEWAYS: Final = ("gw1", "gw2")
SITES: Final = ("berlin", "paris")
REGISTRY: Final = "r"
ROWS: Final = 2
"""Devices of a page: small, so that snapshots and changes are cut."""

AUTHORITIES: Final = {name: DeviceAuthority.make(name).key_document() for name in ("one", "two")}

names = st.sampled_from([f"d{number}" for number in range(7)])
tenants = st.sampled_from(TENANTS)
gateways = st.sampled_from(GATEWAYS)
targets = st.tuples(st.sets(gateways), st.sampled_from(["", *(f"site={site}" for site in SITES)]))


class PagedGateway:
    """Gateway with a file, and what its hub believes about it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.devices = HubDevices(folder, ())
        self.held = ""
        self.cursor = DeviceCursor()
        self.connect()

    def connect(self) -> None:
        """Begin a connection: the hub gets the stored cursor."""
        self.held = self.devices.cursor
        self.cursor = read_cursor(self.held, REGISTRY)

    def next_page(self, changes: DeviceChanges) -> DevicePage | None:
        """Return the next page, as the hub sends it."""
        found = changes.read((OWNER, self.name), self.cursor, ROWS)
        self.cursor = found.cursor
        return None if found.changes is None else make_page((OWNER, self.name), found.changes, self.held).page

    def store(self, page: DevicePage) -> None:
        fitted = self.devices.fit(page)
        self.devices.take(fitted, self.devices.store(fitted))
        self.held, self.cursor = page.cursor, read_cursor(page.cursor, REGISTRY)

    def restart(self) -> None:
        self.devices.close()
        self.devices = HubDevices(self.folder, ())
        self.connect()


class DeviceTravel(RuleBasedStateMachine):
    """A registry, two gateways, and the model of what they should have."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        place = Path(self.folder.name)
        self.database = open_registry(sqlite_url(place / "registry.db")).database
        self.registered, self.tenants = RegisteredDevices(self.database), DeviceTenants(self.database)
        self.changes, self.upkeep = DeviceChanges(self.database), TargetUpkeep(self.database)
        self.gateways = {name: PagedGateway(place / name, name) for name in GATEWAYS}
        self.now_us, self.secrets = 1_800_000_000_000_000, 0
        self.wanted: dict[tuple[str, str], tuple[set[str], str]] = {}
        self.passwords: dict[tuple[str, str], str] = {}
        self.labels: dict[str, str | None] = {}
        self.enabled = dict.fromkeys(TENANTS, True)
        self.trusted = {name: list[str]() for name in TENANTS}

    def teardown(self) -> None:
        for gateway in self.gateways.values():
            self.settle(gateway)
            self.check(gateway)
            gateway.devices.close()
        with contextlib.closing(self.database):
            self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        for tenant in TENANTS:
            self.set_enabled(tenant, True, set())

    # --- changes ------------------------------------------------------------------------------------------------

    @rule(tenant=tenants, enabled=st.booleans(), trusted=st.sets(st.sampled_from(sorted(AUTHORITIES))))
    def set_enabled(self, tenant: str, enabled: bool, trusted: set[str]) -> None:
        self.now_us += 1
        named = [{"id": name, **AUTHORITIES[name]} for name in sorted(trusted)]
        wanted = read_tenant(json.dumps({"enabled": enabled, "trusted-ca": named}).encode())
        change = TenantChange(tenant, wanted.text, (), self.now_us, "ann")
        self.tenants.put(change, OWNER, 9, lambda _: None)
        self.enabled[tenant], self.trusted[tenant] = enabled, sorted(trusted)

    @rule(tenant=tenants, device=names, chosen=targets)
    def put(self, tenant: str, device: str, chosen: tuple[set[str], str]) -> None:
        self.now_us += 1
        extension = {"gateways": sorted(chosen[0]), "selector": chosen[1]}
        document = json.dumps({"enabled": True, "ext": {"waypost": extension}})
        row = NewDeviceRow(tenant, device, document, [], self.now_us, "ann")
        if (tenant, device) in self.wanted:
            self.registered.replace(row, lambda _: None)
        else:
            self.registered.add(row, TenantLimits(None, lambda _: 100))
        self.wanted[tenant, device] = chosen

    @rule(tenant=tenants, device=names)
    def remove(self, tenant: str, device: str) -> None:
        if self.wanted.pop((tenant, device), None) is not None:
            self.registered.remove(tenant, device, lambda _: None)
            self.passwords.pop((tenant, device), None)

    @rule(tenant=tenants, device=names, borrowed=names)
    def rotate(self, tenant: str, device: str, borrowed: str) -> None:
        """Give a device a password for a user name, which another one may have had before."""
        login = {word: name for (of, name), word in self.passwords.items() if of == tenant}
        if (tenant, device) not in self.wanted or any(
            word.startswith(f"{borrowed}:") and name != device for word, name in login.items()
        ):
            return
        self.secrets += 1
        word = f"{borrowed}:{self.secrets}"
        document = {"type": "hashed-password", "auth_id": borrowed, "secrets": [{"id": word, "argon2": word}]}
        certificate = {"type": "x509-cert", "auth_id": f"CN={borrowed}", "secrets": [{"id": word}]}
        rows = [CredentialRow("hashed-password", borrowed, json.dumps(document))]
        rows.append(CredentialRow("x509-cert", f"CN={borrowed}", json.dumps(certificate)))
        self.registered.set_credentials(tenant, device, lambda _known, _rows: rows, lambda _: None)
        self.passwords[tenant, device] = word

    @rule(gateway=gateways, site=st.sampled_from([*SITES, None]))
    def label(self, gateway: str, site: str | None) -> None:
        self.database.transaction(lambda tx: labels.put(tx, OWNER, gateway, {"site": site}))
        self.labels[gateway] = site

    @rule(most=st.integers(0, 2))
    def drop_tombstones(self, most: int) -> None:
        self.upkeep.drop_tombstones(most)

    # --- pages --------------------------------------------------------------------------------------------------

    @rule(gateway=gateways)
    def deliver(self, gateway: str) -> None:
        found = self.gateways[gateway]
        page = found.next_page(self.changes)
        if page is not None:
            found.store(page)

    @rule(gateway=gateways)
    def lose(self, gateway: str) -> None:
        """Lose a page, or its answer, with the connection."""
        self.gateways[gateway].next_page(self.changes)
        self.gateways[gateway].connect()

    @rule(gateway=gateways)
    def kill_after_the_commit(self, gateway: str) -> None:
        found = self.gateways[gateway]
        page = found.next_page(self.changes)
        if page is not None:
            found.devices.store(FittedPage(page, 0))
        found.restart()

    @rule(gateway=gateways)
    def repeat(self, gateway: str) -> None:
        """Deliver a page twice: the second time it is out of step."""
        found = self.gateways[gateway]
        page = found.next_page(self.changes)
        if page is not None:
            found.store(page)
            with pytest.raises(PageOutOfStep) as refused:
                found.devices.store(FittedPage(page, 0))
            assert refused.value.cursor == page.cursor

    @rule(gateway=gateways)
    def catch_up(self, gateway: str) -> None:
        self.settle(self.gateways[gateway])
        self.check(self.gateways[gateway])

    @invariant()
    def counts(self) -> None:
        for gateway in self.gateways.values():
            assert gateway.devices.count >= 0

    def settle(self, gateway: PagedGateway) -> None:
        for _ in range(200):
            page = gateway.next_page(self.changes)
            if page is None:
                return
            gateway.store(page)
        raise AssertionError("pages without end")

    def check(self, gateway: PagedGateway) -> None:
        mine = {"site": site} if (site := self.labels.get(gateway.name)) is not None else {}
        expected = {
            key
            for key, (named, selector) in self.wanted.items()
            if gateway.name in named or (selector and parse_selector(selector).matches(mine))
        }
        known = [each for each in read_cursor(gateway.devices.cursor, REGISTRY).tenants if self.enabled[each]]
        trusted = {tenant: names for tenant in known if (names := self.trusted[tenant])}
        for devices in (gateway.devices, HubDevices(gateway.folder, ())):
            assert devices.count == len(expected)
            sent = {tenant: [each.id for each in found] for tenant, found in devices.anchors.items() if found}
            assert sent == trusted
            for tenant, device in expected:
                identity = device if tenant == OWNER else f"{device}@{tenant}"
                user = devices.user(identity)
                assert (user is not None) == self.enabled[tenant]
                word = self.passwords.get((tenant, device))
                if user is not None and word is not None:
                    assert [secret.id for secret in user.secrets] == [word]
                    assert devices.certified(tenant, f"CN={word.partition(':')[0]}", 0.0) == identity
                    login = devices.login(f"{word.partition(':')[0]}@{tenant}")
                    assert login is not None
                    assert login.name == identity
            if devices is not gateway.devices:
                devices.close()


TestDeviceTravel = DeviceTravel.TestCase
TestDeviceTravel.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
