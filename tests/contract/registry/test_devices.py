"""Devices of tenants, their credentials and searches, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cloud.hub.registry import devices as registry_devices
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_search import FieldFilter, FieldOrder, SearchPage, SearchQuery, UnsearchableField
from cloud.hub.registry.device_tenants import (
    AnchorTaken,
    DeviceTenants,
    TenantChange,
    TenantsOfOwnerFull,
    TrustAnchorRow,
    UnknownDeviceTenant,
)
from cloud.hub.registry.devices import (
    CredentialRow,
    CredentialsTaken,
    DeviceExists,
    DeviceLink,
    DevicesFull,
    LinkKind,
    NewDeviceRow,
    RegisteredDevices,
    TenantLimits,
    UnknownDevice,
)
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import SCHEMA_VERSION
from tests.contract.registry.conftest import Place

NOW = 1_800_000_000_000_000


class StaleRevision(Exception):
    """A request was made for another revision."""


def only(revision: int) -> Callable[[int | None], None]:
    def check(there: int | None) -> None:
        if there != revision:
            raise StaleRevision

    return check


def any_revision(there: int | None) -> None:
    """Accept every revision."""


class DeviceSite:
    """Registry with the devices of a tenant."""

    def __init__(self, database: Database) -> None:
        self.tenants = DeviceTenants(database)
        self.devices = RegisteredDevices(database)
        self.now_us = NOW

    def add_tenant(self, name: str = "acme", owner: str = "acme", *anchors: TrustAnchorRow) -> int:
        self.now_us += 1
        return self.tenants.put(TenantChange(name, "{}", anchors, self.now_us, "ann"), owner, 3, any_revision)

    def row(self, device: str, **document: Any) -> NewDeviceRow:
        self.now_us += 1
        kinds = {"via": LinkKind.VIA, "viaGroups": LinkKind.VIA_GROUP, "memberOf": LinkKind.MEMBER_OF}
        links = [DeviceLink(kinds[key], name) for key in kinds for name in document.get(key, ())]
        return NewDeviceRow("acme", device, json.dumps(document), links, self.now_us, "ann")

    def add(self, device: str, **document: Any) -> int:
        return self.devices.add(self.row(device, **document), TenantLimits(None, lambda _: 1_000))

    def find(self, *filters: FieldFilter, **more: Any) -> list[str]:
        query = SearchQuery(more.pop("page", SearchPage(100)), filters, **more)
        found = self.devices.search("acme", query)
        assert query.page != SearchPage(100) or found.total == len(found.rows)
        return [each.device for each in found.rows]


@pytest.fixture
def site(make_place: Callable[[], Place]) -> Iterator[DeviceSite]:
    with contextlib.closing(open_registry(make_place().url).database) as database:
        yield DeviceSite(database)


@pytest.fixture
def acme(site: DeviceSite) -> DeviceSite:
    site.add_tenant()
    return site


def test_tables_are_added_to_a_registry_of_version_17(make_place: Callable[[], Place]) -> None:
    place = make_place()
    open_registry(place.url).database.close()
    for table in ("device_credentials", "device_links", "devices", "trust_anchors", "device_tenants"):
        place.execute(f"DROP TABLE {table}")
    place.execute("UPDATE schema_version SET version = 17")
    with contextlib.closing(open_registry(place.url).database) as database:
        site = DeviceSite(database)
        site.add_tenant()
        site.add("pump")
        assert site.find() == ["pump"]
    assert place.execute("SELECT version FROM schema_version") == [(SCHEMA_VERSION,)]


def test_each_change_has_a_higher_revision(acme: DeviceSite) -> None:
    first = acme.add("pump", enabled=True)
    second = acme.devices.replace(acme.row("pump", enabled=False), only(first))
    other = acme.add("fan")
    assert first < second < other
    there = acme.devices.get("acme", "pump")
    assert (there.revision, there.document, there.created_at < there.updated_at) == (second, '{"enabled": false}', True)
    with pytest.raises(StaleRevision):
        acme.devices.replace(acme.row("pump"), only(first))
    assert acme.devices.get("acme", "pump") == there
    acme.devices.remove("acme", "pump", only(second))
    with pytest.raises(UnknownDevice):
        acme.devices.get("acme", "pump")
    assert acme.add("pump") > other, "also of a device that was removed and added again"


def test_a_device_needs_its_tenant_and_is_added_once(site: DeviceSite) -> None:
    with pytest.raises(UnknownDeviceTenant):
        site.add("pump")
    site.devices.add(site.row("pump"), TenantLimits("owner", lambda _: 2))
    assert site.tenants.get("acme").owner == "owner"  # type: ignore[union-attr]
    with pytest.raises(DeviceExists):
        site.add("pump")
    site.devices.add(site.row("fan"), TenantLimits(None, lambda _: 2))
    with pytest.raises(DevicesFull):
        site.devices.add(site.row("third"), TenantLimits(None, lambda known: known.devices))
    assert site.find() == ["fan", "pump"]


def test_credentials_are_replaced_whole_and_belong_to_one_device(acme: DeviceSite) -> None:
    made = acme.add("pump")
    acme.add("fan")
    mine = [CredentialRow("hashed-password", "p", "{}"), CredentialRow("psk", "p", "{}")]
    revision = acme.devices.set_credentials("acme", "pump", lambda _, there: [*there, *mine], only(made))
    assert acme.devices.credentials("acme", "pump") == (mine, revision)
    assert acme.devices.get("acme", "pump").revision == made, "the registration has a revision of its own"
    with pytest.raises(CredentialsTaken):
        acme.devices.set_credentials("acme", "fan", lambda _, there: mine[:1], any_revision)
    with pytest.raises(StaleRevision):
        acme.devices.set_credentials("acme", "pump", lambda _, there: [], only(made))
    acme.devices.set_credentials("acme", "pump", lambda _, there: there[1:], any_revision)
    acme.devices.set_credentials("acme", "fan", lambda _, there: mine[:1], any_revision)
    acme.devices.remove("acme", "fan", any_revision)
    acme.devices.set_credentials("acme", "pump", lambda _, there: mine, any_revision)
    with pytest.raises(UnknownDevice):
        acme.devices.credentials("acme", "fan")


def test_credentials_of_two_tenants_have_the_same_names(acme: DeviceSite) -> None:
    acme.add_tenant("globex", "globex")
    acme.add("pump")
    other = acme.row("pump")._replace(tenant="globex")
    acme.devices.add(other, TenantLimits(None, lambda _: 1))
    for tenant in ("acme", "globex"):
        acme.devices.set_credentials(tenant, "pump", lambda _, __: [CredentialRow("psk", "p", "{}")], any_revision)
    assert acme.find() == ["pump"]


FILTERS: list[tuple[list[tuple[tuple[str, ...], Any]], list[str]]] = [
    ([], ["a1", "a2", "b1", "b_x"]),
    ([(("id",), "a1")], ["a1"]),
    ([(("id",), "a*")], ["a1", "a2"]),
    ([(("id",), "?1")], ["a1", "b1"]),
    ([(("id",), "b_*")], ["b_x"]),
    ([(("id",), "*x")], ["b_x"]),
    ([(("id",), 1)], []),
    ([(("enabled",), True)], ["a1", "b1"]),
    ([(("enabled",), "true")], []),
    ([(("ext", "count"), 15)], ["a1", "a2"]),
    ([(("ext", "count"), 15.0)], ["a1", "a2"]),
    ([(("ext", "count"), True)], []),
    ([(("ext", "count"), "15")], ["b1"]),
    ([(("ext", "site"), "Ber*")], ["a1", "a2"]),
    ([(("ext", "site"), "ber*")], []),
    ([(("ext", "site"), "*%*")], ["a2"]),
    ([(("ext", "site"), "Ber[l]in")], []),
    ([(("ext", "site"), "Ber*"), (("enabled",), True)], ["a1"]),
    ([(("via", "0"), "gw-1")], ["a2", "b1"]),
    ([(("via", "1"), "gw-2")], ["b1"]),
    ([(("ext", "0"), "zero")], ["b_x"]),
    ([(("ext", "a.b"), "dotted")], ["b_x"]),
    ([(("ext", "none"), "x")], []),
    ([(("status", "last-user"), "a*")], ["a1", "a2", "b1", "b_x"]),
    ([(("status", "last-user"), "bob")], []),
]
"""Filters, and the devices that they find."""


def test_filters(acme: DeviceSite) -> None:
    acme.add("a1", enabled=True, ext={"count": 15, "site": "Berlin"})
    acme.add("a2", enabled=False, ext={"count": 15.0, "site": "Ber%in"}, via=["gw-1"])
    acme.add("b1", enabled=True, ext={"count": "15"}, via=["gw-1", "gw-2"])
    acme.add("b_x", ext={"0": "zero", "a.b": "dotted", "enabled": True})
    for filters, found in FILTERS:
        assert acme.find(*(FieldFilter(*each) for each in filters)) == found, filters


def test_order_and_pages(acme: DeviceSite) -> None:
    for name, rank in (("c", 2), ("a", 10), ("B", 1), ("d", 2)):
        acme.add(name, ext={"rank": rank})
    acme.add("none")
    by_rank = [FieldOrder(("ext", "rank"))]
    assert acme.find() == ["B", "a", "c", "d", "none"], "ids are compared byte by byte"
    assert acme.find(orders=by_rank) == ["none", "B", "c", "d", "a"]
    assert acme.find(orders=[FieldOrder(("ext", "rank"), True)]) == ["a", "c", "d", "B", "none"]
    assert acme.find(orders=[FieldOrder(("status", "created"), True)]) == ["none", "d", "B", "a", "c"]
    assert acme.find(page=SearchPage(2, 1), orders=by_rank) == ["B", "c"]
    assert acme.find(page=SearchPage(2, after="B")) == ["a", "c"]
    assert acme.devices.search("acme", SearchQuery(SearchPage(0))).total == 5
    with pytest.raises(UnknownDeviceTenant):
        acme.devices.search("globex", SearchQuery(SearchPage(1)))


def test_devices_that_act_for_others(acme: DeviceSite) -> None:
    acme.add("plain")
    acme.add("behind", via=["gw"])
    acme.add("gw")
    acme.add("grouped", memberOf=["hall"])
    assert acme.find(gateways=True) == ["grouped", "gw"]
    assert acme.find(gateways=False) == ["behind", "plain"]
    acme.devices.replace(acme.row("behind"), any_revision)
    assert acme.find(gateways=True) == ["grouped"]


@pytest.mark.parametrize("path", [("status", "created"), ("status", "updated")])
def test_times_are_not_filtered(acme: DeviceSite, path: tuple[str, ...]) -> None:
    with pytest.raises(UnsearchableField):
        acme.find(FieldFilter(path, "2026*"))


@pytest.mark.parametrize("text", ['a"b', "a'b", "a\\b", "$", "*", "", "]"])
def test_odd_names_of_fields_are_searched_or_refused(acme: DeviceSite, text: str) -> None:
    acme.add("odd", ext={text: "x"})
    with contextlib.suppress(UnsearchableField):
        assert acme.find(FieldFilter(("ext", text), "x"), orders=[FieldOrder(("ext", text))]) == ["odd"]


def test_a_tenant_is_removed_after_its_devices(acme: DeviceSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_devices, "REMOVED_AT_ONCE", 2)
    for number in range(3):
        acme.add(f"d{number}", via=["gw"])
    acme.devices.set_credentials("acme", "d0", lambda _, __: [CredentialRow("psk", "p", "{}")], any_revision)
    assert not acme.tenants.remove("acme", any_revision)
    assert [acme.devices.remove_some("acme") for _ in range(3)] == [2, 1, 0]
    before = acme.tenants.get("acme")
    assert before is not None
    assert before.devices == 0
    assert acme.tenants.remove("acme", any_revision)
    with pytest.raises(UnknownDeviceTenant):
        acme.tenants.remove("acme", any_revision)
    acme.now_us = before.last_revision
    assert acme.add_tenant() > before.last_revision, "revisions do not begin again"


def test_authorities_of_tenants(site: DeviceSite) -> None:
    site.add_tenant("acme", "acme", TrustAnchorRow("CN=one", None), TrustAnchorRow("CN=one", None))
    with pytest.raises(AnchorTaken):
        site.add_tenant("globex", "globex", TrustAnchorRow("CN=one", "common"))
    site.add_tenant("globex", "globex", TrustAnchorRow("CN=two", "common"))
    site.add_tenant("initech", "initech", TrustAnchorRow("CN=two", "common"))
    site.add_tenant("acme", "acme")
    site.add_tenant("globex", "globex", TrustAnchorRow("CN=one", None))


def test_tenants_of_an_owner(site: DeviceSite) -> None:
    for name in ("ONE", "TWO", "THREE"):
        site.add_tenant(name, "acme")
    site.add_tenant("globex", "globex")
    with pytest.raises(TenantsOfOwnerFull):
        site.add_tenant("FOUR", "acme")
    revision = site.add_tenant("ONE", "acme")
    found = site.tenants.search("acme", SearchQuery(SearchPage(2, 1)))
    assert ([each.tenant for each in found.rows], found.total) == (["THREE", "TWO"], 3)
    found = site.tenants.search(None, SearchQuery(SearchPage(9), [FieldFilter(("id",), "*E*")]))
    assert [each.tenant for each in found.rows] == ["ONE", "THREE"]
    with pytest.raises(StaleRevision):
        site.tenants.remove("ONE", only(revision - 1))


def test_a_page_of_many_devices_reads_few(acme: DeviceSite, request: pytest.FixtureRequest) -> None:
    """A page of the list is found by its key, not by counting or sorting: rows are read for the page alone."""
    if "sqlite" not in request.node.name:
        pytest.skip("the plan of a small table says nothing on PostgreSQL")
    database = acme.devices._database
    plan = "EXPLAIN QUERY PLAN SELECT * FROM devices WHERE tenant = 'acme' AND device > 'd' ORDER BY device LIMIT 50"
    found = str(database.transaction(lambda tx: tx.exec_driver_sql(plan).all()))
    assert "SEARCH devices USING INDEX" in found
    assert "TEMP B-TREE" not in found
