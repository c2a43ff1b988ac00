"""The committer: its answers, their time, and its behaviour while the hub cannot land."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from bridge.batch import decode, encode
from bridge.lane import BatchLane
from bridge.message import Run, Stored
from cloud.hub.committer import Committer
from cloud.hub.documents import presence_row
from cloud.hub.groups import (
    ClockOffsetRows,
    GatewayLineage,
    GatewaySession,
    GroupReport,
    Key,
    LandingGroup,
    LandingOutcome,
    LedgerDocument,
    Manifest,
    Presence,
    StoredState,
)
from cloud.hub.lander import Lander
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from cloud.lake.delta import DeltaLake
from cloud.lake.faults import LakeError, RegistryError
from cloud.lake.landing import HubLossReason, LandedRanges, Landing, LedgerRange, UnreadableContent
from cloud.lake.limits import CHECKPOINT_EVERY, QUIET_BYTES_MIN, RETRY_S_MAX
from cloud.lake.rows import ReceivedBatch, telemetry_rows
from cloud.place.folder import Folder
from tests.support.lake import rows
from tests.support.loop_wait import until


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.committer.RETRY_S_FIRST", 0.01)
    monkeypatch.setattr("cloud.hub.committer.RETRY_S_MAX", 0.05)
    monkeypatch.setattr("cloud.hub.committer.HELD_RETRY_S_MAX", 0.05)


def open_registry(directory: Path, writer: str = "this hub") -> Registry:
    return Registry(sqlite_url(directory / "registry.db"), writer)


class Bench:
    """A committer on a real lake; failures are injected at the failpoints of the landing."""

    def __init__(self, directory: Path, gather_ms: int = 5) -> None:
        self.directory = directory
        self.replicas = 1
        self.presences = 0
        """Transactions of connections."""
        self.fail: Callable[[str], None] = lambda step: None
        self.reports: list[GroupReport] = []
        self.answers: list[tuple[str, LandingOutcome]] = []
        self.executor, self.checkpoints = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.executor.submit(self.open).result()
        self.committer = Committer(
            Lander(self.registry, self.landing, clock=time.perf_counter),
            loop=asyncio.get_running_loop(),
            executor=self.executor,
            now_us=lambda: time.time_ns() // 1_000,
            gather_ms=gather_ms,
        )
        self.committer.follow_replicas(lambda: self.replicas)
        self.committer.reported.append(self.report)

    def open(self) -> None:
        """Open the registry and the lake on the thread that uses them."""
        self.registry = open_registry(self.directory)
        write = self.registry.directory.presence

        def presence(changes: Mapping[Key, Presence]) -> dict[Key, StoredState]:
            self.presences += 1
            return write(changes)

        self.registry.directory.presence = presence  # type: ignore[method-assign]
        start = self.checkpoints.submit
        lake = DeltaLake(self.directory / "lake", failpoint=self.failpoint, start=start)
        self.landing = Landing(lake, self.registry.commits, failpoint=self.failpoint)

    def failpoint(self, step: str) -> None:
        self.fail(step)

    def report(self, group: LandingGroup, report: GroupReport) -> None:
        self.reports.append(report)

    def session(self, gateway: str = "gw1") -> GatewaySession:
        session = GatewaySession("default", gateway, "-")
        self.committer.connect(session)
        return session

    def send(
        self,
        session: GatewaySession,
        name: str,
        first: int = 0,
        count: int = 3,
        address: str = "a",
        properties: bytes = b"",
        body: bytes = b"x",
        lane: BatchLane = BatchLane.LIVE,
    ) -> None:
        run = Run(address, "d", 0, properties, [body] * count, 1_000)
        batch = decode(encode([Stored(-1, first, run)], space="s", epoch="e", lane=lane))
        self.put(session, name, ReceivedBatch(*session.key, batch))

    def put(self, session: GatewaySession, name: str, content: Any) -> None:
        self.committer.put(session, content, lambda verdict, _words: self.answers.append((name, verdict)))

    async def answered(self, count: int) -> None:
        await until(lambda: len(self.answers) >= count)

    @property
    def rows(self) -> int:
        return sum(report.landed.rows for report in self.reports)

    def landed(self) -> Counter[tuple[str, str, int]]:
        found = rows(self.directory / "lake", "telemetry")
        return Counter((row["gateway"], row["address"], row["sequence"]) for row in found)


def run(tmp_path: Path, scenario: Callable[[Bench], Coroutine[Any, Any, None]], gather_ms: int = 5) -> Bench:
    async def main() -> Bench:
        bench = Bench(tmp_path, gather_ms)
        await scenario(bench)
        await bench.committer.close()
        bench.executor.submit(bench.registry.close).result()
        bench.executor.shutdown()
        bench.checkpoints.shutdown()
        return bench

    return asyncio.run(main())


def another_hub_has_it(tmp_path: Path, gateway: tuple[str, str]) -> None:
    """Connect the gateway to another hub of the same registry."""
    other = open_registry(tmp_path, "another hub")
    other.directory.presence({gateway: Presence("-", connected=True, at_us=1, connects=1)})
    other.close()


def test_batch_is_answered_once_it_is_in_the_lake(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        session = bench.session()
        bench.send(session, "first")
        assert bench.answers == []
        await bench.answered(1)
        assert bench.landing.versions["telemetry"] == 1
        bench.send(session, "again")
        await bench.answered(2)
        assert bench.landing.versions["telemetry"] == 1, "a duplicate is acknowledged without a commit"

    bench = run(tmp_path, scenario)
    assert bench.answers == [("first", LandingOutcome.LANDED), ("again", LandingOutcome.LANDED)]
    assert bench.rows == 3
    assert sum(report.landed.duplicates for report in bench.reports) == 3


def test_simultaneous_batches_land_together(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        sessions = [bench.session(f"gw{i}") for i in range(10)]
        for session in sessions:
            bench.send(session, session.gateway)
        await bench.answered(10)
        assert bench.landing.versions["telemetry"] == 1

    assert run(tmp_path, scenario).rows == 30


def test_trickle_lands_once_in_twice_the_gather_time(tmp_path: Path) -> None:
    """Messages after a landing wait for the next one, so there is one file a second, not two."""

    async def scenario(bench: Bench) -> None:
        loop, session = asyncio.get_running_loop(), bench.session()
        begun = loop.time()
        for number in range(4):
            bench.send(session, str(number), first=3 * number)
            await bench.answered(number + 1)
        assert loop.time() - begun >= 0.1 + 3 * 0.2

    run(tmp_path, scenario, gather_ms=100)


def test_end_of_a_backlog_does_not_wait_for_more(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        session = bench.session()
        bench.send(session, "bulk", body=b"x" * QUIET_BYTES_MIN, lane=BatchLane.BACKLOG)
        await bench.answered(1)
        bench.send(session, "its end", first=3)
        await bench.answered(2)

    run(tmp_path, scenario, gather_ms=600_000)


@pytest.mark.parametrize(
    ("replicas", "gather_ms", "seconds"), [(1, 600, 0.6), (2, 600, 0.9), (3, 600, 1.2), (50, 600, 2.0), (3, 0, 0.0)]
)
def test_replicas_land_less_often(tmp_path: Path, replicas: int, gather_ms: int, seconds: float) -> None:
    async def scenario(bench: Bench) -> None:
        bench.replicas = replicas
        assert bench.committer.gathering_s == pytest.approx(seconds)

    run(tmp_path, scenario, gather_ms)


def test_live_messages_land_once_in_twice_the_gather_time_at_any_rate(tmp_path: Path) -> None:
    """Live messages wait for the next landing even though no gateway waits for an answer. Else each pause between
    batches would make a file."""

    async def scenario(bench: Bench) -> None:
        loop, session = asyncio.get_running_loop(), bench.session()
        begun = loop.time()
        for number in range(3):
            bench.send(session, str(number), first=3 * number, body=b"x" * QUIET_BYTES_MIN)
            await bench.answered(number + 1)
        assert loop.time() - begun >= 0.1 + 2 * 0.2
        assert bench.landing.versions["telemetry"] == 3

    run(tmp_path, scenario, gather_ms=100)


def test_status_reports_do_not_shorten_the_gathering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status rows do not start a landing. A fleet reports all the time, and each row would make a file."""
    for name in ("STATUS_EVERY_S", "SEEN_EVERY_S", "PRESENCE_EVERY_S"):
        monkeypatch.setattr(f"cloud.hub.committer.{name}", 0.0)

    async def scenario(bench: Bench) -> None:
        loop, session = asyncio.get_running_loop(), bench.session()
        begun = loop.time()
        bench.send(session, "a")
        bench.committer.put_state(presence_row(session, "running", 1))
        bench.committer.record_seen(session.key)
        await bench.answered(1)
        assert loop.time() - begun >= 0.3
        assert bench.landing.versions["telemetry"] == 1
        assert bench.landing.versions["gateway_status"] >= 0, "it has landed with it"

    run(tmp_path, scenario, gather_ms=300)


class TestConnections:
    """Landing goes on while connections come and go."""

    def test_batches_of_an_ended_connection_land(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            for number in range(20):  # each of them ends before its landing
                session = bench.session()
                bench.send(session, str(number), first=3 * number)
                bench.committer.disconnect(session)
            await bench.answered(20)

        bench = run(tmp_path, scenario)
        assert bench.landed() == Counter({("gw1", "a", sequence): 1 for sequence in range(60)})

    def test_later_connection_does_not_undo_earlier_batches(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            old = bench.session()
            bench.send(old, "old")
            new = bench.session()
            bench.committer.disconnect(old, replaced=True)
            bench.send(new, "new")
            await bench.answered(2)

        bench = run(tmp_path, scenario)
        assert dict(bench.answers) == {"old": LandingOutcome.LANDED, "new": LandingOutcome.LANDED}
        assert bench.rows == 3

    def test_landing_that_outlasts_its_wait_ends_without_a_fault(self, tmp_path: Path) -> None:
        """The registry answers only after the hub has stopped waiting for it."""
        faults: list[dict[str, Any]] = []
        answering = threading.Event()

        async def scenario(bench: Bench) -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
            bench.fail = lambda step: answering.wait(10.0) and None if step == "prepared" else None
            bench.send(bench.session(), "slow")
            await until(lambda: bench.committer._under_way is not None)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await bench.committer.close()
            answering.set()
            await bench.answered(1)

        async def main() -> None:
            bench = Bench(tmp_path, 5)
            await scenario(bench)
            bench.executor.submit(bench.registry.close).result()
            bench.executor.shutdown()

        asyncio.run(main())
        assert faults == []

    def test_thousands_of_short_connections_cost_one_transaction(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            session = bench.session()
            bench.send(session, "first")
            await bench.answered(1)
            before = bench.presences
            for _ in range(5_000):
                bench.committer.disconnect(bench.session("comes and goes"))
            bench.send(session, "second", first=3)
            await bench.answered(2)
            assert bench.presences == before + 1

        bench = run(tmp_path, scenario)
        registry = open_registry(tmp_path)
        known = {record.name: record for record in registry.directory.gateways()}
        registry.close()
        assert (known["comes and goes"].generation, known["comes and goes"].connected) == (5_000, False)
        assert bench.rows == 6

    def test_gateway_that_moved_to_another_hub_gets_its_batches_released(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            session = bench.session()
            bench.send(session, "before")
            await bench.answered(1)
            another_hub_has_it(tmp_path, session.key)
            bench.send(session, "after", first=3)
            await bench.answered(2)

        bench = run(tmp_path, scenario)
        assert bench.answers == [("before", LandingOutcome.LANDED), ("after", LandingOutcome.RELEASED)]
        assert bench.rows == 3

    def test_store_is_compared_after_all_earlier_batches_have_landed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cloud.hub.queue.LANDING_ROWS_MAX", 6)

        async def scenario(bench: Bench) -> None:
            session = bench.session()
            for number in range(6):
                bench.send(session, str(number), first=3 * number)
            bench.put(session, "lineage", GatewayLineage("e", ["1"]))
            await bench.answered(7)

        assert run(tmp_path, scenario).answers[-1] == ("lineage", LandingOutcome.LANDED)


class TestShares:
    """A landing takes a share of every gateway's batches."""

    def test_small_sender_is_not_starved_by_large_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.hub.queue.LANDING_ROWS_MAX", 6)

        async def scenario(bench: Bench) -> None:
            greedy, small = bench.session("greedy"), bench.session("small")
            for number in range(14):
                bench.send(greedy, str(number), first=3 * number)
            await bench.answered(1)
            bench.send(small, "small")
            await bench.answered(15)

        bench = run(tmp_path, scenario)
        names = [name for name, _ in bench.answers]
        assert names.index("small") <= 9, "behind at most two landings, not behind all fourteen batches"
        assert [name for name in names if name != "small"] == [str(number) for number in range(14)]

    def test_batch_in_parts_has_one_answer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.lake.parts.PART_ROWS_MAX", 2)
        monkeypatch.setattr("cloud.hub.queue.LANDING_ROWS_MAX", 3)

        async def scenario(bench: Bench) -> None:
            failures: list[str] = []

            def fail(done: str) -> None:
                if done == "committed" and len(failures) < 2:
                    failures.append(done)
                    raise LakeError("no space left on device")

            bench.fail = fail
            bench.send(bench.session(), "large", count=9)
            await bench.answered(1)

        bench = run(tmp_path, scenario)
        assert bench.answers == [("large", LandingOutcome.LANDED)]
        assert bench.landed() == Counter({("gw1", "a", sequence): 1 for sequence in range(9)})
        assert bench.landing.versions["telemetry"] > 3

    def test_batch_in_parts_is_released_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.lake.parts.PART_ROWS_MAX", 2)

        async def scenario(bench: Bench) -> None:
            session = bench.session()
            bench.send(session, "before")
            await bench.answered(1)
            another_hub_has_it(tmp_path, session.key)
            bench.send(session, "large", first=3, count=9)
            await bench.answered(2)

        assert run(tmp_path, scenario).answers == [
            ("before", LandingOutcome.LANDED),
            ("large", LandingOutcome.RELEASED),
        ]

    def test_batches_beyond_the_time_land_next(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.hub.lander.LANDING_S_MAX", 0.0)
        monkeypatch.setattr("cloud.lake.landing.SLICE_BYTES_MAX", 1)

        async def scenario(bench: Bench) -> None:
            session, other = bench.session(), bench.session("gw2")
            for number in range(5):
                bench.send(session, str(number), first=3 * number, properties=b"\x03\0\1x")
            bench.put(session, "lineage", GatewayLineage("e", ["1"]))
            bench.send(other, "other", properties=b"\x03\0\1x")

        bench = run(tmp_path, scenario)
        names = [name for name, _ in bench.answers]
        assert [name for name in names if name != "other"] == ["0", "1", "2", "3", "4", "lineage"]
        assert names.index("other") <= 2
        assert max(report.landed.rows for report in bench.reports) == 3
        assert all(report.landed.spent_s for report in bench.reports if report.landed.rows)

    def test_much_of_an_ended_connection_is_dropped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.hub.committer.LEFT_BEHIND_BYTES_MAX", 3_000)

        async def scenario(bench: Bench) -> None:
            gone, stays = bench.session(), bench.session("gw2")
            bench.send(stays, "stays")
            for number in range(10):
                bench.send(gone, str(number), first=3 * number)
            bench.committer.disconnect(gone)
            again = bench.session()
            bench.send(again, "again", first=0, count=30)

        bench = run(tmp_path, scenario)
        names = [name for name, _ in bench.answers]
        assert 1 < len(names) < 10
        assert names[-1] == "again"
        assert bench.landed() == Counter(
            [("gw1", "a", sequence) for sequence in range(30)] + [("gw2", "a", sequence) for sequence in range(3)]
        )


FAULTS = [
    LakeError("no space left on device"),
    MemoryError(),
    OSError(5, "Input/output error"),
    PermissionError(13, "Permission denied"),
    sa.exc.OperationalError("x", {}, Exception("disk I/O error")),
    pa.ArrowMemoryError("malloc of size 1 failed"),
    ZeroDivisionError("a mistake of ours"),
]


class TestFailedLandings:
    @pytest.mark.parametrize("step", ["prepared", "written", "committed", "synced", "confirmed"])
    def test_nothing_is_answered_while_the_lake_refuses_and_all_lands_once_afterwards(
        self, tmp_path: Path, step: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="cloud.hub.committer")

        async def scenario(bench: Bench) -> None:
            failures: list[str] = []

            def fail(done: str) -> None:
                if done == step and len(failures) < 1:
                    failures.append(done)
                    raise LakeError("no space left on device")

            bench.fail = fail
            session = bench.session()
            bench.send(session, "first")
            await until(lambda: bench.committer.failing)
            assert bench.answers == []
            fault = bench.committer.fault
            assert fault is not None
            assert "no space left" in fault.reason
            bench.send(session, "second", first=3)
            await bench.answered(2)
            assert bench.committer.fault is None

        bench = run(tmp_path, scenario)
        assert {verdict for _, verdict in bench.answers} == {LandingOutcome.LANDED}
        registry = open_registry(tmp_path)
        [(_, landed)] = registry.commits.marks("default", "gw1").landed.items()
        registry.close()
        assert landed.spans == [(0, 5)]
        words = [record.getMessage() for record in caplog.records]
        assert len([text for text in words if "no space left on device" in text]) == 1
        assert words.count("landing works again") == 1

    def test_pause_stays_short_however_long_nothing_lands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Gateways wait at this hub that another one could serve."""
        monkeypatch.setattr("cloud.hub.committer.RETRY_S_MAX", RETRY_S_MAX)
        attempts_s: list[float] = []

        async def scenario(bench: Bench) -> None:
            loop = asyncio.get_running_loop()
            real, ahead_s, away = loop.time, 0.0, True
            monkeypatch.setattr(loop, "time", lambda: real() + ahead_s)

            def fail(step: str) -> None:
                if step == "prepared" and away:
                    attempts_s.append(loop.time())
                    raise LakeError("no space left on device")

            bench.fail = fail
            bench.send(bench.session(), "first")
            while ahead_s < 60.0:
                await asyncio.sleep(0)
                ahead_s += 0.1 if bench.committer._under_way is None else 0.0
            away = False
            await bench.answered(1)

        bench = run(tmp_path, scenario)
        assert bench.answers == [("first", LandingOutcome.LANDED)]
        assert max(after - before for before, after in itertools.pairwise(attempts_s)) < 4.0

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
    def test_batches_are_held_for_any_fault_and_land_afterwards(self, tmp_path: Path, fault: Exception) -> None:
        async def scenario(bench: Bench) -> None:
            tries: list[str] = []

            def fail(done: str) -> None:
                if done == "prepared" and len(tries) < 2:
                    tries.append(done)
                    raise fault

            bench.fail = fail
            bench.send(bench.session(), "first")
            await until(lambda: len(tries) == 2)
            assert bench.answers == []
            await bench.answered(1)

        bench = run(tmp_path, scenario)
        assert bench.answers == [("first", LandingOutcome.LANDED)]
        assert bench.landed() == Counter({("gw1", "a", sequence): 1 for sequence in range(3)})

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
    def test_one_batch_that_cannot_land_does_not_block_others(self, tmp_path: Path, fault: Exception) -> None:
        async def scenario(bench: Bench) -> None:
            good, bad = bench.session("good"), bench.session("bad")
            land = bench.landing.land

            def faulty(batches: list[ReceivedBatch], now_us: int) -> Any:
                if any(received.gateway == "bad" for received in batches):
                    raise fault
                return land(batches, now_us)

            bench.landing.land = faulty  # type: ignore[method-assign, assignment]
            bench.send(bad, "bad")
            bench.send(good, "good")
            await bench.answered(1)
            assert bench.answers == [("good", LandingOutcome.LANDED)]
            await until(lambda: bool(bench.committer.held))  # the failing batch may be landing just now
            [(held, why)] = bench.committer.held
            assert held is bad
            assert why.reason
            bench.send(bad, "bad, behind it", first=3)
            bench.send(bad, "bad, elsewhere", address="b")
            bench.send(good, "good again", first=3)
            await bench.answered(2)
            assert bench.answers[-1] == ("good again", LandingOutcome.LANDED)
            bench.landing.land = land  # type: ignore[method-assign]
            await bench.answered(5)

        bench = run(tmp_path, scenario)
        assert {verdict for _, verdict in bench.answers} == {LandingOutcome.LANDED}
        order = [name for name, _ in bench.answers]
        assert order.index("bad") < order.index("bad, behind it")
        assert set(bench.landed().values()) == {1}

    def test_held_batches_end_with_their_connection(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            def fail(done: str) -> None:
                raise LakeError("no space left on device")

            bench.fail = fail
            session = bench.session()
            bench.send(session, "gone")
            await until(lambda: bench.committer.failing)
            bench.committer.disconnect(session)
            await until(lambda: bench.committer.pending_bytes == 0)  # a retry may be running
            bench.fail = lambda step: None

        assert run(tmp_path, scenario).answers == []

    def test_batches_behind_a_held_one_end_with_it(self, tmp_path: Path) -> None:
        """The gateway sends both again, in order. If the later batch landed now, it would land out of order."""

        async def scenario(bench: Bench) -> None:
            def fail(done: str) -> None:
                raise LakeError("no space left on device")

            bench.fail = fail
            session = bench.session()
            bench.send(session, "held")
            await until(lambda: bench.committer.failing)
            bench.send(session, "behind it", first=3)
            bench.committer.disconnect(session)
            await until(lambda: bench.committer.pending_bytes == 0)  # a retry may be running
            bench.fail = lambda step: None

        assert run(tmp_path, scenario).landed() == {}

    def test_held_bytes_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.hub.committer.HELD_BYTES_MAX", 100)

        async def scenario(bench: Bench) -> None:
            good, bad = bench.session("good"), bench.session("bad")
            land = bench.landing.land

            def faulty(batches: list[ReceivedBatch], now_us: int) -> Any:
                if any(received.gateway == "bad" for received in batches):
                    raise ZeroDivisionError
                return land(batches, now_us)

            bench.landing.land = faulty  # type: ignore[method-assign, assignment]
            bench.send(bad, "bad", count=100)
            bench.send(good, "good")
            await bench.answered(2)

        assert dict(run(tmp_path, scenario).answers) == {"good": LandingOutcome.LANDED, "bad": LandingOutcome.RELEASED}

    def test_table_that_refuses_holds_only_its_own_batches(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            land_ledger = bench.landing.land_ledger

            def faulty(*_: Any, **_named: Any) -> LandedRanges:
                raise LakeError("table ledger cannot be written")

            bench.landing.land_ledger = faulty  # type: ignore[method-assign]
            session = bench.session()
            bench.put(session, "ledger", LedgerDocument([LedgerRange("default", "gw1", "e", "a", 3, 4, 1, "x", 1)]))
            bench.send(session, "batch")
            await bench.answered(1)
            assert bench.answers == [("batch", LandingOutcome.LANDED)]
            bench.landing.land_ledger = land_ledger  # type: ignore[method-assign]
            await bench.answered(2)

        assert run(tmp_path, scenario).answers[-1] == ("ledger", LandingOutcome.LANDED)

    def test_table_that_cannot_settle_does_not_hold_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Writes of data files and of log entries fail for table `ledger` alone."""
        create, put_new = Folder.create, Folder.put_new

        def refused(place: Folder, path: str) -> Any:
            if place.name == "ledger":
                raise OSError(errno.EROFS, "read-only")
            return create(place, path)

        def refused_entry(place: Folder, path: str, content: bytes) -> bool:
            if place.name == "ledger":
                raise OSError(errno.EROFS, "read-only")
            return put_new(place, path, content)

        async def scenario(bench: Bench) -> None:
            session = bench.session()
            with monkeypatch.context() as patch:
                patch.setattr(Folder, "create", refused)
                patch.setattr(Folder, "put_new", refused_entry)
                bench.put(session, "ledger", LedgerDocument([LedgerRange("default", "gw1", "e", "a", 3, 4, 1, "x", 1)]))
                await until(lambda: bool(bench.committer.held) or bench.committer.failing)
                for number in range(3):
                    bench.send(session, f"batch {number}", first=3 * number)
                    await bench.answered(number + 1)
            await bench.answered(4)

        answers = run(tmp_path, scenario).answers
        assert answers == [
            *((f"batch {n}", LandingOutcome.LANDED) for n in range(3)),
            ("ledger", LandingOutcome.LANDED),
        ]
        assert len(rows(tmp_path / "lake", "ledger")) == 1

    def test_failing_report_of_one_gateway_does_not_block_others(self, tmp_path: Path) -> None:
        """A time at the end of the calendar cannot become a row: a fault that the check of documents missed."""
        end_us = 253_402_300_799_999_999

        def told(gateway: str, at_us: int) -> list[tuple[str, Any]]:
            stretch = {"tenant": "default", "gateway": gateway, "boot": "b", "stretch": 1, "known": "not yet"}
            times = {"began": at_us, "told_at": at_us, "heard_at": at_us, "whole": False}
            ledger = LedgerDocument([LedgerRange("default", gateway, "e", "a", 3, 4, 1, "x", at_us)])
            return [("ledger", ledger), ("clock", ClockOffsetRows([stretch | times]))]

        async def scenario(bench: Bench) -> None:
            for gateway, at_us in (("gw1", 1), ("bad", end_us), ("gw2", 1), ("gw3", 1)):
                session = bench.session(gateway)
                bench.committer.put_state(presence_row(session, "running", at_us))
                for name, content in told(gateway, at_us):
                    bench.put(session, f"{name} {gateway}", content)
            await bench.answered(6)
            assert not bench.committer.failing
            assert {session.gateway for session, _ in bench.committer.held} == {"bad"}

        answered = dict(run(tmp_path, scenario).answers)
        assert answered == {f"{kind} gw{n}": LandingOutcome.LANDED for kind in ("ledger", "clock") for n in (1, 2, 3)}
        for table in ("ledger", "clock_offsets", "gateway_status"):
            found = sorted(row["gateway"] for row in rows(tmp_path / "lake", table))
            assert found == ["gw1", "gw2", "gw3"], table

    def test_endless_landing_is_detected_by_the_age_of_waiting_batches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cloud.hub.committer.STALLED_S", 0.02)

        async def scenario(bench: Bench) -> None:
            stuck = asyncio.Event()
            loop = asyncio.get_running_loop()
            bench.fail = lambda step: asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result() and None
            bench.send(bench.session(), "first")
            assert bench.committer.fault is None
            await until(lambda: bench.committer.fault is not None)
            assert not bench.committer.failing
            stuck.set()
            await bench.answered(1)
            assert bench.committer.fault is None

        run(tmp_path, scenario)


class TestUnreadable:
    def test_unreadable_bytes_are_stored_and_accepted(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            unreadable = UnreadableContent(
                "default", "gw1", "telemetry", 7, "checksum does not match", b"\x00bytes", 1_000
            )
            bench.put(bench.session(), "junk", unreadable)
            await bench.answered(1)

        assert run(tmp_path, scenario).answers == [("junk", LandingOutcome.LANDED)]
        [row] = rows(tmp_path / "lake", "quarantine")
        assert (row["gateway"], row["link"], row["delivery"], row["content"]) == ("gw1", "telemetry", 7, b"\x00bytes")
        assert row["reason"] == "checksum does not match"

    def test_batch_that_cannot_become_rows_is_stored_and_recorded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def faulty(slices: Any, now_us: int) -> pa.Table:
            return telemetry_rows(
                [one._replace(address="\udcff") if one.address == "bad" else one for one in slices], now_us
            )

        monkeypatch.setattr("cloud.lake.landing.telemetry_rows", faulty)

        async def scenario(bench: Bench) -> None:
            session = bench.session()
            bench.send(session, "good")
            bench.send(session, "bad", address="bad")
            bench.send(session, "good again", first=3)
            await bench.answered(3)

        bench = run(tmp_path, scenario)
        assert {verdict for _, verdict in bench.answers} == {LandingOutcome.LANDED}
        assert bench.landed() == Counter({("gw1", "a", sequence): 1 for sequence in range(6)})
        [row] = rows(tmp_path / "lake", "quarantine")
        assert decode(row["content"]).bodies == [b"x"] * 3
        [entry] = rows(tmp_path / "lake", "ledger")
        assert (entry["address"], entry["first_sequence"], entry["last_sequence"]) == ("bad", 0, 2)
        assert entry["reason"] == HubLossReason.QUARANTINED.value


def test_new_gateways_that_cannot_be_counted_hold_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connection is written with the next group, not at once."""
    monkeypatch.setattr("cloud.hub.committer.PRESENCE_EVERY_S", 1_000.0)

    def fail(*_: object) -> int:
        raise RegistryError("too many clients")

    async def scenario(bench: Bench) -> None:
        known = bench.session("known")
        bench.send(known, "first")
        await bench.answered(1)
        monkeypatch.setattr("cloud.hub.registry.gateway_admission._count", fail)
        bench.registry.directory.admission.limit_to(lambda _: 10)
        before = bench.presences
        bench.session("new")
        for count in (2, 3):
            bench.send(known, "more", first=3 * count)
            await bench.answered(count)
        assert bench.presences == before + 2

    bench = run(tmp_path, scenario)
    assert bench.rows == 9


def test_refused_connection_is_not_said_to_be_connected_again(tmp_path: Path) -> None:
    """Another hub may have admitted the gateway since."""

    async def scenario(bench: Bench) -> None:
        refused = GatewaySession("default", "gw1", "-", refused=True)
        bench.committer.repeat_presence([refused, GatewaySession("default", "gw2", "-")])

    run(tmp_path, scenario)
    registry = open_registry(tmp_path)
    known = [record.name for record in registry.directory.gateways()]
    registry.close()
    assert known == ["gw2"]


def test_closing_lands_gathered_batches(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        session = bench.session()
        bench.send(session, "last")
        ranges = [LedgerRange("default", "gw1", "e", "a", 3, 4, 10, "expired", 1)]
        bench.put(session, "ledger", LedgerDocument(ranges))
        bench.committer.put_state({"tenant": "t", "gateway": "g", "reported_at": 1, "state": "s"})

    bench = run(tmp_path, scenario)
    assert dict(bench.answers) == {"last": LandingOutcome.LANDED, "ledger": LandingOutcome.LANDED}
    assert {table for table, version in bench.landing.versions.items() if version} == {
        *("telemetry", "ledger", "gateway_status")
    }


class TestLargeLedger:
    """Documents of more ranges than a landing has time for."""

    RANGES = 10_000

    def document(self, gateway: str) -> LedgerDocument:
        names = ((sequence, sequence) for sequence in range(0, 2 * self.RANGES, 2))
        return LedgerDocument([LedgerRange("default", gateway, "e", "a", *name, 1, "expired", 1) for name in names])

    def test_each_range_lands_once_and_its_document_has_one_answer(self, tmp_path: Path) -> None:
        async def scenario(bench: Bench) -> None:
            session = bench.session()
            for name in ("first", "again"):
                bench.put(session, name, self.document("gw1"))
            await bench.answered(2)
            bench.put(session, "later", self.document("gw1"))
            await bench.answered(3)

        bench = run(tmp_path, scenario)
        assert bench.answers == [
            ("first", LandingOutcome.LANDED),
            ("again", LandingOutcome.LANDED),
            ("later", LandingOutcome.LANDED),
        ]
        found = [row["first_sequence"] for row in rows(tmp_path / "lake", "ledger")]
        assert sorted(found) == list(range(0, 2 * self.RANGES, 2))

    def test_landing_takes_documents_within_its_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch of another gateway does not wait for all ranges, and all ranges land."""
        monkeypatch.setattr("cloud.hub.lander.LANDING_S_MAX", 0.0)

        async def scenario(bench: Bench) -> None:
            bench.put(bench.session("greedy"), "ledger", self.document("greedy"))
            bench.send(bench.session("other"), "batch")
            await bench.answered(2)

        bench = run(tmp_path, scenario)
        assert bench.answers == [("batch", LandingOutcome.LANDED), ("ledger", LandingOutcome.LANDED)]
        assert [report.ledger_ranges for report in bench.reports if report.ledger_ranges] == [1_000] * 10


def test_memory_is_released_in_time_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large landing postpones the release of memory, but not for ever."""
    given_back: list[float] = []
    for name, value in (("BYTES_MIN", 1), ("AFTER_S", 60.0), ("WITHIN_S", 0.2)):
        monkeypatch.setattr(f"cloud.hub.committer.GIVEN_BACK_{name}", value)
    monkeypatch.setattr("cloud.hub.committer.release_memory", lambda: given_back.append(time.monotonic()))

    async def scenario(bench: Bench) -> None:
        session, number = bench.session(), 0
        async with asyncio.timeout(20):
            while len(given_back) < 2:
                bench.send(session, str(number), first=3 * number)
                number += 1
                await bench.answered(number)

    run(tmp_path, scenario)
    assert given_back[1] - given_back[0] > 0.1, "and not after each landing"


def test_memory_is_released_after_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is released after a compaction, as small files may hold megabytes of repeated rows."""
    given_back: list[int] = []
    for module in ("tables", "compaction"):
        monkeypatch.setattr(f"cloud.lake.{module}.COMPACTED_FILES_MIN", 3)
    monkeypatch.setattr("cloud.hub.committer.GIVEN_BACK_AFTER_S", 0.01)
    monkeypatch.setattr("cloud.hub.committer.release_memory", lambda: given_back.append(1))

    async def scenario(bench: Bench) -> None:
        session = bench.session()
        for number in range(3):  # the first landing checks the table, which has one file
            bench.send(session, str(number), first=3 * number)
            await bench.answered(number + 1)
        assert not given_back
        bench.send(session, "fourth", first=9)
        async with asyncio.timeout(20):
            while not given_back:
                await asyncio.sleep(0.01)

    run(tmp_path, scenario)


def test_landing_has_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.queue.LANDING_ROWS_MAX", 10)

    async def scenario(bench: Bench) -> None:
        session = bench.session()
        for number in range(10):
            bench.send(session, str(number), first=3 * number)
        await bench.answered(10)
        assert bench.committer.pending_bytes == 0

    bench = run(tmp_path, scenario)
    assert [name for name, _ in bench.answers] == [str(number) for number in range(10)]
    assert max(report.landed.rows for report in bench.reports) <= 10
    assert bench.rows == 30


def test_acknowledgements_do_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    """A checkpoint, or the deletion of old log entries after it, may take a minute in a bucket."""
    began, may_end = threading.Event(), threading.Event()

    def checkpoint(_table: DeltaTable) -> None:
        began.set()
        assert may_end.wait(20)

    async def scenario(bench: Bench) -> None:
        session = bench.session()
        for number in range(CHECKPOINT_EVERY * 2 + 2):
            bench.send(session, str(number), first=3 * number)
            await bench.answered(number + 1)
        assert began.is_set()
        assert not may_end.is_set()
        may_end.set()

    try:
        with patch.object(DeltaTable, "create_checkpoint", checkpoint):
            run(tmp_path, scenario, gather_ms=1)
    finally:
        may_end.set()


class TestRefusedTables:
    """Tables that another engine has changed so that hubs cannot write them."""

    @staticmethod
    def refuse(bench: Bench, table: str) -> None:
        DeltaTable(bench.directory / "lake" / table).alter.add_constraint({"early": "ingested_at > '1970-01-01'"})

    @staticmethod
    def accept(bench: Bench, table: str) -> None:
        DeltaTable(bench.directory / "lake" / table).alter.drop_constraint("early")

    @pytest.mark.parametrize("table", ["manifests", "gateway_status", "ledger"])
    def test_other_tables_go_on_without_a_pause(self, tmp_path: Path, table: str) -> None:
        async def scenario(bench: Bench) -> None:
            self.refuse(bench, table)
            session = bench.session()
            match table:
                case "manifests":
                    row = dict.fromkeys(("tenant", "gateway", "epoch", "address", "digest", "public_key"), "x")
                    row |= dict.fromkeys(("first_sequence", "last_sequence", "count", "hour", "closing"), 1)
                    bench.put(session, "refused", Manifest([row]))
                case "ledger":
                    bench.put(
                        session, "refused", LedgerDocument([LedgerRange("default", "gw1", "e", "a", 3, 4, 1, "x", 1)])
                    )
                case "gateway_status":
                    bench.committer.put_state(presence_row(session, "connected", 1))
            await until(lambda: any(report.refusals for report in bench.reports))
            assert not bench.committer.failing
            bench.send(session, "batch")
            await bench.answered(1)
            assert bench.answers == [("batch", LandingOutcome.LANDED)]
            assert list(bench.reports[-1].refusals) == [table]
            self.accept(bench, table)
            await until(lambda: not bench.reports[-1].refusals)
            assert bench.answers[1:] == ([] if table == "gateway_status" else [("refused", LandingOutcome.LANDED)])

        with patch("cloud.hub.committer.STATUS_EVERY_S", 0.05):
            run(tmp_path, scenario)
        assert len(rows(tmp_path / "lake", table)) == 1

    def test_batches_wait_while_telemetry_is_refused(self, tmp_path: Path) -> None:
        """Also over a restart of the hub; no attempt leaves an entry or a file."""

        async def refused(bench: Bench) -> None:
            self.refuse(bench, "telemetry")
            version = bench.landing.versions["telemetry"] + 1
            bench.send(bench.session(), "batch")
            await until(lambda: len(bench.reports) > 3)
            assert bench.answers == []
            assert bench.committer.failing
            assert DeltaTable(tmp_path / "lake" / "telemetry").version() <= version + 1, "one fence at most"
            assert "checkConstraints" in bench.reports[-1].refusals["telemetry"].why

        async def again(bench: Bench) -> None:
            assert set(bench.landing.refusals) == {"telemetry"}, "the hub starts"
            bench.send(bench.session(), "batch")
            await until(lambda: bool(bench.reports))
            self.accept(bench, "telemetry")
            await bench.answered(1)
            assert bench.answers == [("batch", LandingOutcome.LANDED)]

        run(tmp_path, refused)
        run(tmp_path, again)
        run_landed = rows(tmp_path / "lake", "telemetry")
        assert sorted(row["sequence"] for row in run_landed) == [0, 1, 2]
