"""Endless passes: the jobs of each rhythm at their own pace, so that short jobs do not wait for long ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, get_args

from spark.jobs.job import AnalyticsJob, Rhythm
from spark.jobs.runner import JobStatus, run_pass
from spark.lake import SparkLake

FAILURES_MAX = 3
"""Failures of a rhythm in a row before following stops: a commit conflict resolves itself, a broken disk does not."""
EVERY_S: Final[Mapping[Rhythm, float]] = {"values": 5.0, "messages": 60.0, "hourly": 3600.0}
"""Seconds between the starts of two passes of a rhythm."""
REST: Final[Mapping[Rhythm, float]] = {"values": 0.0, "messages": 1.0, "hourly": 1.0}
"""Shortest pause after a pass, in durations of the pass. Values continue even on a slow machine."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Callbacks and pace of endless passes.

    `report`  is called when a job begins and ends, `passed` when a pass of a rhythm has ended, with its seconds; both
              from other threads, `passed` while no job of its rhythm writes.
    `every_s` seconds between the starts of passes, by rhythm.
    """

    report: Callable[[JobStatus], None]
    passed: Callable[[Sequence[AnalyticsJob], Sequence[JobStatus], float], None]
    every_s: Mapping[Rhythm, float] = field(default_factory=lambda: EVERY_S)


def group_by_rhythm(jobs: Sequence[AnalyticsJob]) -> dict[Rhythm, list[AnalyticsJob]]:
    """Return the jobs of each rhythm that has some, in order."""
    found: dict[Rhythm, list[AnalyticsJob]] = {
        name: [job for job in jobs if job.rhythm == name] for name in get_args(Rhythm)
    }
    return {name: some for name, some in found.items() if some}


def follow(lake: SparkLake, jobs: Sequence[AnalyticsJob], how: FollowOptions) -> list[JobStatus]:
    """Run passes until a rhythm has failed `FAILURES_MAX` times in a row; return the results of its last pass."""
    over = threading.Event()
    groups = group_by_rhythm(jobs)
    pool = ThreadPoolExecutor(len(groups), thread_name_prefix="rhythm")
    try:
        running = [pool.submit(_repeat, lake, name, some, how, over) for name, some in groups.items()]
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        return ended.pop().result()
    finally:
        # After a failure or an interruption do not wait for the threads, see `runner.run_pass`.
        over.set()
        lake.driver.cancel()
        pool.shutdown(wait=False, cancel_futures=True)


def _repeat(
    lake: SparkLake, name: Rhythm, jobs: Sequence[AnalyticsJob], how: FollowOptions, over: threading.Event
) -> list[JobStatus]:
    steps: list[JobStatus] = []
    failures = 0
    while failures < FAILURES_MAX and not over.is_set():
        started = time.monotonic()
        steps = run_pass(lake, jobs, how.report, at_once=1)
        if over.is_set():
            break
        how.passed(jobs, steps, time.monotonic() - started)
        failures = failures + 1 if any(step.state == "failed" for step in steps) else 0
        took = time.monotonic() - started
        over.wait(max(how.every_s[name] - took, REST[name] * took))
    return steps
