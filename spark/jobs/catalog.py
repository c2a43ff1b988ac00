"""Every job, in the order in which one pass runs them: a job comes after those whose tables it reads."""

from __future__ import annotations

from spark.jobs import freshness, gaps, readings, rollups, throughput
from spark.jobs.outcome import Job

JOBS: tuple[Job, ...] = (readings.JOB, rollups.JOB, freshness.JOB, gaps.JOB, throughput.JOB)
NAMES: tuple[str, ...] = tuple(job.name for job in JOBS)
