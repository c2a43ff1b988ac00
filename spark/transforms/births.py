"""Sparkplug: births name the metrics that data leaves nameless.

Data (NDATA, DDATA) refers to the last birth of its node or device that the gateway received before it. Aliases are
those of that birth, and so are data types (which distinguish signed from unsigned) and units. This is a function of the
landed data alone, independent of worker, batch or run. A message that needs a birth which has not landed is rejected as
a whole, and read once the birth is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.decoding import reasons, sparkplug
from spark.transforms.times import is_plausible

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SUBJECT = ("tenant", "gateway", "device")
_MESSAGE = ("tenant", "gateway", "epoch", "address", "sequence")


def is_sparkplug(address: str) -> Column:
    """Return whether this column is the topic of a Sparkplug message."""
    return F.col(address).startswith(f"{sparkplug.NAMESPACE}/")


def is_birth(address: str) -> Column:
    """Return whether this column is the topic of a birth."""
    return _kind(address).isin(*sparkplug.BIRTHS)


def is_data(address: str) -> Column:
    """Return whether this column is the topic of Sparkplug data."""
    return _kind(address).isin(*sparkplug.DATA)


def _kind(address: str) -> Column:
    kind = F.when(is_sparkplug(address), F.try_element_at(F.split(address, "/"), F.lit(3)))
    return F.coalesce(kind, F.lit(""))


def births(decoded: DataFrame) -> DataFrame:
    """Return the rows of births among decoded rows, as in table `sparkplug_births`."""
    rows = decoded.where(is_birth("address") & F.col("reason").isNull())
    return rows.select(*schemas.SPARKPLUG_BIRTHS.columns.names)


def last_births(births_: DataFrame) -> DataFrame:
    """Return the births of each node and device that nearly all data refers to, as in `sparkplug_last_births`.

    That is the last one. If its gateway's clock was ahead when it arrived, it is the births since the last one with a
    plausible time.
    """
    subject = Window.partitionBy(*_SUBJECT)
    believed = F.max(F.when(is_plausible(F.col("received_at")), F.col("received_at"))).over(subject)
    since = F.coalesce(believed, F.max("received_at").over(subject))
    rows = births_.withColumn("since", since).where(F.col("received_at") >= F.col("since"))
    return rows.select(*schemas.SPARKPLUG_LAST_BIRTHS.columns.names).distinct()


def last_births_suffice(last_births: DataFrame, messages: DataFrame) -> bool:
    """Return whether the Sparkplug data among these messages needs only the last births and later ones.

    That is so if it was received after the first of them for each node and device of its gateway.
    """
    data = messages.where(is_data("address"))
    since = data.groupBy("tenant", "gateway").agg(F.min("received_at").alias("since"))
    first = last_births.groupBy(*_SUBJECT).agg(F.min("received_at").alias("first"))
    return first.join(since, ["tenant", "gateway"]).where(F.col("first") > F.col("since")).isEmpty()


def name_metrics(decoded: DataFrame, known: DataFrame) -> DataFrame:
    """Return decoded rows in which every value of data has its name, number and unit, or its message is rejected.

    `known`: the births that it can refer to, including those among these rows.
    """
    data = decoded.where(is_data("address") & F.col("reason").isNull())
    others = decoded.where(~is_data("address") | F.col("reason").isNotNull())
    return others.unionByName(_apply_births(_join_births(data, known)).select(*decoded.columns))


def _join_births(data: DataFrame, known: DataFrame) -> DataFrame:
    """Return `data` with `born_metric`, `born_datatype`, `born_unit` of its birth, null without one."""
    subjects = data.select(*_SUBJECT).distinct()
    relevant = known.join(subjects, list(_SUBJECT), "left_semi")
    following = Window.partitionBy(*_SUBJECT).orderBy("received_at")
    spans = relevant.select(*_SUBJECT, "received_at").distinct()
    spans = spans.withColumn("upto", F.lead("received_at").over(following))
    references = relevant.select(
        *_SUBJECT,
        F.col("received_at"),
        F.explode(_references()).alias("reference"),
        F.struct("metric", "datatype", "unit").alias("born"),
    )
    # A birth may be there twice, and a name or an alias twice in it: whichever worker sees them, the least counts.
    named = references.groupBy(*_SUBJECT, "received_at", "reference").agg(F.min("born").alias("born"))
    born = named.join(spans, [*_SUBJECT, "received_at"]).select(
        *_SUBJECT,
        F.col("received_at").alias("born_at"),
        "upto",
        "reference",
        *(F.col(f"born.{name}").alias(f"born_{name}") for name in ("metric", "datatype", "unit")),
    )
    reference = F.when(F.col("metric") == "", _by_alias()).otherwise(_by_name())
    rows = data.withColumn("reference", reference)
    fits = [F.col(f"d.{name}") == F.col(f"b.{name}") for name in (*_SUBJECT, "reference")]
    before = (F.col("b.born_at") <= F.col("d.received_at")) & (
        F.col("b.upto").isNull() | (F.col("d.received_at") < F.col("b.upto"))
    )
    joined = rows.alias("d").join(born.alias("b"), [*fits, before], "left")
    return joined.select("d.*", "b.born_metric", "b.born_datatype", "b.born_unit").drop("reference")


def _by_alias() -> Column:
    return F.concat(F.lit("a"), F.col("alias").cast("string"))


def _by_name() -> Column:
    return F.concat(F.lit("n"), F.col("metric"))


def _references() -> Column:
    return F.array_compact(F.array(_by_name(), _by_alias()))


def _apply_births(rows: DataFrame) -> DataFrame:
    """Apply the births; a message with a value that needs a missing birth becomes one reject."""
    ambiguous = F.col("signed").isNotNull() & (F.col("signed") != F.col("value"))
    needs = F.col("born_metric").isNull() & ((F.col("metric") == "") | ambiguous)
    message = Window.partitionBy(*_MESSAGE)
    rows = rows.withColumns(
        {
            "unborn": F.max(needs).over(message),
            "place": F.row_number().over(message.orderBy("metric", F.col("alias").asc_nulls_first(), "event_time")),
        }
    )
    unborn = F.col("unborn")
    return rows.where(~unborn | (F.col("place") == 1)).withColumns(
        {
            "value": F.when(~unborn, F.when(F.col("signed").isNotNull(), _value_by_type()).otherwise(F.col("value"))),
            "text": F.when(~unborn, F.col("text")),
            "unit": F.when(~unborn, F.coalesce("unit", "born_unit")),
            "metric": F.when(unborn, F.lit("")).otherwise(F.coalesce("born_metric", "metric")),
            "reason": F.when(unborn, F.lit(reasons.NO_BIRTH)),
        }
    )


def _value_by_type() -> Column:
    """Return an integer by its birth's data type: signed ones are sent as unsigned two's complement."""
    found = F.col("value")
    for datatype, bits in sparkplug.SIGNED.items():
        born = F.col("born_datatype") == datatype
        found = F.when(born, F.col("signed") if bits == sparkplug.BITS_MAX else _signed(bits)).otherwise(found)
    return found


def _signed(bits: int) -> Column:
    low = F.pmod(F.col("value"), F.lit(float(1 << bits)))
    return low - F.when(low >= float(1 << (bits - 1)), float(1 << bits)).otherwise(0.0)
