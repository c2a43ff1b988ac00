"""Fold rows into a table by key: which files of the table can hold such a row, and how two rows become one.

The log of the table is asked first. Windows of a new hour, or of later minutes than those of a file, are in none of its
files; then nothing of the table is read or written again.
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
from spark.file_writer import partition_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

_SHORTENED = timedelta(milliseconds=1)
"""Logs have times in milliseconds, and may truncate them."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Position of new rows in a table: their number, partitions, and the bounds of each key that is never null."""

    rows: int
    partitions: frozenset[tuple[Any, ...]]
    low: Mapping[str, Any]
    high: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableFile:
    """Data file. `name`: its path as the log spells it; `rows`: None if the log does not state it."""

    name: str
    size: int
    rows: int | None
    partition: Mapping[str, str]

    @property
    def path(self) -> str:
        """Path relative to the table's folder."""
        return unquote(self.name)


def check_fold(table: schemas.TableSchema, how: Mapping[str, str]) -> None:
    """Raise `ValueError` unless `how` states for every column except the keys how two rows become one."""
    folded = set(table.columns.names) - set(table.keys) - set(table.partition_by)
    if set(how) != folded:
        missing, unknown = sorted(folded - set(how)), sorted(set(how) - folded)
        raise ValueError(f"table {table.name}: the fold lacks columns {missing}, and has unknown columns {unknown}")


def observe_extent(rows: DataFrame, table: schemas.TableSchema, seen: Observation) -> DataFrame:
    """Return the same rows; `seen` has their extent once they were computed (`read_extent`)."""
    ends = [end(key).alias(f"{end.__name__} {key}") for key in ordered_keys(table) for end in (F.min, F.max)]
    partitions = F.collect_set(F.struct(*(table.partition_by or (F.lit(0),)))).alias("partitions")
    return rows.observe(seen, F.count(F.lit(1)).alias("rows"), partitions, *ends)


def read_extent(seen: Observation, table: schemas.TableSchema) -> Extent | None:
    """Return the extent of observed rows; None if there was no row."""
    found = seen.get
    if not found.get("rows"):
        return None
    keys = ordered_keys(table)
    return Extent(
        found["rows"],
        frozenset(tuple(one) if table.partition_by else () for one in found["partitions"]),
        {key: _comparable(found[f"min {key}"]) for key in keys},
        {key: _comparable(found[f"max {key}"]) for key in keys},
    )


def find_candidates(opened: deltalake.DeltaTable, table: schemas.TableSchema, found: Extent) -> list[TableFile]:
    """Return the files of a table that can hold a key of new rows, according to its log."""
    held = []
    for row in _files(opened, table, found.partitions):
        if tuple(row[f"partition.{column}"] for column in table.partition_by) in found.partitions and _overlaps(
            row, found
        ):
            partition = {name: partition_text(row[f"partition.{name}"]) for name in table.partition_by}
            held.append(TableFile(row["path"], row["size_bytes"], row["num_records"], partition))
    return held


def _files(
    opened: deltalake.DeltaTable, table: schemas.TableSchema, partitions: Iterable[tuple[Any, ...]]
) -> Iterable[Mapping[str, Any]]:
    """Return files of these partitions, and perhaps others, with the bounds of each key from the log."""
    actions = pa.table(opened.get_add_actions(flatten=True))
    ends = [f"{end}.{key}" for end in ("min", "max") for key in ordered_keys(table)]
    names = [f"partition.{column}" for column in table.partition_by]
    wanted = ["path", "size_bytes", "num_records", *names, *ends]
    actions = actions.select([name for name in wanted if name in actions.column_names])
    for name, values in zip(names, zip(*partitions, strict=True), strict=False):
        # Before they are Python objects: a year of hours is 9 000 files.
        actions = actions.filter(pc.is_in(actions[name], pa.array(values).cast(actions[name].type)))
    rows: list[Mapping[str, Any]] = actions.to_pylist()
    return rows


def _overlaps(file: Mapping[str, Any], extent: Extent) -> bool:
    for key, low in extent.low.items():
        lowest, highest = file.get(f"min.{key}"), file.get(f"max.{key}")
        if isinstance(highest, datetime):
            highest += _SHORTENED
        if (lowest is not None and lowest > extent.high[key]) or (highest is not None and highest < low):
            return False
    return True


def find_holding(old: DataFrame, new: DataFrame, table: schemas.TableSchema) -> set[str]:
    """Return the names, without folders, of the files of `old` that hold a key of `new`."""
    named = old.withColumn("file", F.input_file_name()).alias("old")
    found = named.join(new.alias("new"), _same_key(table), "left_semi").select("file").distinct().collect()
    return {file_name(row["file"]) for row in found}


def file_name(path: str) -> str:
    """Return a file's name without its folders; a log has it only once."""
    return path.rpartition("/")[2]


def fold_rows(old: DataFrame, new: DataFrame, table: schemas.TableSchema, how: Mapping[str, str]) -> DataFrame:
    """Return all rows of `old` and `new`; two with the same key become one by `how`, column by column, in SQL."""
    required_key = next(key for key in table.keys if not table.columns[key].nullable)
    none_new, none_old = F.col(f"new.{required_key}").isNull(), F.col(f"old.{required_key}").isNull()

    def column(name: str) -> Column:
        of_old, of_new = F.col(f"old.{name}"), F.col(f"new.{name}")
        both = F.expr(how[name]) if name in how else of_new
        return F.when(none_new, of_old).when(none_old, of_new).otherwise(both).alias(name)

    joined = old.alias("old").join(new.alias("new"), _same_key(table), "full_outer")
    return joined.select(*map(column, table.columns.names))


def _same_key(table: schemas.TableSchema) -> Column:
    return reduce(lambda one, other: one & other, _key_conditions(table))


def _key_conditions(table: schemas.TableSchema) -> Iterator[Column]:
    for key in table.keys:
        old, new = F.col(f"old.{key}"), F.col(f"new.{key}")
        yield old.eqNullSafe(new) if table.columns[key].nullable else old == new


def ordered_keys(table: schemas.TableSchema) -> Sequence[str]:
    """Return the keys that distinguish files: a null has no order, and a partition column has one value per file."""
    return [key for key in table.keys if not table.columns[key].nullable and key not in table.partition_by]


def _comparable(value: object) -> object:
    return value.astimezone(UTC) if isinstance(value, datetime) else value
