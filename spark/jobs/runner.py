"""Passes: every job once in one session; again and again when following.

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
from cloud.place.place import LakePlace, Somewhere, place_of
from spark import conflict, remedy, schemas, session, verification
from spark.driver import Driver
from spark.jobs import catalog
from spark.jobs.checkpoint import SourceLost
from spark.jobs.outcome import Job
from spark.lake import FormatUnknown, Lake, SchemaMismatch
from spark.remedy import TableUnreadable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud.place.bucket import Bucket

SMALL_BYTES_MAX = 128 * 1024 * 1024
"""Up to this much telemetry a pass lasts seconds, and the JVM's second compiler costs more than it gives."""
TINY_BYTES_MAX = 256 * 1024
"""Up to this much telemetry, some thousand messages, compiling a plan takes longer than interpreting it."""
AT_ONCE = 2
"""Jobs of a pass that run side by side: most of each is one thread that plans."""
LOG = Path("_logs") / "spark.log"
"""In a lake that is a folder."""

State = Literal["running", "done", "failed", "skipped"]
INTEGRITY_ERRORS = (SchemaMismatch, FormatUnknown, TableUnreadable, SourceLost)
"""What breaks the contract of the data, and not of a program or a machine."""


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


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told when Spark is started: before, and how many seconds it took."""

    starts: Callable[[], None] = lambda: None
    started: Callable[[float], None] = lambda _: None


@contextmanager
def opened(lake: Somewhere, options: session.Options, watch: Watch = Watch()) -> Iterator[Lake]:
    """The lake through a session of its own, which is gone with its JVM afterwards.

    On one machine that is started by the first job that needs it; else at once, and this raises what `session.start`
    raises.
    """
    place = place_of(lake)
    options = replace(options, bucket=_bucket(place))

    def start() -> SparkSession:
        watch.starts()
        begun = time.monotonic()
        started = session.start("waypost-analytics", options)
        watch.started(time.monotonic() - begun)
        return started

    driver = Driver(start) if session.may_wait(options) else Driver.running(start())
    try:
        yield Lake(driver, place)
    finally:
        driver.stop()


def _bucket(place: LakePlace) -> Bucket | None:
    from cloud.place.bucket import Bucket  # noqa: PLC0415 - a folder needs no client of object stores

    return place if isinstance(place, Bucket) else None


def load(lake: Somewhere) -> session.Load:
    """How much a pass over the lake has to do."""
    telemetry = place_of(lake).at("telemetry")
    try:
        sizes = pa.table(telemetry.delta().get_add_actions(flatten=True))["size_bytes"]
    except TableNotFoundError:
        return "tiny"
    except remedy.FAILURES:
        return "large"  # the jobs say what is wrong; what is to be done besides may be of any size
    total: int = sum(sizes.to_pylist())
    bounds: tuple[tuple[int, session.Load], ...] = ((TINY_BYTES_MAX, "tiny"), (SMALL_BYTES_MAX, "small"))
    return next((load for bound, load in bounds if total <= bound), "large")


def log_of(lake: LakePlace) -> Path:
    """The file that takes what the JVM says: in the lake where that is a folder, else in this user's cache."""
    if isinstance(lake, Folder):
        return lake.path / LOG
    return Path.home() / ".cache" / "waypost" / LOG.name


def forget(lake: Lake, jobs: Sequence[Job]) -> None:
    """Empty the tables of `jobs`; the next pass makes them, and all that is made of them, anew from the start."""
    for job in jobs:
        for step in job.steps:
            step.forget(lake)


def one_pass(
    lake: Lake,
    jobs: Sequence[Job],
    report: Callable[[Step], None],
    *,
    at_once: int = AT_ONCE,
) -> list[Step]:
    """Run `jobs`, each after those whose tables it reads. Returns their steps, in the order of `jobs`.

    `at_once`: jobs that run side by side. A job that fails ends what reads its tables, and nothing else. `report` is
    called from other threads. Raises what starting Spark raised where a job needed it, once the others have ended.
    Interrupted it returns at once, and jobs may be at work still.
    """
    edges = catalog.graph(jobs)
    waiting = TopologicalSorter(edges)
    by_name = {job.name: job for job in jobs}
    steps: dict[str, Step] = {}
    waiting.prepare()
    pool = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="job")
    ready: list[str] = []
    running: set[Future[Step]] = set()
    try:
        while waiting.is_active():
            ready += waiting.get_ready()
            ready.sort(key=lambda name: _urgency(by_name[name], edges))
            while ready and len(running) < at_once:
                name = ready.pop()
                broken = [before for before in edges[name] if steps[before].state != "done"]
                running.add(pool.submit(_run, lake, by_name[name], broken, report))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                step = future.result()
                steps[step.job] = step
                waiting.done(step.job)
    except BaseException:
        lake.driver.cancel()
        raise
    finally:
        # Interrupted, nobody waits: the threads end when Spark gives up what they wait for, or when what they do in
        # this process is done. Every job can stand that, and that the process ends before.
        pool.shutdown(wait=False, cancel_futures=True)
    if lake.driver.error is not None:
        raise lake.driver.error
    return [steps[job.name] for job in jobs]


def _urgency(job: Job, edges: Mapping[str, set[str]]) -> int:
    """Return how many jobs read what this one writes, directly or not: a pass is over when its longest chain is."""
    return len(catalog.readers(job.name, edges))


def _run(lake: Lake, job: Job, broken: Sequence[str], report: Callable[[Step], None]) -> Step:
    if broken:
        step = Step(job.name, "skipped", error=f"not run, as {', '.join(sorted(broken))} failed")
    else:
        report(Step(job.name, "running"))
        step = _done(lake, job)
    report(step)
    return step


def _done(lake: Lake, job: Job) -> Step:
    started = time.monotonic()
    lake.driver.assign_pool(job.rhythm)
    try:
        outcome = job.run(lake)
    except INTEGRITY_ERRORS as error:
        said = f"{error}. {remedy.OTHER_COLUMNS}" if isinstance(error, SchemaMismatch) else str(error)
        return Step(job.name, "failed", seconds=time.monotonic() - started, error=said, integrity=True)
    except Exception as error:
        seconds = time.monotonic() - started
        if error is lake.driver.error:
            return Step(job.name, "failed", seconds=seconds, error=str(error))
        if isinstance(error, conflict.Overtaken):
            return Step(job.name, "failed", seconds=seconds, error=str(error))
        wrong = _damaged(lake, job, error)
        return Step(job.name, "failed", seconds=seconds, error=wrong or _first_lines(error), integrity=bool(wrong))
    seconds = time.monotonic() - started
    return Step(job.name, "done", outcome.rows_in, outcome.rows_out, seconds)


def _damaged(lake: Lake, job: Job, error: Exception) -> str | None:
    """Return what is wrong with derived tables of a job, or with tables that an error names files of, and what to do;
    None: nothing."""
    text = str(error)
    names = [name for name in (*job.inputs, *job.outputs) if name in schemas.DERIVED and lake.at(name).is_table()]
    names += [name for name in lake.place.tables() if name not in names and f"/{name}/" in text]
    found = [checked for checked in verification.verified(lake.place, names) if checked.wrong]
    if not found:
        return None
    first, count = found[0], sum(len(checked.wrong) for checked in found)
    if first.failure is not None:
        return first.failure
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"{first.wrong[0]}{more}. {remedy.of_files(first.table)}"


def _first_lines(error: Exception) -> str:
    """What an error says without the plan and the Java stack that Spark appends."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:500]}"
