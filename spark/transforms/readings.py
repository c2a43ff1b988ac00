"""telemetry -> readings and reject: one row per value of each message; what cannot be read is kept with its reason."""

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
from spark.transforms.times import believable, kept_under, with_measured_times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REJECT_BODY_BYTES_MAX = 4_096
"""Bytes of its body that a rejected value is shown with, of which a message may have `limits.VALUES_MAX`; the whole is
in `telemetry` under the same name."""
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


def decoded(telemetry: DataFrame, registered: Sequence[PayloadSchema] = ()) -> DataFrame:
    """Each row of `telemetry` once per value in its body: columns of `readings` before its time is judged, with
    `reason` and, where there is one, its body as far as it is shown. What one row may bring is bounded: properties and
    large bodies stay where they are. `readings` and `rejects` divide the result.

    A bare value is named after the last level of its address that has a name, a reason for the whole message has an
    empty metric. A message that is `held` (`clocks.judged`, where it went through that) is such a reason if nothing but
    its gateway's stamp says when a value of it was.
    """
    if "held" not in telemetry.columns:
        telemetry = telemetry.withColumn("held", F.lit(False))
    decode_udf = arrow_udf(_decode_function(registered), _VALUES_SQL)  # type: ignore[call-overload]
    readable = F.when(F.length("body") <= BODY_BYTES_MAX, F.col("body"))
    # Times relative to a stamp that is not believed are none.
    received_us = F.when(F.col("held"), F.lit(0)).otherwise(F.unix_micros("received_at"))
    message = (readable, F.col("address"), F.col("content_type"), received_us, F.col("tenant"))
    rows = telemetry.drop("properties").withColumn("leaves", decode_udf(*message))
    rows = rows.withColumn("leaves", F.when(_waits(), _waiting()).otherwise(F.col("leaves"))).drop("held")
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
    """Of an address; `a/b/` has one more, without a name. The address where none has one."""
    named = F.regexp_extract("address", LAST_LEVEL, 1)
    return F.when(named == "", F.col("address")).otherwise(named)


def _waits() -> Column:
    """The message is held, and has a value of which nothing but the gateway's stamp says when it was."""
    of_stamp = (F.col("event_time") == F.col("received_at")) | ~believable(F.col("event_time"))
    return F.col("held") & of_stamp & F.exists("leaves", _untimed)


def _untimed(leaf: Column) -> Column:
    timed = F.coalesce(believable(F.timestamp_micros(leaf["time_us"])), F.lit(False))
    return leaf["reason"].isNull() & ~timed


def _waiting() -> Column:
    """In place of a message's values, why there are none yet."""
    said = {"metric": "", "reason": reasons.CLOCK}
    return F.array(F.struct(*(F.lit(said.get(name)).cast(kind).alias(name) for name, kind, _ in FIELDS)))


def readings(rows: DataFrame) -> DataFrame:
    """Of `decoded` rows, those with a value, as table `readings` has them."""
    good = rows.where(F.col("reason").isNull())
    if "replay" not in good.columns:
        good = good.withColumn("replay", F.lit(None))
    good = good.withColumn("event_date", kept_under("event_time"))
    return good.select(*schemas.READINGS.columns.names)


def rejects(rows: DataFrame) -> DataFrame:
    """Of `decoded` rows, those without, as table `reject` has them."""
    return rows.where(F.col("reason").isNotNull()).select(*schemas.REJECT.columns.names)
