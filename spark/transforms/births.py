"""Sparkplug: births name the metrics that data leaves nameless.

A message of data (NDATA, DDATA) goes by the last birth of its node or device that the gateway received before it: its
aliases are those of that birth, as are data types (which tell signed from unsigned) and units. That is a function of
what has landed alone, whichever worker, batch or run it happens in. A message that needs a birth which has not landed
is a reject as a whole, and read once the birth is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.decoding import reasons, sparkplug
from spark.transforms.times import believable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SUBJECT = ("tenant", "gateway", "device")
_MESSAGE = ("tenant", "gateway", "epoch", "address", "sequence")


def is_sparkplug(address: str) -> Column:
    """Whether this column is the topic of a Sparkplug message."""
    return F.col(address).startswith(f"{sparkplug.NAMESPACE}/")


def is_birth(address: str) -> Column:
    """Whether this column is the topic of a birth."""
    return _kind(address).isin(*sparkplug.BIRTHS)


def is_data(address: str) -> Column:
    """Whether this column is the topic of Sparkplug data."""
    return _kind(address).isin(*sparkplug.DATA)


def _kind(address: str) -> Column:
    kind = F.when(is_sparkplug(address), F.try_element_at(F.split(address, "/"), F.lit(3)))
    return F.coalesce(kind, F.lit(""))


def births(decoded: DataFrame) -> DataFrame:
    """Of `readings.decoded` rows those of births, as table `sparkplug_births` has them."""
    rows = decoded.where(is_birth("address") & F.col("reason").isNull())
    return rows.select(*schemas.SPARKPLUG_BIRTHS.columns.names)


def last(births_: DataFrame) -> DataFrame:
    """Of births those of each node and device that nearly all data goes by, each row once, as table
    `sparkplug_last_births` has them: the last one, and where its gateway's clock was ahead when it came those since the
    last one of which that is not so."""
    subject = Window.partitionBy(*_SUBJECT)
    believed = F.max(F.when(believable(F.col("received_at")), F.col("received_at"))).over(subject)
    since = F.coalesce(believed, F.max("received_at").over(subject))
    rows = births_.withColumn("since", since).where(F.col("received_at") >= F.col("since"))
    return rows.select(*schemas.SPARKPLUG_LAST_BIRTHS.columns.names).distinct()


def are_enough(last_births: DataFrame, messages: DataFrame) -> bool:
    """Whether Sparkplug's data among these messages needs no birth but these (`last`), and those that have landed
    since: it was received after the first of each node and device of its gateway."""
    data = messages.where(is_data("address"))
    since = data.groupBy("tenant", "gateway").agg(F.min("received_at").alias("since"))
    first = last_births.groupBy(*_SUBJECT).agg(F.min("received_at").alias("first"))
    return first.join(since, ["tenant", "gateway"]).where(F.col("first") > F.col("since")).isEmpty()


def named(decoded: DataFrame, known: DataFrame) -> DataFrame:
    """`readings.decoded` rows in which every value of data has its name, number and unit, or its message is rejected.

    `known`: the births it can go by, with those among these rows.
    """
    data = decoded.where(is_data("address") & F.col("reason").isNull())
    others = decoded.where(~is_data("address") | F.col("reason").isNotNull())
    return others.unionByName(_judged(_looked_up(data, known)).select(*decoded.columns))


def _looked_up(data: DataFrame, known: DataFrame) -> DataFrame:
    """`data` with `born_metric`, `born_datatype`, `born_unit` of its birth, null where there is none."""
    subjects = data.select(*_SUBJECT).distinct()
    mine = known.join(subjects, list(_SUBJECT), "left_semi")
    following = Window.partitionBy(*_SUBJECT).orderBy("received_at")
    spans = mine.select(*_SUBJECT, "received_at").distinct()
    spans = spans.withColumn("upto", F.lead("received_at").over(following))
    said = mine.select(
        *_SUBJECT,
        F.col("received_at"),
        F.explode(_references()).alias("reference"),
        F.struct("metric", "datatype", "unit").alias("born"),
    )
    # A birth may be there twice, and a name or an alias twice in it: whichever worker sees them, the least counts.
    named = said.groupBy(*_SUBJECT, "received_at", "reference").agg(F.min("born").alias("born"))
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


def _judged(rows: DataFrame) -> DataFrame:
    """What the birth says taken over; where one value of a message needs a birth that is not there, the message becomes
    one reject."""
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
            "value": F.when(~unborn, F.when(F.col("signed").isNotNull(), _as_born()).otherwise(F.col("value"))),
            "text": F.when(~unborn, F.col("text")),
            "unit": F.when(~unborn, F.coalesce("unit", "born_unit")),
            "metric": F.when(unborn, F.lit("")).otherwise(F.coalesce("born_metric", "metric")),
            "reason": F.when(unborn, F.lit(reasons.NO_BIRTH)),
        }
    )


def _as_born() -> Column:
    """An integer as its birth's data type has it: signed ones are sent as unsigned, in two's complement."""
    found = F.col("value")
    for datatype, bits in sparkplug.SIGNED.items():
        born = F.col("born_datatype") == datatype
        found = F.when(born, F.col("signed") if bits == sparkplug.BITS_MAX else _signed(bits)).otherwise(found)
    return found


def _signed(bits: int) -> Column:
    low = F.pmod(F.col("value"), F.lit(float(1 << bits)))
    return low - F.when(low >= float(1 << (bits - 1)), float(1 << bits)).otherwise(0.0)
