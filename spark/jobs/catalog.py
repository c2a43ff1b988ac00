"""All jobs, sorted by their inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter

from spark.jobs import anomalies, gaps, health, messages, readings, rollups
from spark.jobs.job import AnalyticsJob
from spark.jobs.stream import StreamStep

_ALL = (
    readings.JOB,
    rollups.MINUTES,
    messages.JOB,
    anomalies.JOB,
    gaps.JOB,
    rollups.HOURS,
    health.JOB,
)
ALIASES: Mapping[str, str] = dict.fromkeys(("freshness", "slo", "throughput", "outages"), messages.JOB.name)
"""Former names of jobs that were merged."""


def build_graph(jobs: Iterable[AnalyticsJob]) -> dict[str, set[str]]:
    """Return for each job the jobs that write the tables it reads. Raises `ValueError` if two write one table."""
    jobs = tuple(jobs)
    writer: dict[str, str] = {}
    for job in jobs:
        for table in job.outputs:
            if writer.setdefault(table, job.name) != job.name:
                raise ValueError(f"table {table} is written by {writer[table]} and by {job.name}")
    return {job.name: {writer[table] for table in job.inputs if table in writer} for job in jobs}


def find_readers(name: str, edges: Mapping[str, set[str]]) -> set[str]:
    """Return the jobs that read the output of a job, directly or through other jobs."""
    direct = {job for job, read in edges.items() if name in read}
    return direct.union(*(find_readers(job, edges) for job in direct))


def sort_jobs(jobs: Sequence[AnalyticsJob]) -> tuple[AnalyticsJob, ...]:
    """Return the jobs in order: each after the jobs that write the tables it reads. Raises `graphlib.CycleError`."""
    by_name = {job.name: job for job in jobs}
    return tuple(by_name[name] for name in TopologicalSorter(build_graph(jobs)).static_order())


JOBS: tuple[AnalyticsJob, ...] = sort_jobs(_ALL)
NAMES: tuple[str, ...] = tuple(job.name for job in JOBS)


def select(names: Iterable[str]) -> list[AnalyticsJob]:
    """Return the named jobs and the jobs that write their inputs, in order; all jobs if `names` is empty.

    Raises `KeyError`.
    """
    edges = build_graph(JOBS)
    wanted: set[str] = set()
    waiting = [ALIASES.get(name, name) for name in names] or list(NAMES)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += edges[name]
    return [job for job in JOBS if job.name in wanted]


def select_dependents(names: Iterable[str]) -> list[AnalyticsJob]:
    """Return the named jobs and all jobs that depend on them, in order. Raises `KeyError`."""
    edges = build_graph(JOBS)
    touched = {ALIASES.get(name, name) for name in names}
    if unknown := touched - edges.keys():
        raise KeyError(unknown.pop())
    for job in JOBS:  # sorted: the inputs of a job come before it
        if edges[job.name] & touched:
            touched.add(job.name)
    return [job for job in JOBS if job.name in touched]


def followed_tables() -> set[str]:
    """Return the tables that a job follows commit by commit."""
    return {step.source for job in JOBS for step in job.steps if isinstance(step, StreamStep)}
