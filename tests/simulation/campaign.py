"""Run many seeds at once, on every core."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.run import run
from tests.simulation.world import Options

CHUNK = 10
"""Number of seeds that a worker takes at a time."""


def judge(seed: int, options: Options) -> tuple[int, int, list[str]]:
    """Return (seed, steps, violations) of one run."""
    world, violations = run(seed, options)
    return seed, world.scheduler.steps, [str(violation) for violation in violations[:5]]


def campaign(seeds: Sequence[int], options: Options) -> tuple[int, dict[int, list[str]]]:
    """Run these seeds; return the total number of steps, and the violations of the seeds that failed."""
    workers = min(os.cpu_count() or 1, max(1, len(seeds) // CHUNK))
    with ProcessPoolExecutor(workers, get_context("spawn"), _keep_modules) as pool:
        return _sum(pool.map(partial(judge, options=options), seeds, chunksize=CHUNK))


def _keep_modules() -> None:
    """Exclude the imported modules from garbage collection: they outlive every run."""
    gc.collect()
    gc.freeze()


def _sum(results: Iterable[tuple[int, int, list[str]]]) -> tuple[int, dict[int, list[str]]]:
    steps, failed = 0, dict[int, list[str]]()
    for seed, taken, violations in results:
        steps += taken
        if violations:
            failed[seed] = violations
    return steps, failed
