"""Tables of the page: the template draws the rows of the first leaf, and `assets/tables.js` the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from spark import amounts
from spark.report import formatting, limits

Kind = Literal[
    "name", "text", "count", "seconds", "share", "number", "bytes", "time", "state", "gateway", "spark", "heat"
]
"""Type of a column's values.

`time`: seconds since 1970; `state`: (rank, words), with rank 2 for wrong and 1 for needs a look; `gateway`: (name,
address of its page or empty); `spark`: `drawings.levels` of it; `heat`: a letter per hour from the column's start.
"""
NUMERIC = frozenset({"count", "seconds", "share", "number", "bytes", "time"})


class ReportColumn(msgspec.Struct):
    """`alarm`: values above zero are bad. `start`: the first hour of a `heat`, in seconds since 1970."""

    head: str
    kind: Kind = "text"
    alarm: bool = False
    start: float | None = None


class ReportTable(msgspec.Struct):
    """`total`: rows in the lake, of which `rows` are the worst; `folded`: closed until the reader opens it."""

    label: str
    columns: Sequence[ReportColumn]
    rows: list[list[Any]]
    total: int = 0
    folded: bool = False

    @property
    def drawn(self) -> list[list[Any]]:
        """Return the rows of the first leaf."""
        return self.rows[: limits.ROWS_DRAWN]

    @property
    def left_out(self) -> int:
        """Return the number of rows that are in the lake and not in the table."""
        return max(0, self.total - len(self.rows))

    @property
    def data(self) -> dict[str, Any]:
        """Return the rows that the script searches and sorts."""
        heads = [msgspec.to_builtins(column) for column in self.columns]
        return {"columns": heads, "rows": self.rows, "leaf": limits.ROWS_DRAWN}


_WORDS: Mapping[str, Callable[[Any], str]] = {
    "count": amounts.count,
    "seconds": formatting.duration,
    "share": formatting.percent,
    "number": formatting.number,
    "bytes": formatting.size,
    "time": lambda value: formatting.moment(datetime.fromtimestamp(value, UTC)),
}


def cell(kind: Kind, value: Any) -> str:
    """Return a value as text; `assets/words.js` does the same."""
    if value is None or kind in ("spark", "heat"):
        return ""
    if kind in _WORDS:
        return _WORDS[kind](value)
    return str(value[1] if kind == "state" else value[0] if kind == "gateway" else value)


def mark(column: ReportColumn, value: Any) -> str:
    """Return the classes of a cell, or of the head without a value. A wide cell has a line of its own on a phone."""
    if column.kind == "state" and value is not None:
        return ("good", "look", "bad")[value[0]] + " wide"
    names = ["n"] if column.kind in NUMERIC else ["name"] if column.kind in ("name", "gateway") else []
    if column.kind == "time":
        names.append("wide")
    if column.kind == "spark":
        names.append("spark")
    if column.kind == "heat":
        names += ["heat", "wide"]
    if column.alarm and value is not None:
        names.append("bad" if value > 0 else "good")
    return " ".join(names)


def breakable(text: str) -> list[str]:
    """Return the parts of a name between which a line may break: after each `/` and `.` of it."""
    parts, start = [], 0
    for index, letter in enumerate(text[:-1], start=1):
        if letter in "/.":
            parts.append(text[start:index])
            start = index
    return [*parts, text[start:]]
