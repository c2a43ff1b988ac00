"""Hostile reports of one gateway about its devices, in a registry on SQLite and PostgreSQL: it gets a refusal, and the
reports of all others are decided."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from bridge.device_reports import (
    REPORTS_MAX,
    DeviceReport,
    LocalDevicesPart,
    ProvisionedReport,
)
from cloud.hub.devices import reports as module
from cloud.hub.devices.reports import GatewayDeviceReports
from cloud.hub.groups import Key
from cloud.hub.registry import local_devices
from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import RowsRefused
from cloud.hub.registry.local_devices import LocalDevices
from cloud.hub.registry.opening import open_registry
from cloud.hub.tenants import Tenants
from cloud.lake.faults import RegistryError
from tests.contract.registry.conftest import Place

DEADLINE_S = 30.0
BAD, GOOD = ("acme", "bad"), ("acme", "good")


def part(base: str, position: str, *names: str, after: str = "", until: str | None = None) -> LocalDevicesPart:
    return LocalDevicesPart(base=base, position=position, digest="", after=after, until=until, names=names)


def forged(base: str, *names: str, **changed: Any) -> LocalDevicesPart:
    """Return a part that no decoder lets through."""
    made = part(base, "ff")
    for field, value in {"names": names, **changed}.items():
        msgspec.structs.force_setattr(made, field, value)
    return made


class ReportingFleet:
    """Hub's reports, and the answers to them."""

    def __init__(self, place: Place) -> None:
        self.url = place.url
        with contextlib.closing(open_registry(place.url).database):
            pass
        self.reports = GatewayDeviceReports(place.url, Tenants())
        self.answers: list[tuple[Key, str | None]] = []
        self._answered = asyncio.Event()

    def send(self, gateway: Key, report: DeviceReport) -> None:
        def answer(why: str | None) -> None:
            self.answers.append((gateway, why))
            self._answered.set()

        self.reports.reported(gateway, report, answer)

    async def wait_for(self, count: int) -> None:
        while len(self.answers) < count:
            self._answered.clear()
            await self._answered.wait()

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.reports.open()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await work()
            finally:
                await self.reports.close()

        asyncio.run(main())

    def names(self, gateway: Key) -> list[str]:
        with contextlib.closing(open_registry(self.url).database) as database:
            return [row.device for row in LocalDevices(database).page(gateway[0], gateway[1], None, 1_000)]


@pytest.fixture
def fleet(make_place: Callable[[], Place]) -> ReportingFleet:
    return ReportingFleet(make_place())


def test_a_part_with_names_outside_its_range_is_refused(fleet: ReportingFleet) -> None:
    async def work() -> None:
        fleet.send(BAD, part("", "01", "a"))
        fleet.send(BAD, forged("01", "a", after="m"))
        fleet.send(GOOD, part("", "01", "x"))
        await fleet.wait_for(3)

    fleet.run(work)
    assert dict(fleet.answers)[GOOD] is None
    [first, refused] = [why for gateway, why in fleet.answers if gateway == BAD]
    assert (first, bool(refused)) == (None, True)
    assert (fleet.names(BAD), fleet.names(GOOD)) == (["a"], ["x"])
    assert fleet.reports.trouble is None


@pytest.mark.parametrize("field", ["names", "after", "until", "tenant"])
def test_a_nul_in_a_report_delays_no_other_gateway(fleet: ReportingFleet, field: str) -> None:
    hostile: DeviceReport
    match field:
        case "names":
            hostile = forged("", "a\0b")
        case "tenant":
            hostile = ProvisionedReport(devices_of="a\0b", certificate=b"")
        case _:
            hostile = forged("", **{field: "a\0b"})

    async def work() -> None:
        fleet.send(BAD, hostile)
        fleet.send(GOOD, part("", "01", "x"))
        await fleet.wait_for(2)

    fleet.run(work)
    assert dict(fleet.answers)[GOOD] is None
    assert fleet.reports.trouble is None


def test_more_devices_than_the_limit_are_refused(fleet: ReportingFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_devices, "LOCAL_DEVICES_MAX", 2)

    async def work() -> None:
        fleet.send(BAD, part("", "01", "a", "b", until="b"))
        fleet.send(BAD, part("01", "02", "c", after="b"))
        fleet.send(GOOD, part("", "01", "x", "y"))
        await fleet.wait_for(3)

    fleet.run(work)
    [first, second] = [why for gateway, why in fleet.answers if gateway == BAD]
    assert first is None
    assert "more than 2 devices" in str(second)
    assert fleet.names(BAD) == ["a", "b"]
    assert fleet.names(GOOD) == ["x", "y"], "each gateway has its own limit"


def test_gateways_take_turns_while_one_report_fails(fleet: ReportingFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    replace = LocalDevices.replace
    tried = deque[Key]()

    def fails(self: LocalDevices, gateway: Key, report: LocalDevicesPart) -> None:
        tried.append(gateway)
        if gateway == BAD:
            raise RegistryError("not now")
        replace(self, gateway, report)

    monkeypatch.setattr(LocalDevices, "replace", fails)

    async def work() -> None:
        fleet.send(BAD, part("", "01", "a"))
        fleet.send(GOOD, part("", "01", "x"))
        fleet.send(GOOD, part("01", "02", "y"))
        await fleet.wait_for(2)

    fleet.run(work)
    assert fleet.answers == [(GOOD, None), (GOOD, None)]
    assert list(tried)[:4] == [BAD, GOOD, BAD, GOOD]


def test_reports_of_an_ended_connection_are_dropped(fleet: ReportingFleet) -> None:
    async def work() -> None:
        for number in range(REPORTS_MAX + 5):
            fleet.send(BAD, part("", f"{number:02}", "a"))
        assert len(fleet.reports._waiting[BAD]) == REPORTS_MAX
        fleet.reports.left(BAD)
        fleet.send(GOOD, part("", "01", "x"))
        await fleet.wait_for(1)

    fleet.run(work)
    assert fleet.answers == [(GOOD, None)]
    assert fleet.names(BAD) == []


def test_a_database_that_can_be_used_is_not_away(fleet: ReportingFleet) -> None:
    with contextlib.closing(open_registry(fleet.url).database) as database:
        assert isinstance(database, Database)
        with pytest.raises(RowsRefused):
            LocalDevices(database).replace(BAD, forged("", "a", "a"))
        LocalDevices(database).replace(BAD, part("", "01", "a"))
