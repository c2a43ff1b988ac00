"""Devices that were added at gateways, in a registry on SQLite and PostgreSQL: any order of changes, losses and copies
ends with what the gateway has."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from bridge.device_reports import LocalDevicesCheck, LocalDevicesPart, ProvisionedReport, out_of_step
from cloud.hub.registry.forgetting import withdraw
from cloud.hub.registry.local_devices import GatewayForgotten, ListOutOfStep, LocalDevices
from cloud.hub.registry.schema import local_device_lists, local_devices
from edge.appliance.devices import telling
from edge.appliance.devices.telling import RESTARTS_MAX, LocalDeviceTeller, digest_of
from tests.contract.registry.conftest import Place
from tests.support.provisioning_site import OWNER, ProvisioningRegistry, ReportQueue
from tests.support.tenant_rows import fill

SEED = 20261201
ROUNDS = 60
TABLES = (local_devices, local_device_lists)
STEPS = ("add", "remove", "answer", "answer", "lose", "attach", "restart", "late", "copy", "restore")


class TellingGateway:
    """Gateway with devices of its own, and its reports on the way to the registry."""

    def __init__(self, registry: ProvisioningRegistry, name: str = "gw1") -> None:
        self.registry, self.name = registry, name
        self.lists = LocalDevices(registry.database)
        self.devices: set[str] = set()
        self.late: list[LocalDevicesCheck | LocalDevicesPart] = []
        """Copies of reports that another hub has got, and decides later."""
        self.decided = 0
        self.restart()

    def restart(self) -> None:
        self.reports = ReportQueue()
        self.teller = LocalDeviceTeller(lambda: self.devices)
        self.teller.tell(self.reports)  # type: ignore[arg-type]

    def change(self, *names: str, remove: bool = False) -> None:
        self.devices = self.devices - set(names) if remove else self.devices | set(names)
        self.teller.look()

    def decide(self, report: LocalDevicesCheck | LocalDevicesPart | ProvisionedReport) -> str | None:
        try:
            if isinstance(report, LocalDevicesCheck):
                self.lists.check((OWNER, self.name), report)
            elif isinstance(report, LocalDevicesPart):
                self.lists.replace((OWNER, self.name), report)
        except ListOutOfStep as error:
            return out_of_step(error.position)
        except GatewayForgotten:
            return "unknown"
        return None

    def answer(self) -> None:
        """Let the hub decide about the next report."""
        report, decided = self.reports.waiting.popleft()
        self.decided += 1
        decided(self.decide(report))

    def settle(self) -> None:
        self.reports.attach()
        for _ in range(1_000):
            if not self.reports.waiting:
                return
            self.answer()
        raise AssertionError("reports without end")

    @property
    def known(self) -> set[str]:
        return {row.device for row in self.lists.page(OWNER, self.name, None, 1_000)}


@pytest.fixture
def registry(make_place: Callable[[], Place]) -> Iterator[ProvisioningRegistry]:
    made = ProvisioningRegistry(make_place().url)
    with contextlib.closing(made.database):
        yield made


@pytest.fixture
def gateway(registry: ProvisioningRegistry, monkeypatch: pytest.MonkeyPatch) -> TellingGateway:
    monkeypatch.setattr(telling, "PART_NAMES_MAX", 2)
    return TellingGateway(registry)


def test_additions_and_removals_are_told(gateway: TellingGateway) -> None:
    gateway.change("a", "b", "c", "d", "e")
    assert not gateway.reports.waiting, "not before the hub takes reports"
    gateway.settle()
    assert gateway.known == {"a", "b", "c", "d", "e"}
    gateway.change("b", "e", remove=True)
    gateway.settle()
    assert gateway.known == {"a", "c", "d"}
    gateway.change("a", "c", "d", remove=True)
    gateway.settle()
    assert gateway.known == set()


def test_a_connection_without_a_change_is_one_short_report(gateway: TellingGateway) -> None:
    gateway.change("a", "b", "c")
    gateway.settle()
    before = gateway.decided
    gateway.settle()
    gateway.restart()
    gateway.settle()
    assert gateway.decided == before + 2


def test_a_part_that_comes_late_changes_nothing(gateway: TellingGateway) -> None:
    gateway.settle()
    gateway.change("a")
    late = gateway.reports.waiting[0][0]
    gateway.answer()
    gateway.change("b")
    gateway.settle()
    assert gateway.decide(late) is not None  # type: ignore[arg-type]
    gateway.change("b", remove=True)
    gateway.settle()
    assert gateway.decide(late) is not None, "also when the list is what it was before"  # type: ignore[arg-type]
    assert gateway.known == {"a"}


def test_two_machines_with_one_identity_do_not_report_for_ever(
    gateway: TellingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.change("a")
    monkeypatch.setattr(gateway, "decide", lambda _report: out_of_step("0123"))
    gateway.settle()
    assert gateway.decided == RESTARTS_MAX + 1


def test_random_orders_end_with_the_list_of_the_gateway(gateway: TellingGateway) -> None:
    """Restarts, lost answers, late copies, restored registries and changes while reports are on the way."""
    chance = random.Random(SEED)
    copy = gateway.registry.database.transaction(_copied)
    for _ in range(ROUNDS):
        match chance.choice(
            ["add", "remove", "answer", "answer", "lose", "attach", "restart", "late", "copy", "restore"]
        ):
            case "add":
                gateway.change(chance.choice("abcdefg"))
            case "remove":
                gateway.change(chance.choice("abcdefg"), remove=True)
            case "answer" if gateway.reports.waiting:
                gateway.answer()
            case "lose" if gateway.reports.waiting:
                report = gateway.reports.waiting[0][0]
                gateway.decide(report)
                gateway.late.append(report)  # type: ignore[arg-type]
            case "attach":
                gateway.reports.attach()
            case "restart":
                gateway.restart()
            case "late" if gateway.late:
                gateway.decide(gateway.late.pop(chance.randrange(len(gateway.late))))
            case "copy":
                copy = gateway.registry.database.transaction(_copied)
            case "restore":
                gateway.registry.database.transaction(partial(_restore, copy))
                gateway.restart()
    gateway.settle()
    assert gateway.known == gateway.devices
    assert digest_of(sorted(gateway.known)) == digest_of(sorted(gateway.devices))


def _copied(tx: sa.Connection) -> list[list[dict[str, Any]]]:
    return [[dict(row._mapping) for row in tx.execute(table.select())] for table in TABLES]


def _restore(copy: list[list[dict[str, Any]]], tx: sa.Connection) -> None:
    for table, rows in zip(TABLES, copy, strict=True):
        tx.execute(table.delete())
        if rows:
            tx.execute(table.insert(), rows)


def test_pages_name_gateway_and_conflict(registry: ProvisioningRegistry, gateway: TellingGateway) -> None:
    other = TellingGateway(registry, "gw2")
    registry.trust()
    registry.register("b", "CN=b,O=ACME", "gw2")
    for each in (gateway, other):
        each.change("a", "b")
        each.settle()
    rows = gateway.lists.page(OWNER, None, None, 3)
    assert [tuple(row) for row in rows] == [("a", "gw1", False), ("a", "gw2", False), ("b", "gw1", False)]
    assert [tuple(row) for row in gateway.lists.page(OWNER, None, rows[-1][:2], 3)] == [("b", "gw2", True)]
    assert gateway.lists.page("else", None, None, 3) == []


def test_the_list_of_a_forgotten_gateway_ends(registry: ProvisioningRegistry, gateway: TellingGateway) -> None:
    gateway.change("a")
    gateway.settle()
    registry.database.transaction(lambda tx: withdraw(tx, (OWNER, "gw1"), 1))
    assert gateway.known == set()


def test_a_report_of_a_forgotten_gateway_is_refused(registry: ProvisioningRegistry, gateway: TellingGateway) -> None:
    def forget(tx: sa.Connection) -> None:
        fill(tx, "tenants", name=OWNER)
        fill(tx, "gateways", tenant=OWNER, name="gw1", forgotten_at=1)

    registry.database.transaction(forget)
    gateway.change("a")
    gateway.settle()
    assert gateway.known == set()
    assert not gateway.reports.waiting
