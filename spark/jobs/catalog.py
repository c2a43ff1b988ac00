"""Every job, and the order that follows from what each reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter

from spark.jobs import anomalies, gaps, health, messages, readings, rollups
from spark.jobs.outcome import Job
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
"""Names of jobs that are one now."""


def graph(jobs: Iterable[Job]) -> dict[str, set[str]]:
    """For each job those of `jobs` whose tables it reads. Raises `ValueError` when two write one table."""
    jobs = tuple(jobs)
    writer: dict[str, str] = {}
    for job in jobs:
        for table in job.outputs:
            if writer.setdefault(table, job.name) != job.name:
                raise ValueError(f"table {table} is written by {writer[table]} and by {job.name}")
    return {job.name: {writer[table] for table in job.inputs if table in writer} for job in jobs}


def readers(name: str, edges: Mapping[str, set[str]]) -> set[str]:
    """Jobs that read what job `name` writes, directly or not, in a `graph`."""
    direct = {job for job, read in edges.items() if name in read}
    return direct.union(*(readers(job, edges) for job in direct))


def in_order(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Each job after those whose tables it reads. Raises `graphlib.CycleError`."""
    by_name = {job.name: job for job in jobs}
    return tuple(by_name[name] for name in TopologicalSorter(graph(jobs)).static_order())


JOBS: tuple[Job, ...] = in_order(_ALL)
NAMES: tuple[str, ...] = tuple(job.name for job in JOBS)


def chosen(names: Iterable[str]) -> list[Job]:
    """Jobs by name, and those whose tables they read, in order; all when `names` is empty. Raises `KeyError`."""
    edges = graph(JOBS)
    wanted: set[str] = set()
    waiting = [ALIASES.get(name, name) for name in names] or list(NAMES)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += edges[name]
    return [job for job in JOBS if job.name in wanted]


def made_of(names: Iterable[str]) -> list[Job]:
    """Jobs by name, and those that read their tables, directly or not, in order. Raises `KeyError`."""
    edges = graph(JOBS)
    touched = {name for name in (ALIASES.get(name, name) for name in names) if edges[name] is not None}
    for job in JOBS:  # in order: what a job reads has been looked at
        if edges[job.name] & touched:
            touched.add(job.name)
    return [job for job in JOBS if job.name in touched]


def followed() -> set[str]:
    """Tables whose commits a job takes one by one."""
    return {step.source for job in JOBS for step in job.steps if isinstance(step, StreamStep)}
