"""Sending of devices to gateways: pages, answers, refusals, and gateways that connect again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from bridge import plain
from bridge.device_pages import CURSOR, RESTART, DevicePage, out_of_step, read_page, read_signed, to_sign
from bridge.forwarders.outcome import ForwardOutcome
from cloud.hub.devices import downlink
from cloud.hub.devices.downlink import DeviceDownlink
from cloud.hub.devices.pages import read_cursor
from cloud.hub.registry.device_tenants import DeviceTenants, TenantChange
from cloud.hub.registry.devices import NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry

NOW = 1_800_000_000_000_000
WAIT_S = 30.0


class FakeLine:
    """Link of a gateway, which keeps what is sent."""

    def __init__(self, cursor: str = "", gateway: str = "gw1", **more: str) -> None:
        self.gateway = ("acme", gateway)
        self.properties = {**({CURSOR: cursor} if cursor else {}), **more}
        self.credit = 1
        self.sent: asyncio.Queue[tuple[int, DevicePage]] = asyncio.Queue()

    def send(self, tag: int, message: bytes) -> None:
        assert self.credit == 1
        self.credit = 0
        signed = read_signed(plain.body_of(plain.parse(message).run.bodies[0]))
        assert signed.signature_bytes == to_sign(signed.content)[::-1]
        self.sent.put_nowait((tag, read_page(signed.content)))

    async def page(self) -> tuple[int, DevicePage]:
        return await asyncio.wait_for(self.sent.get(), WAIT_S)


class DownlinkSite:
    """Registry, and the downlink of a hub on it."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.now_us = NOW
        self.downlink = DeviceDownlink(url, lambda statement: statement[::-1])

    def work(self, change: Callable[[RegisteredDevices], Any]) -> None:
        with contextlib.closing(open_registry(self.url).database) as database:
            if DeviceTenants(database).get("acme") is None:
                DeviceTenants(database).put(TenantChange("acme", "{}", (), NOW, "ann"), "acme", 9, lambda _: None)
            change(RegisteredDevices(database))

    def add(self, device: str, gateway: str = "gw1") -> None:
        self.now_us += 1
        document = json.dumps({"ext": {"waypost": {"gateways": [gateway]}}})
        row = NewDeviceRow("acme", device, document, [], self.now_us, "ann")
        self.work(lambda devices: devices.add(row, TenantLimits(None, lambda _: 99)))

    def answer(self, line: FakeLine, tag: int, outcome: ForwardOutcome, why: str = "") -> None:
        line.credit = 1
        self.downlink.settled(line, tag, outcome, why)  # type: ignore[arg-type]
        self.downlink.ready(line)  # type: ignore[arg-type]

    def attach(self, cursor: str = "", gateway: str = "gw1", **more: str) -> FakeLine:
        line = FakeLine(cursor, gateway, **more)
        self.downlink.ready(line)  # type: ignore[arg-type]
        return line


Scenario = Callable[[DownlinkSite], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Return a function that runs a scenario with an open downlink."""
    monkeypatch.setattr(downlink, "FOLLOW_INTERVAL_S", 0.05)

    async def opened(scenario: Scenario) -> None:
        site = DownlinkSite(sqlite_url(tmp_path / "registry.db"))
        await site.downlink.open()
        try:
            await scenario(site)
        finally:
            await site.downlink.close()

    return lambda scenario: asyncio.run(opened(scenario))


def test_pages_follow_each_other_and_changes(run: Callable[[Scenario], None]) -> None:
    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        line = site.attach()
        tag, first = await line.page()
        assert [each.device for each in first.entries] == ["a"]
        site.add("b")
        site.answer(line, tag, ForwardOutcome.ACCEPTED)
        _, second = await line.page()
        assert [each.device for each in second.entries] == ["b"]
        assert site.downlink.figures["devices"] == 1

    run(scenario)


def test_a_gateway_that_connects_again_continues(run: Callable[[Scenario], None]) -> None:
    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        line = site.attach()
        _, first = await line.page()
        site.downlink.ended(line)  # type: ignore[arg-type] - it has the page, and the answer is lost
        site.add("b")
        _, second = await site.attach(first.cursor).page()
        assert ([each.device for each in second.entries], second.range) == (["b"], None)

    run(scenario)


def test_a_page_out_of_step_is_made_again(run: Callable[[Scenario], None]) -> None:
    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        line = site.attach()
        _, first = await line.page()
        site.downlink.ended(line)  # type: ignore[arg-type]
        late = site.attach()  # it gave its cursor while the page was being stored
        tag, _ = await late.page()
        site.add("b")
        site.answer(late, tag, ForwardOutcome.REJECTED, out_of_step(first.cursor))
        _, second = await late.page()
        assert [each.device for each in second.entries] == ["b"]

    run(scenario)


def test_a_refused_page_rests(run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        line = site.attach()
        tag, _ = await line.page()
        monkeypatch.setattr(downlink, "REFUSED_REST_S", 0.1)
        site.answer(line, tag, ForwardOutcome.REJECTED, "too many devices")
        assert site.downlink.refused == {("acme", "gw1"): "too many devices"}
        tag, again = await line.page()
        assert [each.device for each in again.entries] == ["a"]
        site.answer(line, tag, ForwardOutcome.ACCEPTED)
        assert site.downlink.refused == {}

    run(scenario)


@pytest.mark.parametrize("cursor", ["no JSON", '{"registry": "other", "tenants": {"acme": [1], "gone": [1]}}'])
def test_the_cursor_of_another_registry_begins_again(run: Callable[[Scenario], None], cursor: str) -> None:
    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        line = site.attach(cursor)
        tag, page = await line.page()
        if page.devices_of == "gone":
            assert (page.enabled, page.entries) == (False, ())
            site.answer(line, tag, ForwardOutcome.ACCEPTED)
            _, page = await line.page()
        assert ([each.device for each in page.entries], page.range is not None) == (["a"], True)

    run(scenario)


def test_one_gateway_that_fails_does_not_stop_others(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = downlink.make_page

    def make(key: tuple[str, str], *rest: Any) -> Any:
        if key[1] == "gw1":
            raise ValueError("a damaged row")
        return made(key, *rest)

    monkeypatch.setattr(downlink, "make_page", make)

    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        site.add("b", "gw2")
        site.attach()
        _, page = await site.attach(gateway="gw2").page()
        assert [each.device for each in page.entries] == ["b"]
        assert list(site.downlink.refused) == [("acme", "gw1")]

    run(scenario)


def test_a_document_that_cannot_be_read_is_refused_alone(run: Callable[[Scenario], None]) -> None:
    async def scenario(site: DownlinkSite) -> None:
        for name in ("a", "b"):
            site.add(name)
        engine = sa.create_engine(site.url)
        with engine.begin() as tx:
            tx.execute(sa.text("UPDATE devices SET document = '{' WHERE device = 'a'"))
        engine.dispose()
        _, page = await site.attach().page()
        assert [(each.device, each.enabled) for each in page.entries] == [("a", False), ("b", True)]

    run(scenario)


def test_a_gateway_that_is_always_out_of_step_rests(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downlink, "REFUSED_REST_S", 3_600.0)

    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        line = site.attach()
        for _ in range(2):
            tag, _ = await line.page()
            site.answer(line, tag, ForwardOutcome.REJECTED, out_of_step("?"))
        site.add("b", "gw2")
        await site.attach(gateway="gw2").page()
        assert line.sent.empty()

    run(scenario)


def test_a_gateway_that_wants_all_gets_all(run: Callable[[Scenario], None]) -> None:
    async def scenario(site: DownlinkSite) -> None:
        site.add("a")
        _, first = await site.attach().page()
        _, again = await site.attach(first.cursor, **{RESTART: "1"}).page()
        assert ([each.device for each in again.entries], again.range is not None) == (["a"], True)

    run(scenario)


@pytest.mark.parametrize("position", ['[1,"\\u0000"]', '[1,null,"a b"]'])
def test_positions_are_names_of_devices(position: str) -> None:
    cursor = read_cursor(f'{{"registry":"r","tenants":{{"acme":{position}}}}}', "r")
    assert cursor.tenants["acme"].revision == 0
