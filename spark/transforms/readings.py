"""telemetry -> readings and reject: one row per value of each message; unreadable ones are kept with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from spark import schemas
from spark.decoding import reasons
from spark.decoding.limits import BODY_BYTES_MAX
from spark.decoding.schema import PayloadSchema
from spark.kernels.decode import FIELDS, decode
from spark.transforms import births, clocks
from spark.transforms.times import event_date, is_plausible, with_measured_times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REJECT_BODY_BYTES_MAX = 4_096
"""Bytes of the body that are stored with a rejected value; a message may have `limits.VALUES_MAX` of them.

The whole body is in `telemetry` under the same name.
"""
LAST_LEVEL = r"([^/]+)/*\z"
"""The last level of an address that has a name."""
_VALUES_SQL = f"array<struct<{','.join(f'{name}:{kind}' for name, kind, _ in FIELDS)}>>"


def _decode_function(
    registered: Sequence[PayloadSchema],
) -> Callable[[pa.Array, pa.Array, pa.Array, pa.Array, pa.Array], pa.Array]:
    encoded = msgspec.json.encode(list(registered))

    def decoded(
        body: pa.Array, address: pa.Array, content_type: pa.Array, received_us: pa.Array, tenant: pa.Array
    ) -> pa.Array:
        return decode(encoded, (body, address, content_type, received_us, tenant))

    return decoded


def decode_messages(telemetry: DataFrame, registered: Sequence[PayloadSchema] = ()) -> DataFrame:
    """Return each row of `telemetry` once per value in its body: columns of `readings`, with `reason`.

    The time is not judged yet. A reject has the beginning of its body. The size of the rows of one message is bounded:
    properties and large bodies are left out. `readings` and `rejects` divide the result.

    A bare value is named after the last named level of its address; a reason for the whole message has an empty metric.
    A message that is `held` (`clocks.correct_for_readings`) becomes such a reason if only its gateway's stamp gives the
    time of a value.
    """
    if "held" not in telemetry.columns:
        telemetry = telemetry.withColumn("held", F.lit(False))
    decode_udf = arrow_udf(_decode_function(registered), _VALUES_SQL)  # type: ignore[call-overload]
    readable = F.when(F.length("body") <= BODY_BYTES_MAX, F.col("body"))
    # Times relative to a stamp that is not believed are none.
    received_us = F.when(F.col("held"), F.lit(0)).otherwise(F.unix_micros("received_at"))
    message = (readable, F.col("address"), F.col("content_type"), received_us, F.col("tenant"))
    rows = telemetry.drop("properties").withColumn("leaves", decode_udf(*message))
    rows = rows.withColumn("leaves", F.when(_must_wait(), _waiting_reason()).otherwise(F.col("leaves"))).drop("held")
    shown = rows.withColumn("body", F.substring("body", 1, REJECT_BODY_BYTES_MAX))
    exploded = shown.withColumn("leaf", F.explode("leaves")).drop("leaves")
    rejected = F.col("leaf.reason").isNotNull()
    bare = (F.col("leaf.metric") == "") & ~rejected & F.col("leaf.alias").isNull()
    kept = (name for name in exploded.columns if name not in ("body", "leaf", "device"))
    leaves = exploded.select(
        *kept,
        F.coalesce("leaf.device", "device").alias("device"),
        F.when(bare, _last_level()).otherwise(F.col("leaf.metric")).alias("metric"),
        F.when(rejected | births.is_data("address"), F.col("body")).alias("body"),
        *(f"leaf.{name}" for name, _, _ in FIELDS if name not in ("metric", "device")),
    )
    timed = with_measured_times(leaves, F.timestamp_micros("time_us")).drop("time_us")
    unsure = (F.col("clock_quality") == clocks.BOUNDED) & (F.col("time_source") == "gateway")
    return timed.withColumn("suspect", F.col("suspect") | unsure)


def _last_level() -> Column:
    """Return the last named level of an address (`a/b/` ends with an unnamed one), or else the address."""
    named = F.regexp_extract("address", LAST_LEVEL, 1)
    return F.when(named == "", F.col("address")).otherwise(named)


def _must_wait() -> Column:
    """Return whether the message is held and has a value that only the gateway's stamp dates."""
    of_stamp = (F.col("event_time") == F.col("received_at")) | ~is_plausible(F.col("event_time"))
    return F.col("held") & of_stamp & F.exists("leaves", _untimed)


def _untimed(leaf: Column) -> Column:
    timed = F.coalesce(is_plausible(F.timestamp_micros(leaf["time_us"])), F.lit(False))
    return leaf["reason"].isNull() & ~timed


def _waiting_reason() -> Column:
    """Return the reason that replaces the values of a message that waits."""
    fields = {"metric": "", "reason": reasons.CLOCK}
    return F.array(F.struct(*(F.lit(fields.get(name)).cast(kind).alias(name) for name, kind, _ in FIELDS)))


def readings(rows: DataFrame) -> DataFrame:
    """Return the decoded rows with a value, as in table `readings`."""
    good = rows.where(F.col("reason").isNull())
    if "replay" not in good.columns:
        good = good.withColumn("replay", F.lit(None))
    good = good.withColumn("event_date", event_date("event_time"))
    return good.select(*schemas.READINGS.columns.names)


def rejects(rows: DataFrame) -> DataFrame:
    """Return the decoded rows without a value, as in table `reject`."""
    return rows.where(F.col("reason").isNotNull()).select(*schemas.REJECT.columns.names)
