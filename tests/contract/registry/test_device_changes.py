"""Changes of devices for one gateway, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence

import pytest
import sqlalchemy as sa

from cloud.hub.devices.pages import make_page, read_cursor
from cloud.hub.registry import device_targets as targets
from cloud.hub.registry import labels, schema
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import DeviceChanges
from cloud.hub.registry.device_targets import SelectorsFull, TargetUpkeep
from cloud.hub.registry.device_tenants import DeviceTenants, TenantChange
from cloud.hub.registry.devices import CredentialRow, NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.opening import open_registry
from tests.contract.registry.conftest import Place
from tests.support.device_pages import PageGateway

NOW = 1_800_000_000_000_000
LOOK_STATEMENTS_MAX = 5
"""Statements that find out whether a gateway has changes."""
PAGE_STATEMENTS_MAX = 8
"""Statements that read a page."""


def any_revision(_there: int | None) -> None:
    """Accept every revision."""


class DeviceChangeSite:
    """Registry with devices, and gateways that follow it."""

    def __init__(self, database: Database, place: Place) -> None:
        self.place, self.database = place, database
        self.tenants, self.devices = DeviceTenants(database), RegisteredDevices(database)
        self.changes, self.upkeep = DeviceChanges(database), TargetUpkeep(database)
        self.now_us = NOW
        self.add_tenant("acme")

    def add_tenant(self, name: str, owner: str = "acme", **document: object) -> None:
        self.now_us += 1
        change = TenantChange(name, json.dumps(document), (), self.now_us, "ann")
        self.tenants.put(change, owner, 100, any_revision)

    def row(self, device: str, gateways: Sequence[str], selector: str, tenant: str) -> NewDeviceRow:
        self.now_us += 1
        extension = {"gateways": list(gateways), "selector": selector}
        document = json.dumps({"enabled": True, "ext": {"waypost": extension}})
        return NewDeviceRow(tenant, device, document, [], self.now_us, "ann")

    def add(self, device: str, *gateways: str, selector: str = "", tenant: str = "acme") -> None:
        self.devices.add(self.row(device, gateways, selector, tenant), TenantLimits(None, lambda _: 1_000_000))

    def move(self, device: str, *gateways: str, selector: str = "", tenant: str = "acme") -> None:
        self.devices.replace(self.row(device, gateways, selector, tenant), any_revision)

    def remove(self, device: str, tenant: str = "acme") -> None:
        self.devices.remove(tenant, device, any_revision)

    def rotate(self, device: str, word: str, tenant: str = "acme") -> None:
        document = json.dumps({"type": "hashed-password", "auth_id": device, "secrets": [{"id": word, "argon2": word}]})
        rows = [CredentialRow("hashed-password", device, document)]
        self.devices.set_credentials(tenant, device, lambda _known, _rows: rows, any_revision)

    def label(self, gateway: str, **changes: str | None) -> None:
        self.database.transaction(lambda tx: labels.put(tx, "acme", gateway, changes))


@pytest.fixture
def site(make_place: Callable[[], Place]) -> Iterator[DeviceChangeSite]:
    place = make_place()
    with contextlib.closing(open_registry(place.url).database) as database:
        yield DeviceChangeSite(database, place)


@pytest.fixture
def gateway() -> PageGateway:
    return PageGateway(("acme", "gw1"))


def test_a_gateway_gets_the_devices_that_name_it(site: DeviceChangeSite, gateway: PageGateway) -> None:
    site.add("pump", "gw1")
    site.add("fan", "gw2")
    site.add("both", "gw1", "gw2")
    site.add("nowhere")
    assert gateway.fetch(site.changes) == 1
    assert gateway.names() == ["both", "pump"]
    assert gateway.fetch(site.changes) == 0


def test_only_changes_follow(site: DeviceChangeSite, gateway: PageGateway) -> None:
    for number in range(5):
        site.add(f"d{number}", "gw1")
    gateway.fetch(site.changes)
    site.rotate("d3", "new")
    site.remove("d0")
    site.add("other", "gw2")
    cursor = gateway.cursor
    assert gateway.fetch(site.changes) == 1
    assert gateway.names() == ["d1", "d2", "d3", "d4"]
    assert gateway.devices["acme"]["d3"].logins[0].secrets[0].id == "new"
    gateway.cursor = cursor  # the page was lost
    gateway.devices["acme"].pop("d3")
    assert gateway.fetch(site.changes) == 1
    assert gateway.names() == ["d1", "d2", "d3", "d4"]


def test_a_device_that_moves_leaves_its_gateway(site: DeviceChangeSite, gateway: PageGateway) -> None:
    other = PageGateway(("acme", "gw2"))
    site.add("pump", "gw1")
    for each in (gateway, other):
        each.fetch(site.changes)
    site.move("pump", "gw2")
    for each in (gateway, other):
        each.fetch(site.changes)
    assert (gateway.names(), other.names()) == ([], ["pump"])
    site.move("pump", "gw1", "gw2")
    for each in (gateway, other):
        each.fetch(site.changes)
    assert (gateway.names(), other.names()) == (["pump"], ["pump"])


def test_a_device_that_is_chosen_twice_leaves_after_both(site: DeviceChangeSite, gateway: PageGateway) -> None:
    site.label("gw1", site="berlin")
    site.add("pump", "gw1", selector="site=berlin")
    gateway.fetch(site.changes)
    site.move("pump", selector="site=berlin")
    gateway.fetch(site.changes)
    assert gateway.names() == ["pump"]
    site.move("pump", selector="site=paris")
    gateway.fetch(site.changes)
    assert gateway.names() == []


def test_labels_decide_about_selectors(site: DeviceChangeSite, gateway: PageGateway) -> None:
    site.add("pump", selector="site=berlin")
    site.add("fan", selector="site!=berlin")
    gateway.fetch(site.changes)
    assert gateway.names() == ["fan"]
    site.label("gw1", site="berlin")
    gateway.fetch(site.changes)
    assert gateway.names() == ["pump"]
    site.label("gw1", ring="canary")
    assert gateway.fetch(site.changes) == 0  # no selector decides otherwise
    site.label("gw1", site=None)
    gateway.fetch(site.changes)
    assert gateway.names() == ["fan"]


def test_pages_are_bounded_and_continue(site: DeviceChangeSite, gateway: PageGateway) -> None:
    names = [f"d{number:02}" for number in range(25)]
    for name in names:
        site.add(name, "gw1")
    assert gateway.fetch(site.changes, most=1, rows=10) == 1
    assert gateway.names() == names[:10]
    site.remove("d03")  # already in the snapshot
    site.remove("d15")  # not yet
    gateway.fetch(site.changes, rows=10)
    assert gateway.names() == [each for each in names if each not in ("d03", "d15")]


def test_removals_of_one_revision_fill_several_pages(site: DeviceChangeSite, gateway: PageGateway) -> None:
    for number in range(25):
        site.add(f"d{number:02}", "gw1")
    gateway.fetch(site.changes)
    assert site.devices.remove_some("acme") == 25
    assert gateway.fetch(site.changes, rows=10) == 3
    assert gateway.names() == []


def test_a_tenant_is_disabled_and_removed(site: DeviceChangeSite, gateway: PageGateway) -> None:
    site.add_tenant("plant", enabled=True)
    site.add("pump", "gw1", tenant="plant")
    gateway.fetch(site.changes)
    assert (gateway.names("plant"), gateway.enabled["plant"]) == (["pump"], True)
    site.add_tenant("plant", enabled=False)
    assert gateway.fetch(site.changes) == 1
    assert (gateway.names("plant"), gateway.enabled["plant"]) == (["pump"], False)
    site.remove("pump", "plant")
    assert site.tenants.remove("plant", any_revision)
    gateway.fetch(site.changes)
    assert gateway.names("plant") == []
    site.add_tenant("plant")
    site.add("fan", "gw1", tenant="plant")
    gateway.fetch(site.changes)
    assert gateway.names("plant") == ["fan"]


def test_other_owners_have_other_devices(site: DeviceChangeSite) -> None:
    site.add_tenant("else", owner="else")
    site.add("theirs", "gw1", tenant="else")
    site.add("ours", "gw1")
    mine, theirs = PageGateway(("acme", "gw1")), PageGateway(("else", "gw1"))
    for each in (mine, theirs):
        each.fetch(site.changes)
    assert (mine.names("acme"), mine.names("else")) == (["ours"], [])
    assert (theirs.names("acme"), theirs.names("else")) == ([], ["theirs"])


def test_dropped_tombstones_cause_a_snapshot(site: DeviceChangeSite, gateway: PageGateway) -> None:
    for name in ("a", "b", "c", "d"):
        site.add(name, "gw1")
    gateway.fetch(site.changes)
    late, cursor = PageGateway(gateway.key), gateway.cursor
    late.devices, late.cursor = {"acme": dict(gateway.devices["acme"])}, cursor
    for name in ("a", "b", "c"):
        site.remove(name)
    gateway.fetch(site.changes)
    assert site.upkeep.drop_tombstones(1) == 2
    assert site.upkeep.drop_tombstones(1) == 0
    late.fetch(site.changes)
    assert late.names() == gateway.names() == ["d"]
    assert gateway.fetch(site.changes) == 0


def test_a_cursor_of_the_future_causes_a_snapshot(site: DeviceChangeSite, gateway: PageGateway) -> None:
    """The registry was restored from a copy."""
    site.add("pump", "gw1")
    gateway.fetch(site.changes)
    gateway.devices["acme"]["lost"] = gateway.devices["acme"]["pump"]
    site.place.execute("UPDATE device_tenants SET last_revision = last_revision - 1")
    gateway.fetch(site.changes)
    assert gateway.names() == ["pump"]


def test_changes_of_older_programs_are_caught_up_with(site: DeviceChangeSite, gateway: PageGateway) -> None:
    for name in ("kept", "moved", "removed", "rotated"):
        site.add(name, "gw1")
    gateway.fetch(site.changes)
    assert site.upkeep.untracked() == []
    execute = site.place.execute
    moved = site.row("moved", ["gw2"], "", "acme").document
    execute("UPDATE devices SET document = :document WHERE device = 'moved'", document=moved)
    execute("DELETE FROM devices WHERE device = 'removed'")
    execute("UPDATE devices SET credentials_revision = credentials_revision + 9 WHERE device = 'rotated'")
    added = site.row("added", ["gw1"], "", "acme").document
    execute(
        "INSERT INTO devices VALUES ('acme', 'added', :document, :at, :at, :at, :at, 'ann')", document=added, at=NOW
    )
    execute("UPDATE device_tenants SET last_revision = last_revision + 4")
    site.add("new", "gw1")  # the difference stays
    assert site.upkeep.untracked() == ["acme"]
    assert site.upkeep.track_tenant("acme") == 4
    assert site.upkeep.untracked() == []
    gateway.fetch(site.changes)
    assert gateway.names() == ["added", "kept", "new", "rotated"]


def test_devices_from_before_the_targets_get_them(site: DeviceChangeSite, gateway: PageGateway) -> None:
    for number in range(3):
        site.add(f"d{number}", "gw1", selector="site=berlin")
    for table in ("device_targets", "device_selectors"):
        site.place.execute(f"DELETE FROM {table}")
    site.place.execute("UPDATE device_tenants SET tracked_revision = NULL")
    assert site.upkeep.untracked() == ["acme"]
    assert site.upkeep.track_tenant("acme") == 3
    gateway.fetch(site.changes)
    assert gateway.names() == ["d0", "d1", "d2"]


def test_selectors_of_a_tenant_are_limited(site: DeviceChangeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "SELECTORS_MAX", 2)
    for number in range(2):
        site.add(f"d{number}", selector=f"site=s{number}")
    site.add("same", selector="site=s0")
    with pytest.raises(SelectorsFull):
        site.add("more", selector="site=s3")
    site.place.execute("DELETE FROM device_targets WHERE target = 'ssite=s1'")  # as if its tombstones were dropped
    site.add("more", selector="site=s3")


def test_a_position_within_dropped_removals_is_not_continued(site: DeviceChangeSite, gateway: PageGateway) -> None:
    for number in range(6):
        site.add(f"d{number}", "gw1")
    gateway.fetch(site.changes)
    assert site.devices.remove_some("acme") == 6  # of one revision
    gateway.fetch(site.changes, most=1, rows=2)
    assert site.upkeep.drop_tombstones(0) == 6
    gateway.fetch(site.changes)
    assert gateway.names() == []


def test_the_last_hub_that_claims_counts(site: DeviceChangeSite) -> None:
    site.add("pump", "gw1")
    site.place.execute("UPDATE device_tenants SET last_revision = last_revision + 1")
    first = site.database.transaction(lambda tx: targets._claim_changes(tx, "acme", "first"))
    site.place.execute("UPDATE device_tenants SET last_revision = last_revision + 1")  # after the first has passed
    second = site.database.transaction(lambda tx: targets._claim_changes(tx, "acme", "second"))
    assert (first, second) == (1, 2)
    site.database.transaction(lambda tx: targets._raise_tracked(tx, "acme", first, "first"))
    assert site.upkeep.untracked() == ["acme"]
    site.database.transaction(lambda tx: targets._raise_tracked(tx, "acme", second, "second"))
    assert site.upkeep.untracked() == []


def test_upkeep_stops_between_transactions(site: DeviceChangeSite) -> None:
    site.add("pump", "gw1")
    site.place.execute("UPDATE device_tenants SET tracked_revision = NULL")
    assert TargetUpkeep(site.database, lambda: True).track_tenant("acme") == 0
    assert site.upkeep.untracked() == ["acme"]


COPIED = (
    schema.device_tenants,
    schema.devices,
    schema.device_credentials,
    schema.device_targets,
    schema.device_selectors,
)


@pytest.mark.parametrize("now_us", [0, 2 * NOW])
def test_an_older_copy_sends_everything_again(site: DeviceChangeSite, gateway: PageGateway, now_us: int) -> None:
    """Its next changes have revisions that the gateway knows for others."""
    site.add("pump", "gw1")
    site.add("stolen", "gw1")
    copy = site.database.transaction(
        lambda tx: {table: tx.execute(table.select()).mappings().all() for table in COPIED}
    )
    for number in range(5):
        site.rotate("pump", f"w{number}")
    gateway.fetch(site.changes)

    def restore(tx: sa.Connection) -> None:
        for table, rows in copy.items():
            tx.execute(table.delete())
            if rows:
                tx.execute(table.insert(), [dict(each) for each in rows])
        targets.restart_gateways(tx, now_us)

    site.database.transaction(restore)
    site.remove("stolen")
    site.rotate("pump", "new")
    assert gateway.fetch(site.changes) > 0
    assert gateway.names() == ["pump"]
    assert gateway.fetch(site.changes) == 0
    site.add("fan", "gw1")
    assert gateway.fetch(site.changes) == 1
    assert gateway.names() == ["fan", "pump"]


@contextlib.contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Collect the statements of a database."""
    found: list[str] = []

    def add(_tx: object, _cursor: object, text: str, *_more: object) -> None:
        if not text.startswith("BEGIN"):
            found.append(text)

    sa.event.listen(database._engine, "before_cursor_execute", add)
    try:
        yield found
    finally:
        sa.event.remove(database._engine, "before_cursor_execute", add)


def test_a_page_takes_few_statements_whatever_the_number_of_tenants(
    site: DeviceChangeSite, gateway: PageGateway
) -> None:
    site.label("gw1", site="lyon", ring="a")
    for number in range(6):
        site.add_tenant(f"line{number}")
        site.add(f"press{number}", "gw9", tenant=f"line{number}")
        for selector in ("site=lyon", "ring=a", "site=brno", f"line={number}"):
            site.add(f"{number}-{selector}".replace("=", "-"), selector=selector, tenant=f"line{number}")
    site.add("pump7", "gw1")
    pages, cursor = list[int](), read_cursor("", "r")
    while True:
        with statements(site.database) as of_look:
            look = site.changes.look(gateway.key, cursor)
        with statements(site.database) as of_page:
            found = site.changes.read(gateway.key, cursor)
        assert look == (found.changes is not None, found.cursor)
        assert len(of_look) <= LOOK_STATEMENTS_MAX, of_look
        assert len(of_page) <= PAGE_STATEMENTS_MAX, of_page
        if found.changes is None:
            break
        pages.append(len(found.changes.states))
        made = make_page(gateway.key, found.changes, gateway.cursor)
        gateway.apply(made.page)
        cursor = made.cursor
    assert pages == [1, *[2] * 6]
    site.rotate("pump7", "new")
    with statements(site.database) as of_page:
        changes = site.changes.read(gateway.key, cursor).changes
    assert changes is not None
    assert [each.device for each in changes.states] == ["pump7"]
    assert len(of_page) <= PAGE_STATEMENTS_MAX + 1, "one more looks which devices the gateway still has"
