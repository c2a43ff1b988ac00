"""Reads of the registry for pages: not too many wait, and a failure is the answer to all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cloud.hub.bounded_reads import FAILED_S, BoundedReads, ReadsBusy
from cloud.hub.registry.database import Database
from cloud.hub.registry.location import sqlite_url
from cloud.lake.faults import RegistryError


class World:
    """Reads with a clock."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.reads = BoundedReads("pages", sqlite_url(folder / "registry.db"), 2, lambda: self.now_s)
        self.attempts = 0

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.reads.open()
            try:
                await work()
            finally:
                await self.reads.close()

        asyncio.run(main())

    def fail(self, _database: Database) -> None:
        self.attempts += 1
        raise RegistryError("away")


def test_reads_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    world, goes_on = World(tmp_path), threading.Event()

    async def work() -> None:
        waiting = [asyncio.ensure_future(world.reads.run(lambda _database: goes_on.wait(60))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ReadsBusy):
            await world.reads.run(lambda _database: None)
        goes_on.set()
        await asyncio.gather(*waiting)
        assert await world.reads.run(lambda _database: 7) == 7

    world.run(work)


def test_places_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    reads = World(tmp_path).reads
    with reads.hold(), reads.hold(), pytest.raises(ReadsBusy), reads.hold():
        pass
    with reads.hold():
        pass


def test_failure_is_the_answer_to_those_that_wait(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def work() -> None:
        found = await asyncio.gather(*(world.reads.run(world.fail) for _ in range(2)), return_exceptions=True)
        assert [str(each) for each in found] == ["away", "away"]
        with pytest.raises(RegistryError):
            await world.reads.run(lambda _database: None)
        assert world.attempts == 1
        world.now_s += FAILED_S
        assert await world.reads.run(lambda _database: 7) == 7

    world.run(work)
