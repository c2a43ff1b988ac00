"""Tap of a hub: what it shows of the state in the registry, and a process that ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.connectors.settings import Mechanism
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.taps import RegistryTaps, TapName, TapRecord
from cloud.hub.tap import service
from cloud.hub.tap.job import TapJob
from cloud.hub.tap.limits import LATE_S, SILENT_S
from cloud.hub.tap.service import HubTap, TapFigures
from cloud.hub.tap.topic_settings import TopicSettings
from tests.support.feeding import running

HERE = "a" * 32
NAME = TapName("lake", "telemetry", "topic")
SECOND_US = 1_000_000
NOW_US = 1_000_000 * SECOND_US


class Site:
    """Tap of a hub. Its process cannot do the job, as the lake is missing."""

    def __init__(self, folder: Path) -> None:
        self.url = sqlite_url(folder / "registry.db")
        topic = TopicSettings((("127.0.0.1", 1),), "topic", Mechanism.PLAIN, 1 << 20)
        job = TapJob(HERE, str(folder / "missing"), "telemetry", str(self.url), topic)
        self.now_us = NOW_US
        self.tap = HubTap(job, "lake", self.url, lambda: self.now_us)

    def put(self, **changes: object) -> None:
        """Write a state to the registry."""
        begin = TapRecord(0, None, NOW_US, 7, "", 7, None, 0, "")
        with contextlib.closing(RegistryTaps(self.url)) as taps:
            made = taps.claim(NAME, HERE, begin, 0)
            assert made is not None
            assert taps.advance(NAME, made, made._replace(**changes)) is not None  # type: ignore[arg-type]

    async def figures(self, condition: Callable[[TapFigures], object]) -> TapFigures:
        """Return the figures when they fit."""
        self.tap.start()
        try:
            async with asyncio.timeout(30):
                while not condition(self.shown):
                    await asyncio.sleep(0.01)
        finally:
            await self.tap.stop()
        return self.shown

    @property
    def shown(self) -> TapFigures:
        figures = self.tap.figures
        assert figures is not None
        return figures


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@running
async def test_state_without_a_delay_is_no_problem(site: Site) -> None:
    site.put(version=9, newest=9, records=40)
    figures = await site.figures(lambda figures: figures.hub)
    assert figures == TapFigures("topic", HERE, 9, 0, 40, 0.0, "")
    assert site.tap.problem is None


@running
async def test_messages_that_wait_are_a_problem_after_a_while(site: Site) -> None:
    site.put(newest=12, waiting_since=NOW_US, trouble="no broker answers", holder=None)
    await site.figures(lambda figures: figures.trouble)
    site.put(newest=12, waiting_since=NOW_US, trouble="no broker answers", holder=None, seen_at=NOW_US)
    site.now_us = NOW_US + int(SILENT_S / 2) * SECOND_US
    assert site.shown.versions_behind == 5
    assert site.shown.lag_s == SILENT_S / 2
    assert site.tap.problem is None
    site.now_us = NOW_US + int(LATE_S + 1) * SECOND_US
    assert site.tap.problem is not None
    assert "no broker answers" in site.tap.problem


@running
async def test_tap_that_no_hub_serves_is_a_problem(site: Site) -> None:
    site.put()
    await site.figures(lambda figures: figures.hub)
    site.now_us = NOW_US + int(LATE_S + 1) * SECOND_US
    assert site.shown.lag_s == LATE_S + 1
    assert site.tap.problem is not None


def test_tap_that_was_never_claimed_is_a_problem_after_a_while(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.tap.problem is None
    site.now_us += int(LATE_S + 1) * SECOND_US
    assert site.tap.problem is not None


@running
async def test_process_that_ends_is_started_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "RESTART_S", 0.01)
    site.tap.start()
    async with asyncio.timeout(50):
        while caplog.text.count("started again") < 2:
            await asyncio.sleep(0.01)
    await site.tap.stop()


@running
async def test_tap_without_a_topic_does_nothing(tmp_path: Path) -> None:
    tap = HubTap(None, "lake", sqlite_url(tmp_path / "registry.db"), lambda: 0)
    tap.start()
    assert tap.figures is None
    assert tap.problem is None
    await tap.stop()
    assert list(tmp_path.iterdir()) == []
