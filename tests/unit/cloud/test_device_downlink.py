"""Sending of devices to gateways: pages, answers, refusals, and gateways that connect again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from bridge import plain
from bridge.device_pages import CURSOR, RESTART, DevicePage, out_of_step, read_page, read_signed, to_sign
from bridge.forwarders.outcome import ForwardOutcome
from cloud.hub.devices import downlink, page_sources
from cloud.hub.devices.downlink import DeviceDownlink
from cloud.hub.devices.page_sources import (
    FoundPage,
    GatewayPosition,
    OwnPages,
    PageRefused,
    PagesBusy,
    PagesUnavailable,
)
from cloud.hub.devices.pages import read_cursor, sign_page
from cloud.hub.registry.device_changes import DeviceCursor
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.lake.faults import RegistryError
from tests.support.loop_wait import until
from tests.support.registered_devices import RegisteredRows

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
        self.add = RegisteredRows(url).add
        reader = RegistryThread("devices-of-gateways", database_of(url, reading=True))
        self.downlink = DeviceDownlink(url, reader, OwnPages(reader, lambda statement: statement[::-1]))

    def answer(self, line: FakeLine, tag: int, outcome: ForwardOutcome, why: str = "") -> None:
        line.credit = 1
        self.downlink.settled(line, tag, outcome, why)  # type: ignore[arg-type]
        self.downlink.ready(line)  # type: ignore[arg-type]

    def attach(self, cursor: str = "", gateway: str = "gw1", **more: str) -> FakeLine:
        line = FakeLine(cursor, gateway, **more)
        self.downlink.ready(line)  # type: ignore[arg-type]
        return line


class HeldPages:
    """Source of pages that a test gives."""

    def __init__(self) -> None:
        self.asked: dict[str, asyncio.Future[FoundPage]] = {}
        """Pages that are awaited, by gateway."""
        self.count = 0

    async def next_page(self, position: GatewayPosition) -> FoundPage:
        self.count += 1
        name = position.gateway[1]
        future = self.asked[name] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            if self.asked.get(name) is future:
                del self.asked[name]

    def give(self, gateway: str) -> None:
        page = DevicePage(tenant="acme", gateway=gateway, base="", cursor="c", devices_of="acme")
        body = sign_page(page, lambda statement: statement[::-1])
        self.asked[gateway].set_result(FoundPage(page, body, DeviceCursor()))

    def fail(self, gateway: str, error: Exception) -> None:
        self.asked[gateway].set_exception(error)


class HeldSite(DownlinkSite):
    """Downlink with such a source."""

    def __init__(self, url: sa.URL) -> None:
        super().__init__(url)
        self.pages = HeldPages()
        self.downlink = DeviceDownlink(
            url, RegistryThread("devices-of-gateways", database_of(url, reading=True)), self.pages
        )


Scenario = Callable[[DownlinkSite], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Return a function that runs a scenario with an open downlink."""
    monkeypatch.setattr(downlink, "FOLLOW_INTERVAL_S", 0.05)

    return lambda scenario: asyncio.run(_opened(DownlinkSite(sqlite_url(tmp_path / "registry.db")), scenario))


@pytest.fixture
def run_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[HeldSite], Any]], None]:
    """Return a function that runs a scenario in which pages come late."""
    monkeypatch.setattr(downlink, "FOLLOW_INTERVAL_S", 0.05)
    return lambda scenario: asyncio.run(_opened(HeldSite(sqlite_url(tmp_path / "registry.db")), scenario))


async def _opened(site: Any, scenario: Callable[[Any], Awaitable[None]]) -> None:
    await site.downlink.open()
    try:
        await scenario(site)
    finally:
        await site.downlink.close()


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
    made = page_sources.make_page

    def make(key: tuple[str, str], *rest: Any) -> Any:
        if key[1] == "gw1":
            raise ValueError("a damaged row")
        return made(key, *rest)

    monkeypatch.setattr(page_sources, "make_page", make)

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


class TestLatePages:
    """Another process signs the pages."""

    def test_many_are_awaited_at_a_time(self, run_held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(downlink, "PAGES_AT_ONCE_MAX", 2)

        async def scenario(site: HeldSite) -> None:
            lines = {name: site.attach(gateway=name) for name in ("gw1", "gw2", "gw3")}
            await until(lambda: site.pages.asked.keys() == {"gw1", "gw2"})
            site.pages.give("gw2")
            tag, _ = await lines["gw2"].page()
            await until(lambda: site.pages.asked.keys() == {"gw1", "gw3"})
            site.answer(lines["gw2"], tag, ForwardOutcome.ACCEPTED)
            lines["gw4"] = site.attach(gateway="gw4")
            for _ in range(2 * len(lines)):  # there are more pages for all, and each gateway has its turn
                await until(lambda: len(site.pages.asked) == 2)
                if "gw4" in site.pages.asked:
                    break
                name = next(iter(site.pages.asked))
                site.pages.give(name)
                tag, _ = await lines[name].page()
                site.answer(lines[name], tag, ForwardOutcome.ACCEPTED)
            assert "gw4" in site.pages.asked

        run_held(scenario)

    def test_a_page_of_an_ended_link_is_not_sent(self, run_held: Any) -> None:
        async def scenario(site: HeldSite) -> None:
            line = site.attach()
            await until(lambda: site.pages.asked)
            site.downlink.ended(line)  # type: ignore[arg-type]
            await until(lambda: not site.pages.asked)
            first = site.attach()
            await until(lambda: site.pages.asked)
            second = site.attach()  # before the end of the first link is known
            await until(lambda: site.pages.count == 3)
            site.pages.give("gw1")
            await second.page()
            assert line.sent.empty()
            assert first.sent.empty()

        run_held(scenario)

    def test_a_page_without_credit_is_made_again(self, run_held: Any) -> None:
        async def scenario(site: HeldSite) -> None:
            line = site.attach()
            await until(lambda: site.pages.asked)
            line.credit = 0
            site.pages.give("gw1")
            await until(lambda: not site.pages.asked)
            assert line.sent.empty()
            line.credit = 1
            site.downlink.ready(line)  # type: ignore[arg-type]
            await until(lambda: site.pages.count == 2)

        run_held(scenario)

    def test_one_is_asked_for_until_pages_come_again(self, run_held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(downlink, "UNSIGNED_REST_S", 0.02)

        async def scenario(site: HeldSite) -> None:
            lines = [site.attach(gateway=name) for name in ("gw1", "gw2", "gw3")]
            await until(lambda: len(site.pages.asked) == 3)
            for name in list(site.pages.asked):
                site.pages.fail(name, PagesUnavailable("no process signs"))
            for count in (4, 5):
                await until(lambda count=count: site.pages.count == count)
                (asked,) = site.pages.asked
                assert site.downlink.unsigned == "no process signs"
                site.pages.fail(asked, PagesUnavailable("no process signs"))
            await until(lambda: site.pages.count == 6)
            (asked,) = site.pages.asked
            site.pages.give(asked)
            await until(lambda: len(site.pages.asked) == 2)
            assert site.downlink.unsigned is None
            assert site.downlink.refused == {}
            assert sum(not each.sent.empty() for each in lines) == 1

        run_held(scenario)

    def test_nothing_is_reported_once_no_gateway_waits(self, run_held: Any) -> None:
        async def scenario(site: HeldSite) -> None:
            line = site.attach()
            await until(lambda: site.pages.asked)
            site.pages.fail("gw1", PagesUnavailable("no process signs"))
            await until(lambda: site.downlink.unsigned)
            site.downlink.ended(line)  # type: ignore[arg-type]
            await until(lambda: site.downlink.unsigned is None)

        run_held(scenario)

    def test_a_refused_gateway_rests_alone(self, run_held: Any) -> None:
        async def scenario(site: HeldSite) -> None:
            site.attach()
            await until(lambda: site.pages.asked)
            site.pages.fail("gw1", PageRefused("no page"))
            other = site.attach(gateway="gw2")
            await until(lambda: "gw2" in site.pages.asked)
            site.pages.give("gw2")
            await other.page()
            assert site.downlink.refused == {("acme", "gw1"): "no page"}
            assert site.downlink.unsigned is None

        run_held(scenario)

    @pytest.mark.parametrize("error", [RegistryError("away"), PagesBusy()], ids=repr)
    def test_a_page_that_comes_later_is_no_trouble(self, run_held: Any, error: Exception) -> None:
        async def scenario(site: HeldSite) -> None:
            line = site.attach()
            await until(lambda: site.pages.asked)
            site.pages.fail("gw1", error)
            await until(lambda: site.pages.count == 2)
            site.pages.give("gw1")
            await line.page()
            assert (site.downlink.refused, site.downlink.unsigned) == ({}, None)

        run_held(scenario)


@pytest.mark.parametrize("position", ['[1,"\\u0000"]', '[1,null,"a b"]'])
def test_positions_are_names_of_devices(position: str) -> None:
    cursor = read_cursor(f'{{"registry":"r","tenants":{{"acme":{position}}}}}', "r")
    assert cursor.tenants["acme"].revision == 0
