"""Passes without end: what takes long holds nobody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark.jobs import catalog
from spark.jobs.outcome import Job, Outcome
from spark.jobs.rounds import FAILURES_MAX, PATIENCE, RESTS, Following, Patience, follow, rounds
from spark.jobs.runner import Step
from spark.tables import Lake
from tests.spark import lakes
from tests.spark.lakes import message
from tests.support.processes import wait_until

WAIT_S = 120.0


def test_every_job_is_in_one_round_after_those_of_it_that_it_reads() -> None:
    found = rounds(catalog.JOBS)
    assert [{job.round for job in each} for each in found] == [{"values"}, {"fleet"}, {"series"}]
    assert sorted(job.name for each in found for job in each) == sorted(catalog.NAMES)
    writer = {name: job for job in catalog.JOBS for name in job.outputs}
    read_across = {
        (job.name, name)
        for job in catalog.JOBS
        for name in job.inputs
        if name in writer and writer[name].round != job.round
    }
    # What is followed is there commit by commit, whoever writes it meanwhile.
    assert read_across == {("anomalies", "readings"), ("health", "readings"), ("hours", "readings")}


def test_a_pass_begins_with_what_most_is_made_of() -> None:
    edges = catalog.graph(catalog.JOBS)
    assert catalog.readers("readings", edges) == {"rollups", "hours", "anomalies", "health"}
    assert max(catalog.NAMES, key=lambda name: len(catalog.readers(name, edges))) == "readings"
    assert catalog.readers("anomalies", edges) == set()


class _Slow:
    """A step that is not over until it is told, and fails then."""

    name = "slow"
    inputs = ("telemetry",)
    outputs = ()

    def __init__(self) -> None:
        self.begun = 0
        self.told = threading.Event()

    def run(self, _lake: Lake) -> Outcome:
        self.begun += 1
        assert self.told.wait(WAIT_S)
        raise OSError("the disk is broken")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_job_that_takes_long_does_not_hold_up_another_round(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # It is told to fail three times: on a slow machine a rest of three times the first pass was minutes.
    monkeypatch.setattr("spark.jobs.rounds.RESTS", dict.fromkeys(RESTS, 0.0))
    slow = _Slow()
    jobs = (*catalog.chosen(["readings"]), Job("slow", "", (slow,), round="series"))
    passes: list[tuple[str, ...]] = []

    def passed(jobs: Sequence[Job], _steps: Sequence[Step], _seconds: float) -> None:
        passes.append(tuple(job.name for job in jobs))

    lakes.write(lake.place, "telemetry", [message(0)])
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, lake, jobs, Following(0.2, lambda _: None, passed))
        wait_until(_has(lake, 1), timeout_s=WAIT_S, what="the first reading")
        wait_until(lambda: slow.begun == 1, timeout_s=WAIT_S, what="the slow job")
        lakes.write(lake.place, "telemetry", [message(1)])
        wait_until(_has(lake, 2), timeout_s=WAIT_S, what="the second one, while the slow job goes on")
        assert (slow.begun, ("slow",) in passes) == (1, False)
        slow.told.set()
        (step,) = following.result(WAIT_S)
    assert (step.job, step.state, slow.begun) == ("slow", "failed", FAILURES_MAX)
    assert "the disk is broken" in (step.error or "")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_while_the_first_round_is_behind_no_other_begins(lake: Lake) -> None:
    first, other = _Slow(), _Slow()
    jobs = (Job("first", "", (first,), round="values"), Job("other", "", (other,)))
    ended: list[str] = []

    def passed(jobs: Sequence[Job], _steps: Sequence[Step], _seconds: float) -> None:
        ended.append(jobs[0].name)
        if ended[-1] == "other":
            raise InterruptedError

    other.told.set()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, lake, jobs, Following(WAIT_S / PATIENCE, lambda _: None, passed))
        wait_until(lambda: first.begun == 1, timeout_s=WAIT_S, what="the first round")
        assert other.begun == 0
        first.told.set()
        with pytest.raises(InterruptedError):
            following.result(WAIT_S)
    assert ended == ["first", "other"]


def test_a_pass_waits_so_long_in_all_and_then_goes_on() -> None:
    patience, so = Patience(0.2), threading.Event()
    begun = time.monotonic()
    for _ in range(20):
        patience.wait(so)
    assert 0.2 <= time.monotonic() - begun < 0.2 * 20
    so.set()
    patience.wait(so)


def _has(lake: Lake, readings: int) -> Callable[[], bool]:
    return lambda: lake.rows("readings") == readings
