"""`readings`: telemetry -> readings, reject."""

from __future__ import annotations

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.provenance import Provenance
from spark.transforms import readings


def _take(batch: Batch) -> None:
    # Bodies are decoded once for both outputs.
    rows = readings.decoded(batch.rows).persist()
    try:
        # Readings are last: their commit says which version of the rejects belongs to them.
        rejects = readings.rejects(rows)
        if not rejects.isEmpty():
            batch.append("reject", rejects)
        beside, made_of = batch.lake.state("reject"), batch.made_of
        if made_of is not None and beside is not None:
            made_of = Provenance(made_of.sources, {"reject": beside})
        batch.append("readings", readings.readings(rows), made_of)
    finally:
        rows.unpersist()


_FOLLOWING = Following("readings", "telemetry", ("reject", "readings"), revision=3, take=_take)
JOB = Job("readings", "one row per value of each message; unreadable ones to reject", (_FOLLOWING,))
