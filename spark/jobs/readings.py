"""`readings`: telemetry -> readings, reject, sparkplug_births."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from spark import gathered, registry, schemas
from spark.decoding.schema import PayloadSchema
from spark.here import readings as here
from spark.here import workers
from spark.jobs import stamps
from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.jobs.replay import MESSAGE, Replay
from spark.provenance import Provenance
from spark.tables import Lake
from spark.transforms import births, readings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _take(batch: Batch) -> None:
    # Bodies are decoded once for all outputs.
    registered = registry.registered(batch.lake.at("payload_schemas"))
    # What an attempt that died has rejected is looked at by Spark.
    messages = _messages_here(batch) if not batch.has_taken("reject") else None
    if messages is not None:
        _take_here(batch, messages, registered)
    else:
        _take_by_rows(batch, registered)


def _messages_here(batch: Batch) -> Iterator[pa.Table] | None:
    """Those of the batch, where this process reads them: on one machine, if none is Sparkplug's."""
    parts = batch.here(here.PROOF)
    if parts is None or not all(map(here.is_readable, parts)):
        return None
    return stamps.judged_here(batch, here.MESSAGE)


def _take_here(batch: Batch, messages: Iterable[pa.Table], registered: Sequence[PayloadSchema]) -> None:
    rejects, found = (gathered.Writer(batch.lake.at(name)) for name in ("reject", "readings"))
    processes = workers.processes(batch.count, here.MESSAGES_A_PROCESS)
    for rows in here.all_decoded(messages, registered, processes):
        rejects.add(rows.rejects)
        found.add(rows.readings)
    if not rejects.is_empty:
        batch.append("reject", rejects)
    batch.append("readings", found, _made_of(batch))


def _made_of(batch: Batch) -> Provenance | None:
    """Of the readings: the rejects that belong to them, too."""
    beside, made_of = batch.lake.state("reject"), batch.made_of
    return made_of if made_of is None or beside is None else Provenance(made_of.sources, {"reject": beside})


def _take_by_rows(batch: Batch, registered: Sequence[PayloadSchema]) -> None:
    decoded = readings.decoded(stamps.judged(batch.lake, batch.rows), registered).persist()
    # Most lakes have no Sparkplug at all, most batches nothing that could not be read or is large: one look tells all.
    looked_for = (births.is_sparkplug("address"), F.col("reason").isNotNull())
    seen = decoded.agg(*map(F.max, looked_for), F.sum(F.octet_length("text"))).first()
    has_sparkplug, has_rejects, text_bytes = seen if seen is not None else (False, False, 0)
    if (text_bytes or 0) > gathered.BYTES_MAX:  # the same text again and again is next to nothing in a file
        batch = replace(batch, lake=Lake(batch.lake.session, batch.lake.place))
    rows = _named(batch, decoded) if has_sparkplug else decoded
    try:
        # Readings are last: their commit says which version of the rejects belongs to them.
        rejects = readings.rejects(rows)
        if batch.has_taken("reject"):
            rows = _as_rejected(batch, rows)
        elif has_rejects or (has_sparkplug and not rejects.isEmpty()):
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
    more = readings.rejects(rows).join(there.select(*value), value, "left_anti").localCheckpoint()
    if not more.isEmpty():
        marker = batch.markers["reject"]
        again = replace(marker, application=f"{marker.application}/again", begin=None)
        batch.lake.append("reject", more.select(*schemas.REJECT.columns.names), again)
    return rows


def _named(batch: Batch, decoded: DataFrame) -> DataFrame:
    """With the births of this batch and those before it."""
    batch.append("sparkplug_births", births.births(decoded))
    return births.named(decoded, batch.lake.read("sparkplug_births")).persist()


_FOLLOWING = Following("readings", "telemetry", ("sparkplug_births", "reject", "readings"), revision=3, take=_take)
JOB = Job(
    "readings",
    "one row per value of each message; unreadable ones to reject",
    (_FOLLOWING, Replay()),
    round="values",
)
