"""Rows folded into a table by key: which files of the table can hold such a row, and what becomes of the two.

What is asked of a table is answered by its log first. Windows of a new hour, or of later minutes than a file has, are
in none of its files; then nothing of the table is read, and nothing of it is written anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark text uses

from spark import schemas
from spark.delta_log import File

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHORTENED = timedelta(milliseconds=1)
"""Logs say times in milliseconds, and may leave out what is beyond them."""


@dataclass(frozen=True, slots=True)
class Extent:
    """New rows of one partition: how many, and the lowest and highest of each key that is never null."""

    partition: tuple[Any, ...]
    rows: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """A data file of a table. `name`: its path as the log spells it."""

    name: str
    file: File
    partition: Mapping[str, str | None]


def extents(rows: DataFrame, table: schemas.Table) -> list[Extent]:
    """Where in `table` the keys of `rows` are."""
    keys = ordered(table)
    ends = [end(key).alias(f"{end.__name__} {key}") for key in keys for end in (F.min, F.max)]
    found = rows.groupBy(*table.partition_by).agg(F.count(F.lit(1)).alias("rows"), *ends).collect()
    return [
        Extent(
            tuple(row[column] for column in table.partition_by),
            row["rows"],
            {key: _comparable(row[f"min {key}"]) for key in keys},
            {key: _comparable(row[f"max {key}"]) for key in keys},
        )
        for row in found
        if row["rows"]
    ]


def can_hold(opened: deltalake.DeltaTable, table: schemas.Table, extents: Iterable[Extent]) -> list[Held]:
    """The files of a table that can hold a key of new rows, as the log has it."""
    by_partition = {extent.partition: extent for extent in extents}
    if not by_partition:
        return []
    held = []
    for row in _files(opened, table, by_partition):
        extent = by_partition.get(tuple(row[f"partition.{column}"] for column in table.partition_by))
        if extent is not None and _meet(row, extent):
            file = File(unquote(row["path"]), row["size_bytes"], row["num_records"])
            held.append(Held(row["path"], file, {name: said(row[f"partition.{name}"]) for name in table.partition_by}))
    return held


def _files(
    opened: deltalake.DeltaTable, table: schemas.Table, partitions: Iterable[tuple[Any, ...]]
) -> Iterable[Mapping[str, Any]]:
    """Files of these partitions, and perhaps others, with what the log says of the ends of each key."""
    actions = pa.table(opened.get_add_actions(flatten=True))
    ends = [f"{end}.{key}" for end in ("min", "max") for key in ordered(table)]
    names = [f"partition.{column}" for column in table.partition_by]
    told = ["path", "size_bytes", "num_records", *names, *ends]
    actions = actions.select([name for name in told if name in actions.column_names])
    for name, values in zip(names, zip(*partitions, strict=True), strict=False):
        # Before they are objects: a year of hours is 9 000 files.
        actions = actions.filter(pc.is_in(actions[name], pa.array(values).cast(actions[name].type)))
    rows: list[Mapping[str, Any]] = actions.to_pylist()
    return rows


def _meet(file: Mapping[str, Any], extent: Extent) -> bool:
    for key, low in extent.low.items():
        lowest, highest = file.get(f"min.{key}"), file.get(f"max.{key}")
        if isinstance(highest, datetime):
            highest += _SHORTENED
        if (lowest is not None and lowest > extent.high[key]) or (highest is not None and highest < low):
            return False
    return True


def holding(old: DataFrame, new: DataFrame, table: schemas.Table) -> set[str]:
    """Names, without their folders, of the files among those of `old` that do hold a key of `new`."""
    named = old.withColumn("file", F.input_file_name()).alias("old")
    found = named.join(new.alias("new"), _same(table), "left_semi").select("file").distinct().collect()
    return {name_of(row["file"]) for row in found}


def name_of(path: str) -> str:
    """A file's name without its folders; it is not in the log twice."""
    return path.rpartition("/")[2]


def folded(old: DataFrame, new: DataFrame, table: schemas.Table, how: Mapping[str, str]) -> DataFrame:
    """All rows of `old` and `new`; two with one key are one, which `how` makes, column by column: SQL of both."""
    there = next(key for key in table.keys if not table.columns[key].nullable)
    none_new, none_old = F.col(f"new.{there}").isNull(), F.col(f"old.{there}").isNull()

    def column(name: str) -> Column:
        of_old, of_new = F.col(f"old.{name}"), F.col(f"new.{name}")
        both = F.expr(how[name]) if name in how else of_new
        return F.when(none_new, of_old).when(none_old, of_new).otherwise(both).alias(name)

    joined = old.alias("old").join(new.alias("new"), _same(table), "full_outer")
    return joined.select(*map(column, table.columns.names))


def _same(table: schemas.Table) -> Column:
    return reduce(lambda one, other: one & other, _equal(table))


def _equal(table: schemas.Table) -> Iterator[Column]:
    for key in table.keys:
        old, new = F.col(f"old.{key}"), F.col(f"new.{key}")
        yield old.eqNullSafe(new) if table.columns[key].nullable else old == new


def ordered(table: schemas.Table) -> Sequence[str]:
    """Keys that files are told apart by: a null is in no order, and of a partition's column there is one value."""
    return [key for key in table.keys if not table.columns[key].nullable and key not in table.partition_by]


def _comparable(value: object) -> object:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def said(value: object) -> str | None:
    """A partition's value as a log has it."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
