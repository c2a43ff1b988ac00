"""Campaigns of a hub on the event loop: what a look examines, limits of requests, and what is logged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from cloud.hub.campaigns import service as module
from cloud.hub.campaigns.documents import NewCampaign
from cloud.hub.campaigns.limits import NOTE_CHARACTERS_MAX, PATTERNS_MAX, SECONDS_MAX, SETTLING_S
from cloud.hub.campaigns.service import CampaignsBusy, HubCampaigns
from cloud.hub.registry import campaign_sending
from cloud.hub.registry.campaigns import CampaignRecord, Campaigns
from cloud.hub.registry.database import Database
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.rollout import RolloutState
from cloud.lake.faults import RegistryError
from tests.support.campaign_site import CampaignSite


@pytest.fixture
def url(tmp_path: Path) -> sa.URL:
    return sqlite_url(tmp_path / "registry.db")


def prepare(url: sa.URL, work: Callable[[CampaignSite], None]) -> None:
    """Fill the registry, with the time of the registry as that of the site."""
    with contextlib.closing(open_registry(url).database) as database:
        site = CampaignSite(database)
        site.now = Campaigns(database).now_us() // 1_000_000
        site.store("1.1.0", 11)
        site.store("1.2.0", 12)
        for name in "abcd":
            site.register(name, "hall")
        work(site)


def with_service(url: sa.URL, work: Callable[[HubCampaigns], Awaitable[None]]) -> None:
    """Run `work` with a service that makes no look of its own."""

    async def main() -> None:
        service = HubCampaigns(url)
        await service.open()
        await service._advancing.stop()  # it has not started
        try:
            await work(service)
        finally:
            await service.close()

    asyncio.run(main())


def test_more_requests_than_allowed_are_refused(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES_MAX", 1)

    async def work(service: HubCampaigns) -> None:
        first, second = await asyncio.gather(
            service.read(lambda _: 1), service.change(lambda _: 2), return_exceptions=True
        )
        assert first == 1
        assert isinstance(second, CampaignsBusy)
        assert await service.change(lambda _: 2) == 2

    with_service(url, work)


def test_one_look_makes_a_limited_number_of_steps(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(campaign_sending, "SENT_AT_ONCE", 1)
    names: list[str] = []
    prepare(url, lambda site: names.append(site.start()))

    async def work(service: HubCampaigns) -> None:
        def sent(database: Database) -> int:
            return sum(each.member.sent_at > 0 for each in Campaigns(database).members(names[0], None, "", 9))

        counts = []
        for _ in range(2):
            await service.look()
            counts.append(await service.read(sent))
        assert counts == [2, 4]

    with_service(url, work)


def test_campaigns_that_are_done_take_turns(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub with many of them examines some in each look, and those that run in every one."""
    monkeypatch.setattr(module, "DONE_AT_ONCE_MAX", 2)
    done: list[str] = []
    running: list[str] = []

    def fill(site: CampaignSite) -> None:
        for name in "abc":
            done.append(site.start(name, version="1.1.0"))
            site.report(name, "healthy", version="1.1.0")
            assert site.run(done[-1]).state is RolloutState.DONE
        running.append(site.start("d"))

    prepare(url, fill)
    seen: list[str] = []
    original = Campaigns.has_step

    def has_step(campaigns: Campaigns, name: str, *, settling: bool) -> bool:
        seen.append(name)
        return original(campaigns, name, settling=settling)

    monkeypatch.setattr(Campaigns, "has_step", has_step)
    service = HubCampaigns(url)
    with contextlib.closing(open_registry(url).database) as database:
        for _ in range(3):
            before = len(seen)
            service._due(database)
            looked = seen[before:]
            assert looked[0] == running[0]
            assert len(looked) == 3
    assert all(seen.count(each) == 2 for each in done)


def test_each_halted_campaign_is_logged_once(
    url: sa.URL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those beyond the number that is shown."""
    monkeypatch.setattr(module, "HALTED_SHOWN_MAX", 1)
    names: list[str] = []

    def fill(site: CampaignSite) -> None:
        for name, version in (("a", "1.1.0"), ("b", "1.2.0")):
            names.append(site.start(name, version=version))
            site.run(names[-1])
            site.report(name, "rolled-back", version=version, reason="no boot")
            site.run(names[-1])
            if version == "1.1.0":
                site.database.transaction(lambda tx: tx.exec_driver_sql("UPDATE campaigns SET name = 'other'"))

    prepare(url, fill)

    async def work(service: HubCampaigns) -> None:
        for _ in range(3):
            await service.look()
        assert len(service.halted) == 1
        assert service.figures[RolloutState.HALTED] == 2

    with caplog.at_level(logging.ERROR, module.__name__):
        with_service(url, work)
    logged = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert sorted(each.split()[1] for each in logged) == sorted(names)


def test_silence_is_judged_some_time_after_the_start_and_each_fault(
    url: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    seen: list[bool] = []

    faults: list[Exception] = []

    def has_step(campaigns: Campaigns, name: str, *, settling: bool) -> bool:
        seen.append(settling)
        return False

    def going(campaigns: Campaigns) -> list[CampaignRecord]:
        if faults:
            raise faults.pop()
        return []

    names: list[str] = []
    prepare(url, lambda site: names.append(site.start()))
    monkeypatch.setattr(Campaigns, "has_step", has_step)
    monkeypatch.setattr(Campaigns, "going", going)

    async def fail(service: HubCampaigns, fault: Exception) -> None:
        faults.append(fault)
        with pytest.raises(type(fault)):
            await service.look()

    async def work(service: HubCampaigns) -> None:
        await service.look()
        now[0] += SETTLING_S
        await fail(service, RegistryError("away"))
        await service.look()
        now[0] += SETTLING_S
        await fail(service, ValueError("internal error of one campaign"))
        await service.look()
        assert seen == [True, False, True, False, False]

    with_service(url, work)


def test_old_campaigns_are_deleted(url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.campaigns.CAMPAIGNS_KEPT", 1)
    names: list[str] = []

    def fill(site: CampaignSite) -> None:
        for _ in range(3):
            site.now += 1
            names.append(site.start("a"))
            site.campaigns.stop(names[-1])

    prepare(url, fill)

    async def work(service: HubCampaigns) -> None:
        await service.look()
        left = await service.read(lambda database: Campaigns(database).page(None, None, 9))
        assert [each.id for each in left] == names[2:]

    with_service(url, work)


@pytest.mark.parametrize(
    ("field", "most", "more"),
    [
        ("devices", ["*"] * PATTERNS_MAX, ["*"] * (PATTERNS_MAX + 1)),
        ("note", "n" * NOTE_CHARACTERS_MAX, "n" * (NOTE_CHARACTERS_MAX + 1)),
        ("soak_s", SECONDS_MAX, SECONDS_MAX + 1),
        ("away_s", SECONDS_MAX, SECONDS_MAX + 1),
    ],
)
def test_limits_of_a_request(field: str, most: Any, more: Any) -> None:
    new = {"artefact": "blinker", "version": "1.2.0"}
    assert getattr(msgspec.convert({**new, field: most}, NewCampaign), field) == most
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**new, field: more}, NewCampaign)
