"""Passes without end: rounds of jobs side by side, each at its own pace, so that nobody waits for what takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import get_args

from spark.jobs.outcome import Job, Round
from spark.jobs.runner import Step, one_pass
from spark.tables import Lake

FAILURES_MAX = 3
"""Passes of a round that may fail in a row before following gives up: a commit race heals by itself, a broken disk does
not."""

RESTS: Mapping[Round, float] = {"values": 0.0, "fleet": 1.0, "series": 2.0}
"""How long a round rests after a pass, in times of what that took: so the fleet takes half of the time at most and the
series a third, and the values get on where a machine is slow."""
FIRST: Round = "values"
"""What people wait for: while it is behind, as after a start, no other round begins a pass or a job, for a while."""
BEHIND, PATIENCE = 1.5, 12.0
"""In times of `Following.every_s`: how long a pass of the first round takes that is behind; how long a pass of another
one waits for it, in all."""


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


class Patience:
    """How long a pass waits for something, in all, however often."""

    def __init__(self, left_s: float) -> None:
        self._left_s = left_s

    def wait(self, for_: threading.Event) -> None:
        """Until it is so, or patience is over."""
        begun = time.monotonic()
        for_.wait(max(0.0, self._left_s))
        self._left_s -= time.monotonic() - begun


def follow(lake: Lake, jobs: Sequence[Job], how: Following) -> list[Step]:
    """Run passes until a round has failed `FAILURES_MAX` times in a row; returns the steps of its last one."""
    over, keeps_up = threading.Event(), threading.Event()
    groups = rounds(jobs)
    if groups[0][0].round != FIRST:
        keeps_up.set()
    pool = ThreadPoolExecutor(len(groups), thread_name_prefix="round")
    try:
        running = [pool.submit(_repeat, lake, group, how, over, keeps_up) for group in groups]
        ended, _ = wait(running, return_when=FIRST_COMPLETED)
        return ended.pop().result()
    finally:
        # Given up, or interrupted: nobody waits for the threads, see `runner.one_pass`.
        over.set()
        keeps_up.set()
        lake.driver.cancel()
        pool.shutdown(wait=False, cancel_futures=True)


def _repeat(
    lake: Lake, jobs: Sequence[Job], how: Following, over: threading.Event, keeps_up: threading.Event
) -> list[Step]:
    """`keeps_up`: the first round does."""
    steps: list[Step] = []
    failures, name = 0, jobs[0].round
    while failures < FAILURES_MAX and not over.is_set():
        patience = Patience(PATIENCE * how.every_s if name != FIRST else 0.0)
        wait_for_values = partial(patience.wait, keeps_up)
        wait_for_values()
        begun = time.monotonic()
        steps = one_pass(lake, jobs, how.report, at_once=1, before_each=wait_for_values)
        if over.is_set():
            break
        how.passed(jobs, steps, time.monotonic() - begun)
        failures = failures + 1 if any(step.state == "failed" for step in steps) else 0
        took = time.monotonic() - begun
        if name == FIRST and took > BEHIND * how.every_s:
            keeps_up.clear()
        elif name == FIRST:
            keeps_up.set()
        over.wait(max(how.every_s - took, RESTS[name] * took))
    return steps
