"""DuckDB in memory, locked: a query reads the tables of one lake and nothing else, and writes nothing.

Three locks, each of which stops most forbidden actions of a query:
- only one statement, and only of the kinds that read;
- no access to files, network or extensions, with a configuration that can no longer be changed;
- a transaction that is read only.

DuckDB requests a table when it does not find its name, so a query opens the tables that it names. Each stays at the
version it was opened at.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import deltalake
import duckdb
import msgspec

from cloud.place.place import LakePlace
from spark import table_errors
from spark.query.descriptions import DESCRIPTIONS, maker_command
from spark.query.limits import FETCH_ROWS, MEMORY_SHARE, SQL_BYTES_MAX, THREADS_MAX
from spark.query.scan import DeltaScan

READING: Final = "SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE or EXPLAIN"
_TIME: Final = "TIMESTAMP WITH TIME ZONE"
_EXPLAIN: Final = re.compile(r"\s*EXPLAIN\b(\s+ANALYZE\b)?(\s*\(\s*(ANALYZE|FORMAT)\b[^)]*\))?", re.IGNORECASE)
_OF_THE_QUERY: Final = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.PermissionException,
    duckdb.SyntaxException,
    duckdb.TransactionException,
)
"""Errors of the query itself, found before a row is read. Others come from values, or from memory."""
_HINTS: Final = {
    duckdb.PermissionException: "a query may only read the tables of the lake",
    duckdb.OutOfMemoryException: (
        f"the query needs more than {MEMORY_SHARE:.0%} of this machine's memory (MEMORY_SHARE): narrow it with WHERE, "
        "name fewer columns, or sum up instead of sorting all rows"
    ),
}


class BadQuery(ValueError):
    """The query cannot be run; the message names the place, on one line."""


class QueryFailed(RuntimeError):
    """The query failed while it ran, because of a value or memory."""


class TableNotMade(RuntimeError):
    """A table that Waypost knows is not in this lake; the message names the command that makes it."""


class _DuckdbError(msgspec.Struct):
    """Error as DuckDB describes it with `errors_as_json`. `position`: bytes of the query before it."""

    exception_message: str = ""
    position: str | None = None
    type: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """Column of a result or a table, with its type in SQL."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Running query: `parts` fetches rows as they are consumed. `explains`: it is a plan, as text."""

    columns: Sequence[ResultColumn]
    parts: Iterator[list[tuple[Any, ...]]]
    explains: bool


class QueryDatabase:
    """Runs queries over one lake, one at a time."""

    def __init__(self, lake: LakePlace) -> None:
        self._lake = lake
        self._scans: dict[str, DeltaScan] = {}
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{MEMORY_SHARE:.0%}",
                "threads": min(len(os.sched_getaffinity(0)), THREADS_MAX),
                "temp_directory": "",  # a query that does not fit into memory fails instead of filling a disk
                "python_enable_replacements": "false",  # no variable of this program is a table
                "autoload_known_extensions": "false",
                "autoinstall_known_extensions": "false",
                "errors_as_json": "true",
            },
        )
        for setting in (
            "TimeZone = 'UTC'",
            "enable_progress_bar = false",  # DuckDB draws it on standard output, among the rows
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def close(self) -> None:
        """Release the resources of the database."""
        self._connection.close()

    def run(self, sql: str) -> QueryResult:
        """Start a query. Raises `BadQuery`, `TableNotMade` and `TableUnreadable`.

        Reading `parts` raises `QueryFailed` and `TableUnreadable`.
        """
        kind = self._check(sql)
        self._start(sql)
        columns = [ResultColumn(name, str(type_)) for name, type_, *_ in self._connection.description]
        return QueryResult(_make_distinct(columns), self._parts(sql), kind == duckdb.StatementType.EXPLAIN)

    def columns(self, table: str) -> Sequence[ResultColumn]:
        """Return the columns of a table as SQL sees them. Raises `TableUnreadable`."""
        quoted = table.replace('"', '""')
        rows = [row for part in self.run(f'DESCRIBE "{quoted}"').parts for row in part]
        return [ResultColumn(name, type_.replace(_TIME, "TIMESTAMPTZ")) for name, type_, *_ in rows]

    def _check(self, sql: str) -> duckdb.StatementType:
        if len(sql.encode()) > SQL_BYTES_MAX:
            raise BadQuery(f"the query is longer than {SQL_BYTES_MAX // 1024} KiB (SQL_BYTES_MAX)")
        try:
            statements = self._connection.extract_statements(sql)
        except duckdb.Error as error:
            raise _explain(error, sql) from None
        if not statements:
            raise BadQuery(f"the query is empty: begin with {READING}")
        if len(statements) > 1:
            raise BadQuery("there is more than one statement: give one query")
        if statements[0].type == duckdb.StatementType.MULTI:
            raise BadQuery("PIVOT needs its values: PIVOT … ON column IN ('a', 'b') USING …")
        if sql.split(maxsplit=1)[0].lower() == "show":
            raise BadQuery("SHOW is not allowed: `waypost lake query --tables` lists tables and columns")
        kind = statements[0].type
        explained = _EXPLAIN.sub("", sql, count=1)
        if kind == duckdb.StatementType.EXPLAIN and explained != sql:
            self._check(explained)
        elif kind != duckdb.StatementType.SELECT:
            raise BadQuery(f"{kind.name} is not allowed: a query begins with {READING}")
        return kind

    def _start(self, sql: str) -> None:
        """Execute a query, opening each table that it turns out to name."""
        while True:
            self._connection.execute("BEGIN TRANSACTION READ ONLY")
            try:
                self._connection.execute(sql)
            except duckdb.Error as error:
                self._connection.execute("ROLLBACK")
                missing = _missing_table(error)
                if missing is None or not self._open_named(missing):
                    raise self._explain_error(error, sql) from None
            else:
                return

    @cached_property
    def tables(self) -> Sequence[str]:
        """Names of the tables of the lake."""
        return self._lake.tables()

    def open(self, name: str) -> deltalake.DeltaTable:
        """Register a table with DuckDB at its current version, and return it. Raises `TableUnreadable`."""
        with table_errors.translate_errors(name):
            table = self._lake.at(name).delta()
            scan = DeltaScan(name, table)
        self._scans[name] = scan
        self._connection.register(name, scan)
        return table

    def _open_named(self, name: str) -> bool:
        """Open the table of this name; return False if the lake has none. Raises `TableNotMade`."""
        found = next((table for table in self.tables if table.lower() == name.lower()), None)
        if found is not None and found not in self._scans:
            self.open(found)
            return True
        if found is None and name.lower() in DESCRIPTIONS:
            made = maker_command(name.lower(), self._lake.uri)
            raise TableNotMade(f"table {name.lower()} is not in this lake: {made}")
        return False

    def _parts(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while rows := self._connection.fetchmany(FETCH_ROWS):
                yield rows
            self._connection.execute("ROLLBACK")
        except duckdb.Error as error:
            raise self._explain_error(error, sql) from None

    def _explain_error(self, error: duckdb.Error, sql: str) -> Exception:
        """Return the reason for a failed query: a damaged table, or DuckDB's message."""
        failure = next((scan.failure for scan in self._scans.values() if scan.failure is not None), None)
        if failure is not None:
            return failure
        missing = _missing_table(error)
        if missing is None:
            return _explain(error, sql)
        alike = difflib.get_close_matches(missing.lower(), self.tables, 1)
        hint = f"did you mean {alike[0]}?" if alike else "`waypost lake query --tables` lists the tables"
        return BadQuery(f"{_position(_parse_error(error), sql)}table {missing} is not known: {hint}")


def _parse_error(error: duckdb.Error) -> _DuckdbError:
    text = str(error)
    begin = text.find("{")
    try:
        return msgspec.json.decode(text[begin:], type=_DuckdbError) if begin >= 0 else _DuckdbError(text)
    except msgspec.DecodeError:
        return _DuckdbError(text)


def _missing_table(error: duckdb.Error) -> str | None:
    """Return the name of the table that DuckDB does not know; None for another error."""
    described = _parse_error(error)
    return described.name if isinstance(error, duckdb.CatalogException) and described.type == "Table" else None


def _explain(error: duckdb.Error, sql: str) -> BadQuery | QueryFailed:
    described = _parse_error(error)
    hint = next((f" ({hint})" for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
    # DuckDB's advice about memory is on settings that are locked here.
    out_of_memory = isinstance(error, duckdb.OutOfMemoryException)
    text = "no memory is left" if out_of_memory else " ".join(described.exception_message.split())
    text = f"{_position(described, sql)}{text}{hint}"
    return BadQuery(text) if isinstance(error, _OF_THE_QUERY) else QueryFailed(text)


def _position(described: _DuckdbError, sql: str) -> str:
    """Return `line 2, column 8: `; empty if DuckDB gives no position."""
    if described.position is None or not described.position.isdigit():
        return ""
    before = sql.encode()[: int(described.position)].decode(errors="ignore")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}: "


def _make_distinct(columns: Sequence[ResultColumn]) -> list[ResultColumn]:
    """Return the columns with distinct names, as the keys of a JSON object require."""
    taken: set[str] = set()
    found = []
    for column in columns:
        name, number = column.name, 1
        while name in taken:
            number += 1
            name = f"{column.name}_{number}"
        taken.add(name)
        found.append(ResultColumn(name, column.type))
    return found
