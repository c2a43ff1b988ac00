"""Rows of this process folded into a table: what is there of them is read, combined with them and written here, in one
commit of delta-rs. What is too much for that is left to `Lake.fold`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud.place.place import Place
from spark import columns, folding, gathered, schemas
from spark.folding import Extent, Held
from spark.gathered import Commit
from spark.log_segment import Opened

HELD_ROWS_MAX: Final = 4_000_000
"""Rows of one partition that are there and are read to be written anew: with sketches they take some 600 MB."""
HELD_BYTES_MAX: Final = 500_000_000
"""Bytes of their files. Sketches of many values are 3 to 5 KB each and hardly smaller in a file; one of Arrow's columns
has 2 GiB of them at most, and rows are held three times while they are combined."""
Combined = Callable[[pa.Table], pa.Table]
"""Makes rows of one key one; they are of one partition."""


@dataclass(frozen=True, slots=True)
class _Part:
    """New rows of one partition, and the files that have rows of the same keys."""

    rows: pa.Table
    extent: Extent
    held: Sequence[Held]


def fold(table: Opened, place: Place, schema: schemas.Table, rows: pa.Table, how: Combined, commit: Commit) -> bool:
    """Fold `rows` into a table as it was opened. False, and nothing is done, where what is there is too much.

    Raises `Overtaken`, `WrittenTooLongAgo`, and what delta-rs and pyarrow raise.
    """
    parts = _parts(table, place, schema, rows)
    held = [file for part in parts for file in part.held]
    if any(_is_too_much(part.held) for part in parts):
        return False
    # Who has read some of a table commits behind just that, or not at all.
    over = table.version() if held else None
    commit = replace(commit, transaction=replace(commit.transaction, over=over), changed=rows.num_rows)
    made = (_made(place, schema, part, how) for part in parts)
    return gathered.write_parts(table, place, made, commit, held)


def _is_too_much(held: Sequence[Held]) -> bool:
    rows = sum(each.file.rows or HELD_ROWS_MAX + 1 for each in held)
    return rows > HELD_ROWS_MAX or sum(each.file.size for each in held) > HELD_BYTES_MAX


def _parts(table: Opened, place: Place, schema: schemas.Table, rows: pa.Table) -> list[_Part]:
    by_partition = {tuple(key.values()): part for key, part in gathered.by_partition(rows, schema.partition_by)}
    extents = [_extent(schema, key, part) for key, part in by_partition.items()]
    held = folding.can_hold(table, schema, extents)
    found = []
    for extent in extents:
        names = {name: folding.said(value) for name, value in zip(schema.partition_by, extent.partition, strict=True)}
        part, theirs = by_partition[extent.partition], [file for file in held if file.partition == names]
        # A file that is smaller than what comes is written anew with it: small ones become few.
        if sum(file.file.rows or 0 for file in theirs) > part.num_rows:
            theirs = [file for file in theirs if _holds(place, schema, file, part)]
        found.append(_Part(part, extent, theirs))
    return found


def _extent(schema: schemas.Table, partition: tuple[object, ...], rows: pa.Table) -> Extent:
    ends = {key: pc.min_max(_texts(pc.unique(rows[key]))).as_py() for key in folding.ordered(schema)}
    low, high = ({key: each[end] for key, each in ends.items()} for end in ("min", "max"))
    return Extent(partition, rows.num_rows, low, high)


def _holds(place: Place, schema: schemas.Table, held: Held, rows: pa.Table) -> bool:
    """Whether a file has a row of a key of these."""
    keys = [key for key in schema.keys if key not in schema.partition_by]
    new = _comparable(rows.select(keys), schema)
    arrow = pa.schema([schema.arrow.field(key) for key in keys])
    for there in columns.read(place, [held.file], arrow):
        old = _comparable(there, schema)
        if old.join(new, old.column_names, join_type="left semi").num_rows:
            return True
    return False


def _comparable(keys: pa.Table, schema: schemas.Table) -> pa.Table:
    """Keys for a join, to which a null is equal to nothing, not even to a null."""
    found = {name: _texts(keys[name]) for name in keys.column_names}
    for name in filter(lambda each: schema.columns[each].nullable, keys.column_names):
        text = found[name].cast(pa.string())
        found |= {name: pc.fill_null(text, ""), f"{name} is null": pc.is_null(text)}
    return pa.table(found)


def _texts(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _made(place: Place, schema: schemas.Table, part: _Part, how: Combined) -> tuple[dict[str, object], pa.Table]:
    key = dict(zip(schema.partition_by, part.extent.partition, strict=True))
    names = [name for name in schema.columns.names if name not in schema.partition_by]
    arrow = pa.schema([schema.arrow.field(name) for name in names])
    there: Iterator[pa.Table] = columns.read(place, [file.file for file in part.held], arrow)
    rows = pa.concat_tables([*(old for old in there if len(old)), columns.fitted(part.rows.select(names), arrow)])
    for name, value in key.items():
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, schema.arrow.field(name).type), len(rows)))
    return key, how(rows).select(names).cast(arrow)
