"""`throughput`: telemetry -> throughput."""

from __future__ import annotations

from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.transforms import throughput


def _take(batch: Batch) -> None:
    there, messages = batch.lake.read("throughput"), stamps.delivered(batch.lake, batch.rows)
    known = throughput.reach(there).first()
    width = known["width_s"] if known is not None else None
    span = throughput.span(messages, known["since"] if known is not None else None).first()
    wanted = max(throughput.bucket_seconds(span["span_s"] or 0.0 if span is not None else 0.0), width or 0)
    rows = throughput.throughput(messages, wanted).coalesce(1)
    if width is not None and wanted != width:  # the lake has outgrown its buckets, as it does ten times at most
        batch.overwrite("throughput", throughput.widened(there.unionByName(rows), wanted))
    else:
        batch.fold("throughput", rows, throughput.FOLD)


_FOLLOWING = Following("throughput", "telemetry", ("throughput",), revision=4, take=_take)
JOB = Job("throughput", "rows received and landed over time", (_FOLLOWING,))
