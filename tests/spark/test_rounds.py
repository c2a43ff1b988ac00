"""Endless passes: each rhythm runs at its own interval, and a slow job delays no other. No JVM."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from spark.jobs import catalog, rhythms
from spark.jobs.job import AnalyticsJob, JobResult, Rhythm
from spark.jobs.rhythms import FAILURES_MAX, FollowOptions, follow, group_by_rhythm
from spark.jobs.runner import JobStatus
from spark.lake import SparkLake
from tests.support.processes import wait_until

WAIT_S = 60.0
AT_ONCE: Final[dict[Rhythm, float]] = {"values": 0.0, "messages": 0.0, "hourly": 0.0}


def test_each_job_has_one_rhythm_and_reads_from_faster_ones_by_commit_only() -> None:
    found = group_by_rhythm(catalog.JOBS)
    assert list(found) == ["values", "messages", "hourly"]
    assert sorted(job.name for some in found.values() for job in some) == sorted(catalog.NAMES)
    writer = {name: job for job in catalog.JOBS for name in job.outputs}
    read_across = {
        (job.name, name)
        for job in catalog.JOBS
        for name in job.inputs
        if name in writer and writer[name].rhythm != job.rhythm
    }
    assert read_across == {("anomalies", "readings"), ("health", "readings"), ("hours", "readings")}
    assert {name for _, name in read_across} <= catalog.followed_tables()


def test_a_pass_begins_with_what_most_is_made_of() -> None:
    edges = catalog.build_graph(catalog.JOBS)
    assert catalog.find_readers("readings", edges) == {"rollups", "hours", "anomalies", "health"}
    assert max(catalog.NAMES, key=lambda name: len(catalog.find_readers(name, edges))) == "readings"
    assert catalog.find_readers("anomalies", edges) == set()


def test_former_names_of_jobs_choose_the_job_that_has_their_tables() -> None:
    for name, tables in (
        ("freshness", {"gateway_freshness"}),
        ("slo", {"delivery_slo"}),
        ("throughput", {"throughput"}),
        ("outages", {"outages"}),
    ):
        (job,) = catalog.select([name])
        assert (job.name, tables <= set(job.outputs)) == ("messages", True)
        assert [job.name for job in catalog.select_dependents([name])] == ["messages", "gaps"]
    with pytest.raises(KeyError):
        catalog.select_dependents(["dreams"])


@dataclass
class _Work:
    """Step without tables that records the times of its runs; it fails once it `may_end` if `error` is set."""

    name: str
    error: str | None = None
    may_end: threading.Event = field(default_factory=threading.Event)
    begun: list[float] = field(default_factory=list)
    seconds: float = 0.0
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()

    def run(self, _lake: SparkLake) -> JobResult:
        """Wait, then fail if configured."""
        self.begun.append(time.monotonic())
        assert self.may_end.wait(WAIT_S)
        time.sleep(self.seconds)
        if self.error is not None:
            raise OSError(self.error)
        return JobResult(0, 0)

    def forget(self, _lake: SparkLake) -> None:
        """Forget nothing: the step has no tables."""


def test_a_job_that_takes_long_does_not_hold_up_another_rhythm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a slow machine a rest as long as the first pass takes minutes.
    monkeypatch.setattr(rhythms, "REST", AT_ONCE)
    slow, quick = _Work("slow", "the disk is broken"), _Work("quick")
    quick.may_end.set()
    jobs = (AnalyticsJob("slow", "", (slow,), rhythm="hourly"), AnalyticsJob("quick", "", (quick,), rhythm="values"))
    passes: list[str] = []

    def passed(jobs: Sequence[AnalyticsJob], _steps: Sequence[JobStatus], _seconds: float) -> None:
        passes.extend(job.name for job in jobs)

    every = AT_ONCE | {"values": 0.01}
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, SparkLake(None, tmp_path), jobs, FollowOptions(lambda _: None, passed, every))
        wait_until(lambda: len(slow.begun) == 1, timeout_s=WAIT_S, what="the slow job")
        before = passes.count("quick")
        wait_until(lambda: passes.count("quick") > before + 3, timeout_s=WAIT_S, what="passes while it goes on")
        assert (len(slow.begun), "slow" in passes) == (1, False)
        slow.may_end.set()
        (step,) = following.result(WAIT_S)
    assert (step.job, step.state, len(slow.begun)) == ("slow", "failed", FAILURES_MAX)
    assert "the disk is broken" in (step.error or "")


def test_a_rhythm_rests_as_long_as_its_pass_took(tmp_path: Path) -> None:
    work = _Work("slow", "the disk is broken", seconds=0.2)
    work.may_end.set()
    how = FollowOptions(lambda _: None, lambda *_: None, AT_ONCE)
    follow(SparkLake(None, tmp_path), [AnalyticsJob("slow", "", (work,), rhythm="messages")], how)
    pauses = [later - earlier for earlier, later in zip(work.begun, work.begun[1:], strict=False)]
    assert len(pauses) == FAILURES_MAX - 1
    assert min(pauses) >= 2 * work.seconds * rhythms.REST["messages"]
