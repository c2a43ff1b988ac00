"""Orders of events in which the registry could keep a problem that is over, or lose one that is not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.events.limits import GATEWAY_SILENT_S, PROBLEMS_UNHEARD_S
from cloud.hub.events.problem_recorder import EARLIEST_US, ProblemRecorder
from cloud.hub.groups import Key, Presence
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.problem_reader import ProblemFilter
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from cloud.hub.registry.registry import Registry
from cloud.lake.faults import RegistryError

HUB, OTHER = "a" * 32, "b" * 32
HALL: Key = ("acme", "hall")
NOW_US = 1_800_000_000_000_000
STORE = {"name": "store", "severity": "error", "what": "the card is full", "since": "2026-11-30T10:00:00Z"}
UPLINK = {**STORE, "name": "uplink"}

Report = Callable[..., set[ProblemSource]]


class Bench:
    """Recorder of a hub that one gateway is connected to, and its registry."""

    def __init__(self, folder: Path) -> None:
        self.url = sqlite_url(folder / "registry.db")
        self.now_us, self.now_s = NOW_US, 0.0
        self.connected = {HALL}
        self.recorder = ProblemRecorder(
            self.url, HUB, lambda: [], self.connected.__contains__, lambda: self.now_us, lambda: self.now_s
        )

    def presence(self, hub: str, *, connected: bool, connects: int = 0, at_us: int = NOW_US) -> None:
        with contextlib.closing(Registry(self.url, hub)) as registry:
            registry.directory.presence({HALL: Presence("-", connected, at_us, connects)})

    async def codes(self) -> list[str]:
        found, _ = await self.recorder.read(lambda reader: reader.places(ProblemFilter(gateway="hall"), None, 99))
        return [each.code for each in found]

    def connects(self) -> None:
        """Let the gateway connect."""
        self.presence(HUB, connected=True, connects=1)
        self.connected.add(HALL)
        self.recorder.connected(HALL)

    def run(self, work: Callable[[Bench], Awaitable[None]]) -> None:
        async def main() -> None:
            # Not `open`, which also stores in intervals.
            await self.recorder._writer.open()
            await self.recorder._reader.open()
            try:
                self.connects()
                await work(self)
            finally:
                await self.recorder.close()

        asyncio.run(main())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class HeldReports:
    """Reports that wait before they are stored, until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        report: Report = StoredProblems.report

        def held(stored: StoredProblems, **given: Any) -> set[ProblemSource]:
            self.begun.set()
            assert self.go_on.wait(60)
            return report(stored, **given)

        monkeypatch.setattr(StoredProblems, "report", held)

    async def begin(self, recorder: ProblemRecorder) -> asyncio.Task[None]:
        """Begin to store, and return when a report is in the thread."""
        self.begun.clear()
        self.go_on.clear()
        task = asyncio.create_task(recorder.store())
        assert await asyncio.to_thread(self.begun.wait, 60)
        return task

    async def end(self, task: asyncio.Task[None]) -> None:
        self.go_on.set()
        await task


async def reported(bench: Bench, *problems: Mapping[str, str]) -> None:
    bench.recorder.reported(HALL, problems)
    await bench.recorder.store()


def test_problem_that_is_over_while_it_is_stored_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report that ends it is as the one that was stored before."""

    async def work(bench: Bench) -> None:
        await reported(bench)
        held = HeldReports(monkeypatch)
        bench.recorder.reported(HALL, [STORE])
        task = await held.begin(bench.recorder)
        bench.recorder.reported(HALL, [])
        await held.end(task)
        await bench.recorder.store()
        assert await bench.codes() == []

    bench.run(work)


def test_report_that_moved_with_its_gateway_is_not_taken_for_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway goes to another hub, which stores another problem, and returns while its first report is stored."""

    async def work(bench: Bench) -> None:
        await reported(bench, STORE)
        held = HeldReports(monkeypatch)
        bench.recorder.reported(HALL, [STORE, UPLINK])
        task = await held.begin(bench.recorder)
        bench.recorder.connected(HALL)
        await held.end(task)
        monkeypatch.undo()
        bench.presence(OTHER, connected=True, connects=1)
        with contextlib.closing(StoredProblems(bench.url, OTHER)) as theirs:
            found = ReportedProblem("clock", "error", "it is wrong", "", NOW_US)
            assert theirs.report({ProblemSource(*HALL): [found]}, NOW_US)
        bench.presence(HUB, connected=True, connects=1)
        await reported(bench, STORE, UPLINK)
        assert sorted(await bench.codes()) == ["store", "uplink"]

    bench.run(work)


def test_report_of_the_connection_before_is_not_stored(bench: Bench) -> None:
    """The gateway has gone back to a version that names no problems."""

    async def work(bench: Bench) -> None:
        bench.recorder.reported(HALL, [STORE])
        bench.recorder.connected(HALL)
        await bench.recorder.store()
        assert await bench.codes() == []

    bench.run(work)


def test_report_is_stored_again_after_a_failure_with_an_unknown_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(bench: Bench) -> None:
        await reported(bench)
        report: Report = StoredProblems.report

        def breaks(stored: StoredProblems, **given: Any) -> set[ProblemSource]:
            report(stored, **given)
            raise RegistryError("the connection broke")

        monkeypatch.setattr(StoredProblems, "report", breaks)
        with pytest.raises(RegistryError):
            await reported(bench, STORE)
        monkeypatch.undo()
        await reported(bench)
        assert await bench.codes() == []

    bench.run(work)


def test_report_waits_until_the_registry_has_the_connection(bench: Bench) -> None:
    async def work(bench: Bench) -> None:
        for absent in (HUB, OTHER):
            bench.presence(absent, connected=absent == OTHER, connects=absent == OTHER)
            bench.recorder.connected(HALL)
            await reported(bench, STORE)
            assert await bench.codes() == []
        bench.presence(HUB, connected=True, connects=1)
        await bench.recorder.store()
        assert await bench.codes() == ["store"]

    bench.run(work)


def test_problems_of_a_silent_gateway_end(bench: Bench) -> None:
    async def work(bench: Bench) -> None:
        await reported(bench, STORE)
        bench.presence(HUB, connected=False)
        bench.connected.clear()
        bench.now_us += int(GATEWAY_SILENT_S * 1e6)
        await bench.recorder.clean_up()
        assert await bench.codes() == ["store"], "it was seen a week ago"
        bench.now_us += 1
        await bench.recorder.clean_up()
        assert await bench.codes() == []
        bench.connects()
        await reported(bench, STORE)
        assert await bench.codes() == ["store"], "it has come back with it"

    bench.run(work)


def test_gateway_that_returns_before_its_problems_end_keeps_them(bench: Bench) -> None:
    async def work(bench: Bench) -> None:
        await reported(bench, STORE)
        later = NOW_US + 9 * int(GATEWAY_SILENT_S * 1e6)
        with contextlib.closing(StoredProblems(bench.url, OTHER)) as theirs:
            assert theirs.end_of_silent_gateways([HALL], later, later) == 0
        assert await bench.codes() == ["store"]

    bench.run(work)


@pytest.mark.parametrize("change", ["forgotten_at = 5, connected = 0", "name = 'another'"])
def test_problems_of_a_gateway_that_is_not_known_end(bench: Bench, change: str) -> None:
    """An older hub may have stored them after the gateway was forgotten, or its tenant removed."""

    async def work(bench: Bench) -> None:
        await reported(bench, STORE)
        with contextlib.closing(open_registry(bench.url).database) as database:
            database.transaction(lambda tx: tx.exec_driver_sql(f"UPDATE gateways SET {change}"))
        await bench.recorder.clean_up()
        assert await bench.codes() == []

    bench.run(work)


def test_problems_of_a_gateway_that_names_none_any_more_end(bench: Bench) -> None:
    async def work(bench: Bench) -> None:
        await reported(bench, STORE)
        bench.recorder.connected(HALL)
        bench.now_s += PROBLEMS_UNHEARD_S - 1
        await bench.recorder.clean_up()
        await bench.recorder.store()
        assert await bench.codes() == ["store"], "it names them every ten minutes"
        bench.now_s += 1
        await bench.recorder.clean_up()
        await bench.recorder.store()
        assert await bench.codes() == []

    bench.run(work)


def test_gateway_that_has_named_its_problems_keeps_them(bench: Bench) -> None:
    async def work(bench: Bench) -> None:
        bench.recorder.connected(HALL)
        await reported(bench, STORE)
        bench.now_s += 9 * PROBLEMS_UNHEARD_S
        await bench.recorder.clean_up()
        await bench.recorder.store()
        assert await bench.codes() == ["store"]

    bench.run(work)


@pytest.mark.parametrize(
    ("since", "stored"),
    [
        ("2026-11-30T10:00:00Z", 1_796_032_800_000_000),
        ("2019-12-31T23:59:59Z", NOW_US),
        ("1970-01-01T00:00:00Z", NOW_US),
        ("2999-01-01T00:00:00Z", NOW_US),
        ("yesterday", NOW_US),
    ],
)
def test_clock_that_was_not_set_makes_no_problem_old(bench: Bench, since: str, stored: int) -> None:
    async def work(bench: Bench) -> None:
        assert EARLIEST_US < NOW_US
        await reported(bench, {**STORE, "since": since})
        found, _ = await bench.recorder.read(lambda reader: reader.groups(ProblemFilter(), "", 9))
        assert [each.since for each in found] == [stored]

    bench.run(work)


def test_hash_of_problems_does_not_depend_on_their_order(bench: Bench) -> None:
    async def work(bench: Bench) -> None:
        seen: list[Sequence[str]] = []
        for problems in ([STORE, UPLINK], [UPLINK, STORE]):
            await reported(bench, *problems)
            seen.append(sorted(await bench.codes()))
        assert seen == [["store", "uplink"]] * 2

    bench.run(work)
