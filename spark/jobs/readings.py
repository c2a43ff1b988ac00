"""`readings`: telemetry -> readings, reject."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spark.jobs.following import Following
from spark.jobs.outcome import Job
from spark.tables import Lake, Transaction
from spark.transforms import readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _take(lake: Lake, telemetry: DataFrame, transaction: Callable[[str], Transaction]) -> None:
    # Bodies are decoded once for both outputs.
    rows = readings.decoded(telemetry).persist()
    try:
        lake.append("readings", readings.readings(rows), transaction("readings"))
        rejects = readings.rejects(rows)
        if not rejects.isEmpty():
            lake.append("reject", rejects, transaction("reject"))
    finally:
        rows.unpersist()


_FOLLOWING = Following("readings", "telemetry", ("readings", "reject"), revision=1, each=_take)
JOB = Job("readings", "one row per value of each message; unreadable ones to reject", _FOLLOWING.run)
