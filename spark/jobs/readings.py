"""`readings`: telemetry -> readings, reject, sparkplug_births -> sparkplug_last_births."""

from __future__ import annotations

from msgspec import structs
from pyspark.sql import functions as F  # noqa: N812

from spark.jobs import decoding, last_births
from spark.jobs.job import AnalyticsJob
from spark.jobs.replay import Replay
from spark.jobs.stream import MicroBatch, StreamStep
from spark.lineage import TableLineage
from spark.transforms import births, readings


def _process(batch: MicroBatch) -> None:
    # Rejects are the first that a batch writes by what is registered and known: a retry goes by the same.
    pins = batch.find_pins("reject")
    retried = pins is not None
    pins = pins or decoding.pin(batch.lake, (batch.transaction.application, batch.transaction.version))
    decoded = decoding.decode(batch.lake, batch.rows, pins).persist()
    # Most lakes have no Sparkplug at all, most batches nothing unreadable: one query shows it.
    is_reject = F.col("reason").isNotNull()
    looked_for = (births.is_data("address"), births.is_birth("address") & ~is_reject, is_reject)
    has_data, has_births, has_rejects = decoded.agg(*map(F.max, looked_for)).first() or (False, False, False)
    if has_births:
        batch.append("sparkplug_births", births.births(decoded))
    if not retried:  # with the births of this batch
        pins = structs.replace(pins, births=batch.lake.version("sparkplug_births"))
    rows = decoded
    if has_data:
        rows = births.name_metrics(decoded, last_births.read_births(batch.lake, decoded, pins.births)).persist()
    try:
        rejects = readings.rejects(rows)
        if has_rejects or (has_data and not rejects.isEmpty()):
            batch.append("reject", rejects, TableLineage({}, pins=pins))
        # Readings are last: their commit names the version of the rejects that belongs to them.
        batch.append("readings", readings.readings(rows))
    finally:
        rows.unpersist()
        decoded.unpersist()


_STREAM = StreamStep("readings", "telemetry", ("sparkplug_births", "reject", "readings"), revision=3, process=_process)
JOB = AnalyticsJob(
    "readings",
    "one row per value of each message; unreadable ones to reject",
    (_STREAM, Replay(), last_births.STEP),
    rhythm="values",
)
