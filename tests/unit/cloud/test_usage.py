"""Recording of what tenants land: each message once, also after a registry that failed, and at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from cloud.hub import usage
from cloud.hub.fleet import FleetState, TenantFigures
from cloud.hub.registry.usage import TenantAmount
from cloud.hub.usage import DAY_US, UsageRecorder
from cloud.lake.faults import RegistryError


class FailingRegistry:
    """Registry that adds up what it gets, unless it fails."""

    def __init__(self) -> None:
        self.usage = self
        self.fails = False
        self.days: dict[tuple[int, str], tuple[int, int]] = {}

    def add(self, day: int, amounts: list[TenantAmount]) -> None:
        for tenant, messages, size in amounts:
            before = self.days.get((day, tenant), (0, 0))
            self.days[day, tenant] = (before[0] + messages, before[1] + size)

    async def write(self, work: Callable[[Any], None]) -> None:
        if self.fails:
            raise RegistryError("the registry cannot be used: it is away")
        work(self)


def test_stop_during_a_write_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "USAGE_WRITE_S", 0.0)
    fleet, registry = FleetState(), FailingRegistry()
    figures = fleet.tenants["acme"] = TenantFigures()
    figures.rows, figures.bytes = 100, 1_000

    async def run() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def on_thread(work: Callable[[Any], None]) -> None:
            begun.set()
            await goes_on.wait()
            await registry.write(work)

        async def write(work: Callable[[Any], None]) -> None:
            await asyncio.shield(asyncio.get_running_loop().create_task(on_thread(work)))  # a thread is not cancelled

        recorder = UsageRecorder(fleet, cast(Any, write), lambda: 20_000 * DAY_US)
        recorder.start()
        await begun.wait()
        figures.rows, figures.bytes = 101, 1_010
        closing = asyncio.create_task(recorder.close())
        await asyncio.sleep(0)
        goes_on.set()
        await closing

    asyncio.run(run())
    assert registry.days == {(20_000, "acme"): (101, 1_010)}


def test_each_message_counts_once() -> None:
    fleet, registry, now = FleetState(), FailingRegistry(), [20_000 * DAY_US]
    figures = fleet.tenants["acme"] = TenantFigures()

    async def run() -> None:
        recorder = UsageRecorder(fleet, cast(Any, registry.write), lambda: now[0])
        recorder.start()
        figures.rows, figures.bytes = 5, 500
        await recorder.write()
        await recorder.write()
        registry.fails = True
        figures.rows, figures.bytes = 7, 700
        await recorder.write()
        registry.fails = False
        now[0] += DAY_US
        figures.rows, figures.bytes = 8, 800
        await recorder.write()
        figures.rows, figures.bytes = 9, 900
        await recorder.close()
        await recorder.close()

    asyncio.run(run())
    assert registry.days == {(20_000, "acme"): (5, 500), (20_001, "acme"): (4, 400)}
