"""Every job, as chains: a job comes after those whose tables it reads; no two chains write one table."""

from __future__ import annotations

from spark.jobs import freshness, gaps, readings, rollups, throughput
from spark.jobs.outcome import Job

CHAINS: tuple[tuple[Job, ...], ...] = ((readings.JOB, rollups.JOB), (freshness.JOB, gaps.JOB, throughput.JOB))
JOBS: tuple[Job, ...] = tuple(job for chain in CHAINS for job in chain)
NAMES: tuple[str, ...] = tuple(job.name for job in JOBS)
