"""The committer: what is answered, when, and what happens while the disk refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.hub.committer import Committer, Group, Report, Session, Verdict
from cloud.hub.registry import Registry, sqlite_url
from cloud.lake.landing import Landing, LedgerRange
from cloud.lake.rows import ReceivedBatch
from cloud.lake.tables import LakeError


class Bench:
    """A committer on a real lake, whose failures are injected at the failpoints of the landing."""

    def __init__(self, directory: Path) -> None:
        self.registry = Registry(sqlite_url(str(directory / "registry.db")))
        self.fail: Callable[[str], None] = lambda step: None
        self.landing = Landing(directory / "lake", self.registry, failpoint=self.failpoint)
        self.reports: list[Report] = []
        self.answers: list[tuple[str, Verdict]] = []
        self.committer = Committer(self.registry, self.landing, gather_ms=5, on_report=self.report)

    def failpoint(self, step: str) -> None:
        self.fail(step)

    def report(self, group: Group, report: Report) -> None:
        self.reports.append(report)

    def session(self, gateway: str = "gw1") -> Session:
        session = Session("default", gateway, "-")
        self.committer.connect(session)
        return session

    def send(self, session: Session, name: str, first: int = 0, count: int = 3) -> None:
        run = Run("a", "d", 0, b"", [b"x"] * count, 1_000)
        received = ReceivedBatch(*session.key, decode(encode([Stored(-1, first, run)], space="s", epoch="e")))
        self.committer.put(session, received, lambda verdict: self.answers.append((name, verdict)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)

    @property
    def rows(self) -> int:
        return sum(report.landed.rows for report in self.reports)


def run(tmp_path: Path, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> Bench:
    async def main() -> Bench:
        bench = Bench(tmp_path)
        await scenario(bench)
        await bench.committer.close()
        bench.registry.close()
        return bench

    return asyncio.run(main())


def test_a_batch_is_answered_once_it_is_in_the_lake(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        session = bench.session()
        bench.send(session, "first")
        assert bench.answers == []
        await bench.until(lambda: bool(bench.answers))
        assert bench.landing.versions["telemetry"] == 1
        bench.send(session, "again")
        await bench.until(lambda: len(bench.answers) == 2)
        assert bench.landing.versions["telemetry"] == 1, "a duplicate is acknowledged without a commit"

    bench = run(tmp_path, scenario)
    assert bench.answers == [("first", Verdict.LANDED), ("again", Verdict.LANDED)]
    assert bench.rows == 3
    assert sum(report.landed.duplicates for report in bench.reports) == 3


def test_what_comes_together_lands_together(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        sessions = [bench.session(f"gw{i}") for i in range(10)]
        for session in sessions:
            bench.send(session, session.gateway)
        await bench.until(lambda: len(bench.answers) == 10)
        assert bench.landing.versions["telemetry"] == 1

    assert run(tmp_path, scenario).rows == 30


def test_an_older_connection_is_fenced_off(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        old = bench.session()
        bench.send(old, "before")
        await bench.until(lambda: len(bench.answers) == 1)
        new = bench.session()
        bench.send(old, "old", first=3)
        bench.send(new, "new", first=3)
        await bench.until(lambda: len(bench.answers) == 3)

    bench = run(tmp_path, scenario)
    assert dict(bench.answers) == {"before": Verdict.LANDED, "old": Verdict.STALE, "new": Verdict.LANDED}
    assert bench.rows == 6


def test_what_a_connection_left_behind_is_dropped(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        session = bench.session()
        bench.send(session, "gone")
        bench.committer.disconnect(session)
        assert bench.committer.pending_bytes == 0

    bench = run(tmp_path, scenario)
    assert bench.answers == []
    assert bench.rows == 0


@pytest.mark.parametrize("step", ["prepared", "written", "committed", "synced", "confirmed"])
def test_nothing_is_answered_while_the_lake_refuses_and_all_lands_once_after(
    tmp_path: Path, step: str, caplog: pytest.LogCaptureFixture
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
        await bench.until(lambda: bench.committer.failing)
        assert bench.answers == []
        bench.send(session, "second", first=3)
        await bench.until(lambda: len(bench.answers) == 2)
        assert not bench.committer.failing

    bench = run(tmp_path, scenario)
    assert {verdict for _, verdict in bench.answers} == {Verdict.LANDED}
    stream = next(iter(bench.registry.marks("default", "gw1").items()))
    assert stream[1].spans == [(0, 5)]
    words = [record.getMessage() for record in caplog.records]
    assert len([text for text in words if "no space left on device" in text]) == 1
    assert words.count("landing works again") == 1


def test_one_batch_that_cannot_be_written_does_not_stop_the_others(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        good, bad = bench.session("good"), bench.session("bad")
        land = bench.landing.land

        def faulty(batches: list[ReceivedBatch], now_us: int) -> Any:
            if any(received.gateway == "bad" for received in batches):
                raise ZeroDivisionError
            return land(batches, now_us)

        bench.landing.land = faulty  # type: ignore[method-assign, assignment]
        bench.send(good, "good")
        bench.send(bad, "bad")
        await bench.until(lambda: len(bench.answers) == 2)

    assert dict(run(tmp_path, scenario).answers) == {"good": Verdict.LANDED, "bad": Verdict.POISON}


def test_closing_lands_what_was_gathered(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        session = bench.session()
        bench.send(session, "last")
        ranges = [LedgerRange("default", "gw1", "e", "a", 3, 4, 10, "expired", 1)]
        bench.committer.put_ledger(session, ranges, lambda verdict: bench.answers.append(("ledger", verdict)))
        bench.committer.put_state({"tenant": "t", "gateway": "g", "reported_at": 1, "state": "s"})

    bench = run(tmp_path, scenario)
    assert dict(bench.answers) == {"last": Verdict.LANDED, "ledger": Verdict.LANDED}
    assert bench.landing.versions == {"telemetry": 1, "ledger": 1, "manifests": 0, "gateway_status": 1}


def test_a_landing_takes_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.committer.LANDING_ROWS_MAX", 10)

    async def scenario(bench: Bench) -> None:
        session = bench.session()
        for number in range(10):
            bench.send(session, str(number), first=3 * number)
        await bench.until(lambda: len(bench.answers) == 10)
        assert bench.committer.pending_bytes == 0

    bench = run(tmp_path, scenario)
    assert [name for name, _ in bench.answers] == [str(number) for number in range(10)]
    assert max(report.landed.rows for report in bench.reports) <= 10
    assert bench.rows == 30
