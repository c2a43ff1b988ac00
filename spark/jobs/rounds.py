"""Passes without end: the jobs of each rhythm at its own pace, so that short jobs do not wait for long ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, get_args

from spark.jobs.outcome import Job, Rhythm
from spark.jobs.runner import Step, one_pass
from spark.lake import Lake

FAILURES_MAX = 3
"""Passes of a rhythm that may fail in a row before following gives up: a commit race heals by itself, a broken disk
does not."""
EVERY_S: Final[Mapping[Rhythm, float]] = {"values": 5.0, "messages": 60.0, "hourly": 3600.0}
"""Seconds from the begin of a pass of a rhythm to that of its next."""
REST: Final[Mapping[Rhythm, float]] = {"values": 0.0, "messages": 1.0, "hourly": 1.0}
"""Shortest rest of a rhythm after a pass, in times of the pass: values go on even where a machine is slow."""


@dataclass(frozen=True, slots=True)
class Following:
    """How passes follow each other.

    `report`  is called when a job begins and ends, `passed` when a pass of a rhythm has ended, with its seconds; both
              from other threads, `passed` while no job of its rhythm writes.
    `every_s` seconds between the begins of passes, by rhythm.
    """

    report: Callable[[Step], None]
    passed: Callable[[Sequence[Job], Sequence[Step], float], None]
    every_s: Mapping[Rhythm, float] = field(default_factory=lambda: EVERY_S)


def by_rhythm(jobs: Sequence[Job]) -> dict[Rhythm, list[Job]]:
    """Return the jobs of each rhythm that has some, in their order."""
    found: dict[Rhythm, list[Job]] = {name: [job for job in jobs if job.rhythm == name] for name in get_args(Rhythm)}
    return {name: some for name, some in found.items() if some}


def follow(lake: Lake, jobs: Sequence[Job], how: Following) -> list[Step]:
    """Run passes until a rhythm has failed `FAILURES_MAX` times in a row; returns the steps of its last pass."""
    over = threading.Event()
    groups = by_rhythm(jobs)
    pool = ThreadPoolExecutor(len(groups), thread_name_prefix="rhythm")
    try:
        running = [pool.submit(_repeat, lake, name, some, how, over) for name, some in groups.items()]
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        return ended.pop().result()
    finally:
        # Given up, or interrupted: nobody waits for the threads, see `runner.one_pass`.
        over.set()
        lake.driver.cancel()
        pool.shutdown(wait=False, cancel_futures=True)


def _repeat(lake: Lake, name: Rhythm, jobs: Sequence[Job], how: Following, over: threading.Event) -> list[Step]:
    steps: list[Step] = []
    failures = 0
    while failures < FAILURES_MAX and not over.is_set():
        begun = time.monotonic()
        steps = one_pass(lake, jobs, how.report, at_once=1)
        if over.is_set():
            break
        how.passed(jobs, steps, time.monotonic() - begun)
        failures = failures + 1 if any(step.state == "failed" for step in steps) else 0
        took = time.monotonic() - begun
        over.wait(max(how.every_s[name] - took, REST[name] * took))
    return steps
