"""What is made of rows part by part, and put together while it is small enough to be held in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

Made = Callable[[pa.Table], pa.Table]


def summed(parts: Iterable[pa.Table], made: Made, combined: Made, rows_max: int) -> pa.Table | None:
    """Of all parts what `made` makes of each, the rows of one key made one by `combined`; None where these are more
    than `rows_max`."""
    held: list[pa.Table] = []
    for part in parts:
        held.append(made(part))
        if sum(map(len, held)) > rows_max:
            held = [_one(held, combined)]
            if len(held[0]) > rows_max:
                return None
    return _one(held, combined)


def _one(tables: list[pa.Table], combined: Made) -> pa.Table:
    return tables[0] if len(tables) == 1 else combined(pa.concat_tables(tables))
