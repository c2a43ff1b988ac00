"""Tables of the page: rows of values, drawn by the template as far as a leaf goes and by `assets/tables.js` beyond."""

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
"""What a column's values are. `time`: seconds since 1970; `state`: (rank, words), where 2 is wrong and 1 needs a
look; `gateway`: (name,
address of its page or nothing); `spark`: `drawings.levels` of it; `heat`: a letter an hour, from the column's start."""
NUMERIC = frozenset({"count", "seconds", "share", "number", "bytes", "time"})


class ReportColumn(msgspec.Struct):
    """`alarm`: values above zero are bad ones. `start`: seconds since 1970, of the first hour of a `heat`."""

    head: str
    kind: Kind = "text"
    alarm: bool = False
    start: float | None = None


class ReportTable(msgspec.Struct):
    """`total`: rows there are, of which `rows` are the worst; `folded`: shown when asked for."""

    label: str
    columns: Sequence[ReportColumn]
    rows: list[list[Any]]
    total: int = 0
    folded: bool = False

    @property
    def drawn(self) -> list[list[Any]]:
        """Those of the first leaf."""
        return self.rows[: limits.ROWS_DRAWN]

    @property
    def left_out(self) -> int:
        """Rows that are in the lake and not here."""
        return max(0, self.total - len(self.rows))

    @property
    def data(self) -> dict[str, Any]:
        """What the script searches and sorts."""
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
    """A value in words; `assets/words.js` says the same."""
    if value is None or kind in ("spark", "heat"):
        return ""
    if kind in _WORDS:
        return _WORDS[kind](value)
    return str(value[1] if kind == "state" else value[0] if kind == "gateway" else value)


def mark(column: ReportColumn, value: Any) -> str:
    """The classes of a cell; without a value, of the head. A wide one has a line of its own on a phone."""
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
    """The parts of a name between which a line may break: after each `/` and `.` of it."""
    parts, start = [], 0
    for index, letter in enumerate(text[:-1], start=1):
        if letter in "/.":
            parts.append(text[start:index])
            start = index
    return [*parts, text[start:]]
