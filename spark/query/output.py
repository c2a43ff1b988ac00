"""Print a result: a table for people, JSON lines or CSV for programs. JSON and CSV hold some rows at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from spark.amounts import count, counted
from spark.query.limits import CELL_CHARACTERS_MAX, COLUMN_WIDTH_MIN, ROWS_COUNTED_MAX, ROWS_SHOWN
from spark.query.text import csv_lines, json_text, plain_text, spell_line

if TYPE_CHECKING:
    from rich.console import Console

    from spark.query.database import QueryResult


def write_json(result: QueryResult, out: IO[bytes]) -> None:
    """Write one JSON object per row and line."""
    names = [column.name for column in result.columns]
    for part in result.parts:
        out.write("".join(f"{json_text(dict(zip(names, row, strict=True)))}\n" for row in part).encode())
    out.flush()


def write_csv(result: QueryResult, out: IO[bytes], *, terminal: bool) -> None:
    """Write a line of names, then the rows, in the format of RFC 4180."""
    names = [tuple(column.name for column in result.columns)]
    for part in itertools.chain([names], result.parts):
        out.write(csv_lines(part, terminal=terminal).encode("utf-8", "backslashreplace"))
    out.flush()


def show(result: QueryResult, console: Console, note: Callable[[str], None]) -> None:
    """Print the first rows: as a table if that fits, else each as a list. `note` gets what is not shown."""
    rows, more, exact = _take_first(result.parts)
    cells = [[_cell(value) for value in row] for row in rows]
    names = [spell_line(column.name) for column in result.columns]
    if result.explains:
        for *_, plan in rows:
            for line in str(plan).splitlines():
                console.print(spell_line(line), markup=False, soft_wrap=True)
        return
    if not rows:
        note(f"no rows; columns: {', '.join(names)}")
    elif _fits(names, cells, console.width):
        _show_table(result, names, cells, console)
    else:
        _show_rows(names, cells, console)
    if more:
        rest = f"{counted(more, 'more row')}" if exact else f"more than {count(more)} more rows"
        note(f"{rest}: a table shows {count(ROWS_SHOWN)}. --json or --csv prints all; LIMIT chooses")


def _take_first(parts: Iterator[list[tuple[Any, ...]]]) -> tuple[list[tuple[Any, ...]], int, bool]:
    """Return the rows to show, how many more there are, and whether that number is exact."""
    rows: list[tuple[Any, ...]] = []
    more = 0
    for part in parts:
        room = ROWS_SHOWN - len(rows)
        rows += part[:room]
        more += max(0, len(part) - room)
        if more > ROWS_COUNTED_MAX:
            return rows, ROWS_COUNTED_MAX, False
    return rows, more, True


def _cell(value: Any) -> str:
    text = "NULL" if value is None else spell_line(plain_text(value)[: CELL_CHARACTERS_MAX + 1])
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}…"


def _fits(names: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether every column has room for its values, or for a readable part of them."""
    from rich.cells import cell_len  # noqa: PLC0415 - programs get no table

    least = [
        min(max(map(cell_len, (name, *values))), max(COLUMN_WIDTH_MIN, cell_len(name)))
        for name, values in zip(names, zip(*cells, strict=True), strict=True)
    ]
    return sum(least) + 3 * len(least) + 1 <= width


def _show_table(result: QueryResult, names: Sequence[str], cells: Sequence[Sequence[str]], console: Console) -> None:
    from rich.table import Table  # noqa: PLC0415 - programs get no table
    from rich.text import Text  # noqa: PLC0415

    table = Table()
    for name, column in zip(names, result.columns, strict=True):
        table.add_column(Text(name), justify="right" if _is_number(column.type) else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _show_rows(names: Sequence[str], cells: Sequence[Sequence[str]], console: Console) -> None:
    width = max(map(len, names))
    for number, row in enumerate(cells, 1):
        console.print(f"row {count(number)}", style="bold", markup=False)
        for name, cell in zip(names, row, strict=True):
            console.print(f"  {name:<{width}}  {cell}", markup=False, highlight=False, soft_wrap=True)


def _is_number(type_: str) -> bool:
    return type_.startswith("DECIMAL") or type_.endswith(("INT", "INTEGER", "DOUBLE", "FLOAT"))
