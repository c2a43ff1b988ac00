"""`readings`: telemetry -> readings, reject, sparkplug_births -> sparkplug_last_births."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import gathered, registry, schemas, session
from spark.jobs import last_births, stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.replay import MESSAGE, Replay
from spark.provenance import Provenance
from spark.tables import Lake
from spark.transforms import births, readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _made_of(batch: Batch) -> Provenance | None:
    """Of the readings: the rejects that belong to them, too."""
    beside, made_of = batch.lake.state("reject"), batch.made_of
    return made_of if made_of is None or beside is None else Provenance(made_of.sources, {"reject": beside})


def _take(batch: Batch) -> None:
    # Bodies are decoded once for all outputs.
    registered = registry.registered(batch.lake.at("payload_schemas"))
    decoded = readings.decoded(stamps.judged(batch.lake, batch.rows), registered).persist()
    # Most lakes have no Sparkplug at all, most batches nothing that could not be read or is large: one look tells all.
    is_reject = F.col("reason").isNotNull()
    looked_for = (births.is_data("address"), births.is_birth("address") & ~is_reject, is_reject)
    seen = decoded.agg(*map(F.max, looked_for), F.sum(F.octet_length("text"))).first()
    has_data, has_births, has_rejects, text_bytes = seen if seen is not None else (False, False, False, 0)
    if (text_bytes or 0) > gathered.BYTES_MAX:  # the same text again and again is next to nothing in a file
        batch = replace(batch, lake=Lake(batch.lake.session, batch.lake.place))
    if has_births:
        batch.append("sparkplug_births", births.births(decoded))
    # With the births of this batch and those before it.
    known = last_births.known(batch.lake, decoded) if has_data else None
    rows = births.named(decoded, known).persist() if known is not None else decoded
    try:
        # Readings are last: their commit says which version of the rejects belongs to them.
        rejects = readings.rejects(rows)
        if batch.has_taken("reject"):
            rows = _as_rejected(batch, rows)
        elif has_rejects or (has_data and not rejects.isEmpty()):
            batch.append("reject", rejects)
        batch.append("readings", readings.readings(rows), _made_of(batch))
    finally:
        rows.unpersist()
        decoded.unpersist()


def _as_rejected(batch: Batch, rows: DataFrame) -> DataFrame:
    """`rows` without the messages that an attempt which died has rejected; what it did not reject and is not readable
    now is rejected as well. A schema may have been registered between the two, or removed, or a gateway have told its
    time: a message that is a reject and readings, too, would be read again and be there twice, and one that is neither
    would be lost."""
    there = batch.lake.read("reject")
    whole = there.where(F.col("metric") == "").select(*MESSAGE)
    rows = rows.join(whole, list(MESSAGE), "left_anti").select(*rows.columns)
    value = [*MESSAGE, "metric"]
    more = session.kept(readings.rejects(rows).join(there.select(*value), value, "left_anti"))
    if not more.isEmpty():
        marker = batch.markers["reject"]
        again = replace(marker, application=f"{marker.application}/again", begin=None)
        batch.lake.append("reject", more.select(*schemas.REJECT.columns.names), again)
    return rows


_FOLLOWING = Following("readings", "telemetry", ("sparkplug_births", "reject", "readings"), revision=3, take=_take)
JOB = Job(
    "readings",
    "one row per value of each message; unreadable ones to reject",
    (_FOLLOWING, Replay(), last_births.STEP),
    round="values",
)
