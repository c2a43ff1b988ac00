"""`messages`: telemetry -> gateway_freshness, delivery_slo, throughput, outages, landed_ranges.

Scans the messages once, without bodies, for all tables about delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark.jobs import clock_corrections
from spark.jobs.job import AnalyticsJob
from spark.jobs.stream import MicroBatch, StreamStep
from spark.transforms import freshness, outages, ranges, slo, throughput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS: Final = (
    *("tenant", "gateway", "epoch", "address", "sequence", "device"),
    *("event_time", "received_at", "ingested_at", "clock_quality", "lane"),
)


def _process(batch: MicroBatch) -> None:
    messages = clock_corrections.correct_for_delivery(batch.lake, batch.rows.select(*_COLUMNS)).persist()
    try:
        batch.fold("gateway_freshness", freshness.freshness(messages), freshness.FOLD)
        batch.fold("delivery_slo", slo.slo(messages), slo.FOLD)
        reach = throughput.find_reach(messages, batch.lake.read("throughput"))
        _count(batch, messages, reach)
        if reach.waited:
            fresh = outages.outages(messages)
            batch.rewrite("outages", lambda old: outages.merge(old.unionByName(fresh)))
        else:
            batch.sink.commit_empty("outages")
        landed = ranges.landed_ranges(messages)
        batch.rewrite("landed_ranges", lambda old: ranges.merge_landed(old.unionByName(landed)))
    finally:
        messages.unpersist()


def _count(batch: MicroBatch, messages: DataFrame, reach: throughput.Reach) -> None:
    """Count messages by time bucket. Buckets widen, at most ten times, as the time span of the lake grows."""
    wanted = max(throughput.bucket_seconds(reach.span_s), reach.width_s or 0)
    rows = throughput.throughput(messages, wanted)
    if reach.width_s is not None and wanted != reach.width_s:
        batch.rewrite("throughput", lambda old: throughput.widen(old.unionByName(rows), wanted))
    else:
        batch.fold("throughput", rows, throughput.FOLD)


STEP: Final = StreamStep(
    "messages",
    "telemetry",
    ("gateway_freshness", "delivery_slo", "throughput", "outages", "landed_ranges"),
    revision=1,
    process=_process,
)
JOB = AnalyticsJob(
    "messages",
    "last data, lag, delivery time, throughput and outages of each gateway; which sequences have landed",
    (STEP,),
    rhythm="messages",
)
