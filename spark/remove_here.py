"""Rows of a table removed by this process: files that hold some are written anew without them, in one commit of
delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud.place.place import Place
from spark import columns, folding, gathered, schemas
from spark.folding import Extent, Held
from spark.gathered import Commit

Removed = Callable[[pa.Table], NDArray[np.bool_]]
"""Which rows are removed, of rows that have these columns among theirs."""


def remove(
    place: Place,
    schema: schemas.Table,
    partitions: Iterable[tuple[object, ...]],
    removed: Removed,
    names: Sequence[str],
    commit: Commit,
) -> bool:
    """Remove rows of these partitions; False where none are, or the table has taken this transaction.

    `removed`: asked with columns `names`. Raises `Overtaken`, and what delta-rs and pyarrow raise.
    """
    table = place.delta()
    in_them = [Extent(each, 0, {}, {}) for each in partitions]
    held = [file for file in folding.can_hold(table, schema, in_them) if _any(place, schema, file, removed, names)]
    if not held:
        return False
    # Who has read some of a table commits behind just that, or not at all.
    commit = replace(commit, transaction=replace(commit.transaction, over=table.version()), changed=0)
    kept = ((file.partition, rows) for file in held for rows in _kept(place, schema, file, removed))
    return gathered.write_parts(table, place, kept, commit, held)


def _any(place: Place, schema: schemas.Table, held: Held, removed: Removed, names: Sequence[str]) -> bool:
    arrow = pa.schema([schema.arrow.field(name) for name in names])
    return any(removed(rows).any() for rows in columns.read(place, [held.file], arrow))


def _kept(place: Place, schema: schemas.Table, held: Held, removed: Removed) -> Iterator[pa.Table]:
    arrow = pa.schema([field for field in schema.arrow if field.name not in schema.partition_by])
    for rows in columns.read(place, [held.file], arrow):
        yield rows.filter(pa.array(~removed(rows))).cast(arrow)
