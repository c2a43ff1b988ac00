"""Run passes: every job once in one session.

The runner owns the session and reports progress through a callback; it prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from cloud.place.folder import Folder
from cloud.place.place import LakeLocation, LakePlace, place_of
from spark import conflict, schemas, session, table_errors, verification
from spark.driver import SparkDriver
from spark.jobs import catalog
from spark.jobs.checkpoint import SourceLost
from spark.jobs.job import AnalyticsJob
from spark.lake import FormatUnknown, SchemaMismatch, SparkLake
from spark.table_errors import TableUnreadable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud.place.bucket import Bucket

SMALL_BYTES_MAX = 16 * 1024 * 1024
"""Up to this size of telemetry, some 400 000 messages, the JVM's second compiler costs more than it saves.

A first pass of the values over 27 MB took 131 CPU s without it and 109 with it.
"""
TINY_BYTES_MAX = 256 * 1024
"""Up to this size, some thousand messages, compiling a plan takes longer than interpreting it."""
AT_ONCE = 2
"""Jobs of a pass that run concurrently: most of each is one thread that plans."""
LOG = Path("_logs") / "spark.log"
"""Log file in a lake that is a folder."""

State = Literal["running", "done", "failed", "skipped"]
INTEGRITY_ERRORS = (SchemaMismatch, FormatUnknown, TableUnreadable, SourceLost)
"""Errors of the data, not of a program or a machine."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Status of one job of a pass. `seconds` and rows are final once `state` is not `running`."""

    job: str
    state: State
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    error: str | None = None
    integrity: bool = False


@dataclass(frozen=True, slots=True)
class StartCallbacks:
    """Callbacks before Spark is started, and after it, with the seconds it took."""

    starts: Callable[[], None] = lambda: None
    started: Callable[[float], None] = lambda _: None


@contextmanager
def open_lake(
    lake: LakeLocation, options: session.SessionOptions, watch: StartCallbacks = StartCallbacks()
) -> Iterator[SparkLake]:
    """Open a lake with a session of its own; the JVM ends with the body.

    On one machine the first job that needs Spark starts it. Otherwise it is started at once, and this raises what
    `session.start` raises.
    """
    place = place_of(lake)
    options = replace(options, bucket=_bucket(place))

    def start() -> SparkSession:
        watch.starts()
        began = time.monotonic()
        started = session.start("waypost-analytics", options)
        watch.started(time.monotonic() - began)
        return started

    driver = SparkDriver(start) if session.can_start_later(options) else SparkDriver.running(start())
    try:
        yield SparkLake(driver, place)
    finally:
        driver.stop()


def _bucket(place: LakePlace) -> Bucket | None:
    from cloud.place.bucket import Bucket  # noqa: PLC0415 - a folder needs no client of object stores

    return place if isinstance(place, Bucket) else None


def estimate_load(lake: LakeLocation) -> session.Load:
    """Return how much work a pass over the lake has."""
    telemetry = place_of(lake).at("telemetry")
    try:
        sizes = pa.table(telemetry.delta().get_add_actions(flatten=True))["size_bytes"]
    except TableNotFoundError:
        return "tiny"
    except table_errors.FAILURES:
        return "large"  # the jobs say what is wrong; what is to be done besides may be of any size
    total: int = sum(sizes.to_pylist())
    bounds: tuple[tuple[int, session.Load], ...] = ((TINY_BYTES_MAX, "tiny"), (SMALL_BYTES_MAX, "small"))
    return next((estimate_load for bound, estimate_load in bounds if total <= bound), "large")


def log_file(lake: LakePlace) -> Path:
    """Return the file for the JVM's output: in the lake if that is a folder, else in this user's cache."""
    if isinstance(lake, Folder):
        return lake.path / LOG
    return Path.home() / ".cache" / "waypost" / LOG.name


def empty_tables(lake: SparkLake, jobs: Sequence[AnalyticsJob]) -> None:
    """Empty the tables of these jobs; the next pass rebuilds them, and all tables derived from them."""
    for job in jobs:
        for step in job.steps:
            step.forget(lake)


def run_pass(
    lake: SparkLake,
    jobs: Sequence[AnalyticsJob],
    report: Callable[[JobStatus], None],
    *,
    at_once: int = AT_ONCE,
) -> list[JobStatus]:
    """Run the jobs, each after the jobs that write the tables it reads. Return their results, in the order of `jobs`.

    `at_once`: jobs that run concurrently. A failed job skips its readers, and nothing else. `report` is called from
    other threads. Raises what starting Spark raised, after the other jobs have ended. When interrupted it returns at
    once, and jobs may still be running.
    """
    edges = catalog.build_graph(jobs)
    waiting = TopologicalSorter(edges)
    by_name = {job.name: job for job in jobs}
    steps: dict[str, JobStatus] = {}
    waiting.prepare()
    pool = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="job")
    ready: list[str] = []
    running: set[Future[JobStatus]] = set()
    try:
        while waiting.is_active():
            ready += waiting.get_ready()
            ready.sort(key=lambda name: _count_readers(by_name[name], edges))
            while ready and len(running) < at_once:
                name = ready.pop()
                broken = [before for before in edges[name] if steps[before].state != "done"]
                running.add(pool.submit(_run_reported, lake, by_name[name], broken, report))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                step = future.result()
                steps[step.job] = step
                waiting.done(step.job)
    except BaseException:
        lake.driver.cancel()
        raise
    finally:
        # After an interruption do not wait: the threads end when Spark cancels their work, or when their work in this
        # process is done. Every job tolerates that, and also that the process ends earlier.
        pool.shutdown(wait=False, cancel_futures=True)
    if lake.driver.error is not None:
        raise lake.driver.error
    return [steps[job.name] for job in jobs]


def _count_readers(job: AnalyticsJob, edges: Mapping[str, set[str]]) -> int:
    """Return how many jobs read what this one writes, directly or not: the longest chain decides when a pass ends."""
    return len(catalog.find_readers(job.name, edges))


def _run_reported(
    lake: SparkLake, job: AnalyticsJob, broken: Sequence[str], report: Callable[[JobStatus], None]
) -> JobStatus:
    if broken:
        step = JobStatus(job.name, "skipped", error=f"not run, as {', '.join(sorted(broken))} failed")
    else:
        report(JobStatus(job.name, "running"))
        step = _run_job(lake, job)
    report(step)
    return step


def _run_job(lake: SparkLake, job: AnalyticsJob) -> JobStatus:
    started = time.monotonic()
    lake.driver.assign_pool(job.rhythm)
    try:
        outcome = job.run(lake)
    except INTEGRITY_ERRORS as error:
        text = f"{error}. {table_errors.OTHER_COLUMNS}" if isinstance(error, SchemaMismatch) else str(error)
        return JobStatus(job.name, "failed", seconds=time.monotonic() - started, error=text, integrity=True)
    except Exception as error:
        seconds = time.monotonic() - started
        if error is lake.driver.error:
            return JobStatus(job.name, "failed", seconds=seconds, error=str(error))
        if isinstance(error, conflict.ConcurrentWrite):
            return JobStatus(job.name, "failed", seconds=seconds, error=str(error))
        problems = _explain_damage(lake, job, error)
        return JobStatus(
            job.name, "failed", seconds=seconds, error=problems or _first_lines(error), integrity=bool(problems)
        )
    seconds = time.monotonic() - started
    return JobStatus(job.name, "done", outcome.rows_in, outcome.rows_out, seconds)


def _explain_damage(lake: SparkLake, job: AnalyticsJob, error: Exception) -> str | None:
    """Return what is wrong with tables that a job or an error names, and what to do; None if nothing is."""
    text = str(error)
    names = [name for name in (*job.inputs, *job.outputs) if name in schemas.DERIVED and lake.at(name).is_table()]
    names += [name for name in lake.place.tables() if name not in names and f"/{name}/" in text]
    found = [checked for checked in verification.verify(lake.place, names) if checked.problems]
    if not found:
        return None
    first, count = found[0], sum(len(checked.problems) for checked in found)
    if first.failure is not None:
        return first.failure
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"{first.problems[0]}{more}. {table_errors.advise_for_files(first.table)}"


def _first_lines(error: Exception) -> str:
    """Return an error without the plan and the Java stack that Spark appends."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:500]}"
