"""Passes: every job once in one session; again and again when following.

The runner owns the session and reports progress through a callback; it prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import deltalake
import pyarrow as pa

from spark import session
from spark.jobs.catalog import DESCRIPTIONS, FIRST, JOBS, OF_READINGS
from spark.jobs.outcome import Job
from spark.tables import Lake, SchemaMismatch

QUICK_BYTES_MAX = 64 * 1024 * 1024
"""Up to this much telemetry a pass lasts seconds, and the JVM's second compiler costs more than it gives."""
LOG = Path("_logs") / "spark.log"

State = Literal["running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Step:
    """Where one job of a pass is. `seconds` and rows are final once `state` is not `running`."""

    job: str
    state: State
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    error: str | None = None
    integrity: bool = False


def chosen(names: Sequence[str]) -> list[Job]:
    """Jobs by name in the order of a pass; all when `names` is empty. Raises `KeyError` for an unknown name."""
    known = {job.name: job for job in JOBS}
    for name in names:
        known[name]
    return [job for job in JOBS if not names or job.name in names]


@contextmanager
def opened(root: Path, options: session.Options) -> Iterator[Lake]:
    """The lake at `root` through a session of its own, which is gone with its JVM afterwards."""
    started = session.start("waypost-analytics", options)
    try:
        yield Lake(started, root)
    finally:
        session.stop(started)


def is_small(root: Path) -> bool:
    """Whether a pass over the lake at `root` is a matter of seconds."""
    path = str(root / "telemetry")
    if not deltalake.DeltaTable.is_deltatable(path):
        return True
    sizes = pa.table(deltalake.DeltaTable(path).get_add_actions(flatten=True))["size_bytes"]
    total: int = sum(sizes.to_pylist())
    return total <= QUICK_BYTES_MAX


def one_pass(lake: Lake, jobs: Sequence[Job], report: Callable[[Step], None]) -> list[Step]:
    """Run `jobs`: readings, then chain beside chain, as most of a small pass is one thread of the driver planning.

    Where readings has come to is where the others see the landed tables; without it, as they are now. A job that fails
    ends what reads its tables. `report` is called from other threads.
    """
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="chain") as pool:
        try:
            first = pool.submit(_run_chain, lake, [job for job in jobs if job is FIRST], report).result()
            failed = any(step.state == "failed" for step in first)
            pinned = _pinned(lake, as_of_readings=bool(first) and not failed)
            chains = (DESCRIPTIONS,) if failed else (OF_READINGS, DESCRIPTIONS)
            chosen = ([job for job in chain if job in jobs] for chain in chains)
            running = [pool.submit(_run_chain, pinned, chain, report) for chain in chosen]
            return [*first, *(step for future in running for step in future.result())]
        except BaseException:
            # Interrupted: the threads end when Spark gives up what they wait for, which every job can stand.
            for query in lake.session.streams.active:
                query.stop()
            lake.session.sparkContext.cancelAllJobs()
            raise


def _pinned(lake: Lake, *, as_of_readings: bool) -> Lake:
    made_of = lake.provenance("readings") if as_of_readings else None
    if made_of is None or made_of.telemetry is None:
        return lake.pin()
    return lake.pin_as_of(made_of.telemetry)


def _run_chain(lake: Lake, chain: Sequence[Job], report: Callable[[Step], None]) -> list[Step]:
    steps = []
    for job in chain:
        report(Step(job.name, "running"))
        step = _run(lake, job)
        steps.append(step)
        report(step)
        if step.state == "failed":
            break
    return steps


def _run(lake: Lake, job: Job) -> Step:
    started = time.monotonic()
    try:
        outcome = job.run(lake)
    except SchemaMismatch as error:
        return Step(job.name, "failed", seconds=time.monotonic() - started, error=str(error), integrity=True)
    except Exception as error:
        return Step(job.name, "failed", seconds=time.monotonic() - started, error=_first_lines(error))
    return Step(job.name, "done", outcome.rows_in, outcome.rows_out, time.monotonic() - started)


def _first_lines(error: Exception) -> str:
    """What an error says without the plan and the Java stack that Spark appends."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:500]}"
