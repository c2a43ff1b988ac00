"""Comparison of a table's rows with the expected rows, value by value; each line describes a difference."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

Row = dict[str, Any]
Key = tuple[Any, ...]

SHOWN_MAX: Final = 8
"""Most differences of a table that are listed; the others are counted."""
_RELATIVE, _ABSOLUTE = 1e-9, 1e-6
"""Tolerances of a sum of doubles, because the order of addition is free."""


@dataclass(frozen=True, slots=True)
class Table:
    """Expected content of a table. `sql` may have columns `NAME_low` and `NAME_high` instead of column NAME.

    `key`: rows with equal values in it are compared in any order, because a message may occur twice. `near`: columns of
    sums. `unseen`: columns of the table that are not compared.
    """

    name: str
    key: Sequence[str]
    sql: str
    near: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()


class _Column(NamedTuple):
    """Column and the way to compare it."""

    name: str
    bounds: tuple[str, str] | None
    near: bool

    def shown(self, row: Row) -> Any:
        """Return the expected value of this column in a row."""
        return row[self.name] if self.bounds is None else tuple(row[bound] for bound in self.bounds)

    def is_as(self, expected: Row, found: Row) -> bool:
        value = found[self.name]
        if self.bounds is not None:
            low, high = self.shown(expected)
            return value is None if low is None else value is not None and low <= value <= high
        wanted = expected[self.name]
        if self.near and wanted is not None and value is not None:
            return math.isclose(wanted, value, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
        return bool(wanted == value)


def compared(table: Table, expected: pa.Table, found: pa.Table) -> Iterator[str]:
    """Yield one line for each difference in rows or columns."""
    columns = list(_columns(table, expected.column_names))
    names = {column.name for column in columns} | table.unseen
    if names != set(found.column_names):
        differing = sorted(names ^ set(found.column_names))
        yield f"{table.name}: columns {differing} are in one of table and oracle only; see tests/spark/oracle.py"
        return
    wanted, there = (_by_key(rows.to_pylist(), table.key) for rows in (expected, found.select(sorted(names))))
    lines = [line for key in (wanted | there) for line in _lines(key, wanted[key], there[key], columns)]
    yield from (f"{table.name}{line}" for line in lines[:SHOWN_MAX])
    if len(lines) > SHOWN_MAX:
        yield f"{table.name}: {len(lines) - SHOWN_MAX} more differences"


def _columns(table: Table, names: Sequence[str]) -> Iterator[_Column]:
    for name in names:
        if name in table.unseen:
            continue
        if name.endswith("_low"):
            whole = name.removesuffix("_low")
            yield _Column(whole, (name, f"{whole}_high"), near=False)
        elif not name.endswith("_high"):
            yield _Column(name, None, name in table.near)


def _by_key(rows: Iterable[Row], key: Sequence[str]) -> defaultdict[Key, list[Row]]:
    found: defaultdict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in key)].append(row)
    return found


def _lines(key: Key, wanted: list[Row], there: list[Row], columns: Sequence[_Column]) -> Iterator[str]:
    where = f" [{', '.join(map(str, key))}]"
    if len(wanted) != len(there):
        yield f"{where}: {len(wanted)} rows expected, {len(there)} found"
        return
    if len(wanted) > 1:  # copies of a message, or values of one name
        wanted, there = sorted(wanted, key=_order), sorted(there, key=_order)
    for one, other in zip(wanted, there, strict=True):
        for column in columns:
            if not column.is_as(one, other):
                yield f"{where}.{column.name}: expected {column.shown(one)!r}, found {other[column.name]!r}"


def _order(row: Row) -> str:
    return repr(sorted((name, str(value)) for name, value in row.items()))
