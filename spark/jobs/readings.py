"""`readings`: telemetry -> readings, reject, sparkplug_births -> sparkplug_last_births."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from spark import gathered, registry, schemas, session
from spark.decoding.schema import PayloadSchema
from spark.here import births as births_here
from spark.here import readings as here
from spark.here import workers
from spark.jobs import last_births, stamps
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
    if batch.has_taken("reject") or not _take_here(batch, registered):
        _take_by_rows(batch, registered)


def _take_here(batch: Batch, registered: Sequence[PayloadSchema]) -> bool:
    """In this process, where that is Spark's only machine. False where Spark is to do it; births may be written then,
    as by an attempt that died."""
    addresses, data, messages = (
        batch.here(here.PROOF),
        batch.here(births_here.DATA),
        stamps.judged_here(batch.lake, batch.here, here.MESSAGE),
    )
    if addresses is None or data is None or messages is None:
        return False
    sparkplug = births_here.kinds(addresses)
    waiting = births_here.since(data) if sparkplug.data else {}
    if waiting is None:
        return False
    rejects, found = (gathered.Writer(batch.lake.at(name)) for name in ("reject", "readings"))

    def add(decoded: Iterable[here.Decoded]) -> None:
        for rows in decoded:
            rejects.add(rows.rejects)
            found.add(rows.readings)

    if sparkplug.births:
        # First, as data goes by the births of its own batch, too; clocks of Sparkplug's messages are not put right.
        add(_born(batch, registered))
        messages = (part.filter(pa.array(~births_here.is_birth(part))) for part in messages)
    known = last_births.known(batch.lake, waiting)  # those of this batch among them
    if known is None:
        return False
    add(here.all_decoded(messages, registered, workers.processes(batch.count, here.MESSAGES_A_PROCESS), known))
    if not rejects.is_empty:
        batch.append("reject", rejects)
    batch.append("readings", found, _made_of(batch))
    return True


def _born(batch: Batch, registered: Sequence[PayloadSchema]) -> Iterator[here.Decoded]:
    """What the births of a batch say; at the end what they name is written."""
    born = gathered.Writer(batch.lake.at("sparkplug_births"))
    for part in batch.here(here.MESSAGE) or ():
        for names, decoded in here.decoded_births(part.filter(pa.array(births_here.is_birth(part))), registered):
            born.add(names)
            yield from decoded
    if not born.is_empty:
        batch.append("sparkplug_births", born)


def _made_of(batch: Batch) -> Provenance | None:
    """Of the readings: the rejects that belong to them, too."""
    beside, made_of = batch.lake.state("reject"), batch.made_of
    return made_of if made_of is None or beside is None else Provenance(made_of.sources, {"reject": beside})


def _take_by_rows(batch: Batch, registered: Sequence[PayloadSchema]) -> None:
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
    known = last_births.known_to_spark(batch.lake, decoded) if has_data else None
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
