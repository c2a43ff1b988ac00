"""Passes without end: rounds of jobs side by side, each at its own pace, so that nobody waits for what takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import get_args

from spark.jobs.outcome import Job, Round
from spark.jobs.runner import Step, one_pass
from spark.tables import Lake

FAILURES_MAX = 3
"""Passes of a round that may fail in a row before following gives up: a commit race heals by itself, a broken disk does
not."""

RESTS: Mapping[Round, float] = {"values": 0.0, "fleet": 1.0, "series": 3.0}
"""How long a round rests after a pass, in times of what that took: so the fleet has half of the machine at most and the
series a quarter, and the values get on where it is slow."""


@dataclass(frozen=True, slots=True)
class Following:
    """How passes follow each other.

    `every_s`  from the begin of a round's pass to that of its next; after one that takes longer it rests (`RESTS`).
    `report`   is told when a job begins and ends, `passed` when a round's pass has ended, and how many seconds it took;
               both are called from other threads, `passed` while no job of its round writes.
    """

    every_s: float
    report: Callable[[Step], None]
    passed: Callable[[Sequence[Job], Sequence[Step], float], None]


def rounds(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs of each round that has some, in their order."""
    found = ([job for job in jobs if job.round == name] for name in get_args(Round))
    return [each for each in found if each]


def follow(lake: Lake, jobs: Sequence[Job], how: Following) -> list[Step]:
    """Run passes until a round has failed `FAILURES_MAX` times in a row; returns the steps of its last one."""
    over = threading.Event()
    groups = rounds(jobs)
    pool = ThreadPoolExecutor(len(groups), thread_name_prefix="round")
    try:
        running = [pool.submit(_repeat, lake, group, how, over) for group in groups]
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        return ended.pop().result()
    finally:
        # Given up, or interrupted: threads end when Spark gives up what they wait for, which every job can stand.
        over.set()
        lake.session.sparkContext.cancelAllJobs()
        pool.shutdown(wait=False, cancel_futures=True)


def _repeat(lake: Lake, jobs: Sequence[Job], how: Following, over: threading.Event) -> list[Step]:
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
        over.wait(max(how.every_s - took, RESTS[jobs[0].round] * took))
    return steps
