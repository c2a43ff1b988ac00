"""Tap of the lake: each landed message reaches the topic once, in order, whatever fails and whoever takes over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.taps import RegistryTaps, TapName, TapRecord
from cloud.hub.tap.lake_tap import LakeTap
from cloud.hub.tap.landed_log import LandedLog, TapPosition
from cloud.hub.tap.limits import SEEN_S, SILENT_S
from cloud.lake.commits import no_failpoint
from cloud.lake.lake import TransactionId
from cloud.lake.rows import slices_of, telemetry_rows
from cloud.lake.sequences import SequenceStream
from cloud.lake.tables import LakeTable
from cloud.place.folder import Folder
from tests.contract.registry.landings import batch
from tests.support.feeding import running
from tests.support.memory_topic import STEPS, MemoryBrokers, MemoryTopic

PUMP: Final = SequenceStream("acme", "hall", "e" * 32, "plant/pump")
HERE, THERE = "a" * 32, "b" * 32
BYTES_MAX: Final = 100_000
APPLICATION: Final = "waypost/registry/writer/telemetry"


class World:
    """Table of a lake, brokers, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = LakeTable.open(folder / "lake", "telemetry", failpoint=no_failpoint)
        self.log = LandedLog(Folder(folder / "lake").at("telemetry"))
        self.name = TapName(self.log.identity(), "telemetry", "topic")
        self.brokers = MemoryBrokers()
        self.now_us = 1_000_000_000
        self.landed = 0
        self.commit = 0

    def land(self, count: int = 3, *, as_landing: bool = True) -> None:
        """Land the next messages of the pump."""
        received = batch(PUMP, self.landed, self.landed + count - 1)
        slices = slices_of(received, [[(self.landed, self.landed + count - 1)]])
        self.commit += 1
        transaction = TransactionId(APPLICATION, self.commit) if as_landing else None
        self.table.append(telemetry_rows(slices, self.now_us), transaction)
        self.landed += count if as_landing else 0

    async def pause(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)
        await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def tap(self, hub: str = HERE, bytes_max: int = BYTES_MAX) -> AsyncIterator[asyncio.Task[None]]:
        """Run the tap of a hub in the block."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as executor:
            taps = await loop.run_in_executor(executor, RegistryTaps, sqlite_url(self.folder / "registry.db"))
            tap = LakeTap(
                *(self.name, hub, self.log, taps, MemoryTopic(self.brokers)),
                bytes_max=bytes_max, executor=executor, now_us=lambda: self.now_us, pause=self.pause,
            )  # fmt: skip
            task = loop.create_task(tap.run())
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.wait((task,))
                await loop.run_in_executor(executor, taps.close)

    def record(self) -> TapRecord | None:
        with contextlib.closing(RegistryTaps(sqlite_url(self.folder / "registry.db"))) as taps:
            return taps.read(self.name)

    async def until(self, condition: Callable[[TapRecord], object]) -> TapRecord:
        """Wait until the state in the registry fits."""
        async with asyncio.timeout(30):
            while (record := await asyncio.to_thread(self.record)) is None or not condition(record):
                await asyncio.sleep(0.01)
        return record

    async def begun(self) -> None:
        """Wait until a tap is claimed."""
        await self.until(lambda record: record.holder is not None)

    async def arrived(self) -> None:
        """Wait until everything that landed has arrived."""
        async with asyncio.timeout(30):
            while len(self.brokers.records) < self.landed:
                self.brokers.changed.clear()
                await self.brokers.changed.wait()

    @property
    def sequences(self) -> list[int]:
        return [int(dict(record.headers)["waypost-sequence"]) for record in self.brokers.records]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@running
async def test_what_lands_from_the_first_claim_on_is_passed_on_in_order(world: World) -> None:
    world.land()
    world.landed = 0
    before = world.table.version
    async with world.tap():
        await world.begun()
        world.land(4)
        world.land(2)
        await world.arrived()
        await world.until(lambda record: record.records == 6)
    assert world.sequences == [0, 1, 2, 3, 4, 5]
    first = world.brokers.records[0]
    assert (first.key, first.value) == (b"acme/hall", b"x")
    headers = dict(first.headers)
    assert (headers["waypost-tenant"], headers["waypost-gateway"]) == (b"acme", b"hall")
    assert (headers["waypost-epoch"], headers["waypost-address"]) == (b"e" * 32, b"plant/pump")
    record = world.record()
    assert record is not None
    assert (record.version, record.records, record.holder) == (before + 2, 6, None)


@running
async def test_versions_that_land_nothing_are_left_out(world: World) -> None:
    async with world.tap():
        await world.begun()
        world.land(as_landing=False)  # a job that rewrites rows
        world.table.settled(TransactionId(APPLICATION, 50))  # a fence
        world.commit = 50
        world.land()
        await world.arrived()
    assert world.sequences == [0, 1, 2]


@pytest.mark.parametrize("step", STEPS)
@running
async def test_connection_that_breaks_leaves_nothing_out_and_repeats_nothing(world: World, step: str) -> None:
    async with world.tap():
        await world.begun()
        world.brokers.failing = [step, step]
        if step == "opened":
            world.brokers.failing.insert(0, "sent")
        for _ in range(3):
            world.land()
        await world.arrived()
        record = await world.until(lambda record: record.records >= 9 or step == "committed")
    assert world.sequences == list(range(9))
    assert not world.brokers.failing
    assert record.trouble == "" or step == "committed"


@running
async def test_brokers_that_are_away_leave_the_tap_to_others_and_say_since_when(world: World) -> None:
    async with world.tap():
        await world.begun()
        world.brokers.away = True
        world.land()
        record = await world.until(lambda record: record.waiting_since is not None and record.holder is None)
        assert "no broker answers" in record.trouble
        assert record.newest == record.version + 1
        world.land()
        world.brokers.away = False
        await world.arrived()
        await world.until(lambda record: not record.trouble and record.waiting_since is None)
    assert world.sequences == list(range(6))


@running
async def test_next_hub_continues(world: World) -> None:
    async with world.tap(HERE):
        await world.begun()
        world.land()
        await world.arrived()
    world.land()
    async with world.tap(THERE):
        await world.arrived()
        await world.until(lambda record: record.holder == THERE)
    assert world.sequences == list(range(6))


@pytest.mark.parametrize("step", ["began", "sent", "committing", "committed"])
@running
async def test_hub_that_stands_still_is_replaced_and_writes_nothing_more(world: World, step: str) -> None:
    """A hub is suspended in the middle of a transaction; another one takes over; the first one goes on."""
    async with world.tap(HERE):
        await world.begun()

        async def stand_still() -> None:
            world.now_us += int(SILENT_S * 1e6)
            async with world.tap(THERE):
                await world.arrived()
                await world.until(lambda record: record.holder == THERE)

        world.brokers.steps[step] = stand_still
        world.land()
        world.land()
        async with asyncio.timeout(30):
            while step in world.brokers.steps:
                await asyncio.sleep(0.01)
        world.land()
        await world.arrived()
    assert world.sequences == list(range(9))


@running
async def test_position_of_the_topic_counts_before_that_of_the_registry(world: World) -> None:
    """A hub that ended between the two, or a registry that is an older copy, repeats nothing."""
    async with world.tap():
        await world.begun()
        world.land()
        await world.arrived()
        before = await world.until(lambda record: record.records == 3)
    world.land()
    landed = world.log.read(before.version + 1)
    assert landed is not None
    world.brokers.position = landed.position  # of a hub that has committed, and then ended
    world.landed = 3
    world.commit += 1
    async with world.tap(THERE):
        await world.until(lambda record: record.version == landed.position.version)
    assert world.sequences == [0, 1, 2]


@running
async def test_topic_without_a_position_continues_after_that_of_the_registry(world: World) -> None:
    async with world.tap():
        await world.begun()
        world.land()
        await world.arrived()
        await world.until(lambda record: record.records == 3)
    world.brokers.position = None
    async with world.tap():
        world.land()
        await world.arrived()
    assert world.sequences == list(range(6))


@running
async def test_claim_is_renewed_during_silence(world: World) -> None:
    async with world.tap():
        await world.begun()
        began_us = world.now_us
        record = await world.until(lambda record: record.seen_at >= began_us + 3 * SEEN_S * 1e6)
    assert record.holder == HERE


@running
async def test_lost_version_is_not_skipped(world: World) -> None:
    async with world.tap():
        await world.begun()
        world.brokers.away = True
        world.land()
        await world.until(lambda record: record.trouble)
    entry = world.table.version
    world.land()
    log = world.folder / "lake" / "telemetry" / "_delta_log"
    (log / f"{entry:020}.json").unlink()
    (log / "_last_checkpoint").write_text(f'{{"version":{entry},"size":1}}')
    world.brokers.away = False
    async with world.tap():
        record = await world.until(lambda record: "any more" in record.trouble)
    assert record.version == entry - 1
    assert world.sequences == []


@running
async def test_lost_data_file_is_not_skipped(world: World) -> None:
    async with world.tap():
        await world.begun()
        world.brokers.away = True
        world.land()
        await world.until(lambda record: record.trouble)
    for file in (world.folder / "lake" / "telemetry").rglob("ingest_date=*/*.parquet"):
        file.unlink()
    world.brokers.away = False
    async with world.tap():
        await world.until(lambda record: "data file" in record.trouble)
    assert world.sequences == []


@running
async def test_restored_lake_is_noticed(world: World) -> None:
    """The same version number stands for other messages than those that were passed on."""
    async with world.tap():
        await world.begun()
        world.land()
        await world.arrived()
        record = await world.until(lambda record: record.records == 3)
    world.brokers.position = TapPosition(record.version, "0" * 64)
    world.land()
    async with world.tap():
        await world.until(lambda record: "restored" in record.trouble)
    assert world.sequences == [0, 1, 2]


@running
async def test_lake_that_is_older_than_the_topic_is_noticed(world: World) -> None:
    world.brokers.position = TapPosition(world.table.version + 5, "")
    async with world.tap():
        await world.until(lambda record: "restored" in record.trouble)


@running
async def test_message_larger_than_the_topic_accepts_is_passed_on_without_its_body(world: World) -> None:
    async with world.tap(bytes_max=10):
        await world.begun()
        world.land(1)
        await world.arrived()
    record = world.brokers.records[0]
    assert record.value is None
    assert int(dict(record.headers)["waypost-left-out"]) > 10
    assert dict(record.headers)["waypost-sequence"] == b"0"
