"""Every job in the order of a pass: one first, then chains side by side.

How far the first has come is what the others describe, so that the tables of one pass are of one version of telemetry.
A job comes after those whose tables it reads; no two chains write one table.
"""

from __future__ import annotations

from spark.jobs import freshness, gaps, readings, rollups, throughput
from spark.jobs.outcome import Job

FIRST: Job = readings.JOB
OF_READINGS: tuple[Job, ...] = (rollups.JOB,)
DESCRIPTIONS: tuple[Job, ...] = (freshness.JOB, gaps.JOB, throughput.JOB)
JOBS: tuple[Job, ...] = (FIRST, *OF_READINGS, *DESCRIPTIONS)
NAMES: tuple[str, ...] = tuple(job.name for job in JOBS)
