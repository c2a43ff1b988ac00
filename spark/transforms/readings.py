"""telemetry -> readings and reject: one row per value of each message; what cannot be read is kept with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from spark import schemas
from spark.transforms import decode
from spark.transforms.times import kept_under, with_trusted_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REJECT_BODY_BYTES_MAX = 4_096
"""Bytes of its body that a rejected value is shown with, of which a message may have `decode.VALUES_MAX`; the whole is
in `telemetry` under the same name."""
_VALUES_SQL = "array<struct<metric:string,value:double,text:string,reason:string>>"
_VALUE_FIELDS = (("metric", pa.string()), ("value", pa.float64()), ("text", pa.string()), ("reason", pa.string()))


def _decode_column(bodies: pa.Array) -> pa.Array:
    """`decode.values` over a column of bodies: one list of structs a body."""
    offsets = [0]
    columns: tuple[list[object], ...] = ([], [], [], [])
    for body in bodies.to_pylist():
        for value in decode.values(body):
            for column, item in zip(columns, value, strict=True):
                column.append(item)
        offsets.append(len(columns[0]))
    arrays = [pa.array(column, kind) for column, (_, kind) in zip(columns, _VALUE_FIELDS, strict=True)]
    structs = pa.StructArray.from_arrays(arrays, names=[name for name, _ in _VALUE_FIELDS])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def decoded(telemetry: DataFrame) -> DataFrame:
    """Each row of `telemetry` once per value in its body, with `metric`, `value`, `text`, `reason`, `suspect`, and its
    body, as far as it is shown, where there is a reason. What one row may bring is bounded: properties and large bodies
    stay where they are.

    A bare value is named after the last level of its address. `readings` and `rejects` divide the result.
    """
    # The type hints of `_decode_column` say what kind of function it is; saying it here too is warned about.
    decode_udf = arrow_udf(_decode_column, _VALUES_SQL)  # type: ignore[call-overload]
    last_level = F.element_at(F.split("address", "/"), -1)
    readable = F.when(F.length("body") <= decode.BODY_BYTES_MAX, F.col("body"))
    rows = with_trusted_times(telemetry.drop("properties")).withColumn("leaves", decode_udf(readable))
    shown = rows.withColumn("body", F.substring("body", 1, REJECT_BODY_BYTES_MAX))
    exploded = shown.withColumn("leaf", F.explode("leaves")).drop("leaves")
    return exploded.select(
        *(name for name in exploded.columns if name not in ("body", "leaf")),
        F.when(F.col("leaf.reason").isNotNull(), F.col("body")).alias("body"),
        F.when(F.col("leaf.metric") == "", last_level).otherwise(F.col("leaf.metric")).alias("metric"),
        "leaf.value",
        "leaf.text",
        "leaf.reason",
    )


def readings(rows: DataFrame) -> DataFrame:
    """Of `decoded` rows, those with a value, as table `readings` has them."""
    good = rows.where(F.col("reason").isNull()).withColumn("event_date", kept_under("event_time"))
    return good.select(*schemas.READINGS.columns.names)


def rejects(rows: DataFrame) -> DataFrame:
    """Of `decoded` rows, those without, as table `reject` has them."""
    return rows.where(F.col("reason").isNotNull()).select(*schemas.REJECT.columns.names)
