"""`waypost lake query`: SQL over the tables of a lake."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cloud.place.place import LakePlace
from spark import commands, interruption
from spark.amounts import counted

if TYPE_CHECKING:
    from spark.query.database import QueryDatabase

FAILED, USAGE, INTEGRITY = 1, 2, 4
TABLES = "tables"
"""Word that lists the tables, instead of a query."""


@click.command()
@commands.lake_option
@click.argument("sql", required=False, metavar="[SQL]")
@click.option("--file", "file", type=click.File("rb"), metavar="FILE", help="Read the query from a file; `-`: stdin.")
@click.option("--tables", is_flag=True, help="List the tables with their columns, rows and version.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row, all rows.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV (RFC 4180), all rows.")
@interruption.interruptible("the result is not complete")
def query(lake: LakePlace, sql: str | None, file: Any, tables: bool, as_json: bool, as_csv: bool) -> None:
    """Answer a question in SQL (DuckDB's). Reads only; starts no JVM.

    SQL is one SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE or EXPLAIN; `-` reads it from standard input. Tables are
    named as in the lake: readings, rollup_1h, gaps, telemetry, ... The word `tables` lists them. A command reads one
    version of each table. Times are UTC, and bytes (`body`) are base64 unless the query casts them to VARCHAR.

    \b
    The mean of a metric, day by day:
      waypost lake query --lake DATA/lake "
        SELECT window_start::DATE AS day, sum(sum) / sum(count) AS mean
        FROM rollup_1h WHERE metric = 'temperature' GROUP BY day ORDER BY day"

    \b
    Gateways without data in the last hour:
      waypost lake query --lake DATA/lake "
        SELECT gateway, last_ingested_at, now() - last_ingested_at AS silent
        FROM gateway_freshness
        WHERE device IS NULL AND last_ingested_at < now() - INTERVAL 1 HOUR
        ORDER BY last_ingested_at"

    \b
    The last messages of a device:
      waypost lake query --lake DATA/lake "
        SELECT received_at, address, body::VARCHAR AS body
        FROM telemetry WHERE device = 'dev1'
        ORDER BY received_at DESC LIMIT 20"

    \b
    Exit codes: 0 done; 1 the query failed while it ran, or its table has not been made yet; 2 the query is wrong or
    not allowed; 4 a table is damaged.
    """
    lists = tables or sql == TABLES
    if as_json and as_csv:
        raise click.UsageError("--json and --csv: choose one")
    if sum((lists, sql is not None and sql != TABLES, file is not None)) != 1:
        raise click.UsageError("give one query: as an argument, by --file, or `tables` to list the tables")
    if lists and as_csv:
        raise click.UsageError("--tables prints text, or JSON with --json")
    text = "" if lists else _text(sql, file)
    from spark import table_errors
    from spark.query.database import BadQuery, QueryDatabase, QueryFailed, TableNotMade
    from spark.query.text import spell_line

    database = QueryDatabase(lake)
    try:
        if lists:
            _list(lake, database, as_json=as_json)
        else:
            _run(database, text, as_json=as_json, as_csv=as_csv)
    except (BadQuery, QueryFailed, TableNotMade, table_errors.TableUnreadable) as error:
        click.echo(f"error: {spell_line(str(error))}", err=True)
        sys.exit({BadQuery: USAGE, table_errors.TableUnreadable: INTEGRITY}.get(type(error), FAILED))
    finally:
        database.close()


def _text(sql: str | None, file: Any) -> str:
    """Return the query. Raises `click.UsageError`."""
    from spark.query.limits import SQL_BYTES_MAX

    if file is None and sql != "-":
        return sql or ""
    source = file if file is not None else sys.stdin.buffer
    try:
        return bytes(source.read(SQL_BYTES_MAX + 1)).decode()
    except UnicodeDecodeError:
        raise click.UsageError("the query is not UTF-8") from None


def _run(database: QueryDatabase, sql: str, *, as_json: bool, as_csv: bool) -> None:
    from rich.console import Console

    from spark.query import output
    from spark.query.limits import WIDTH

    result = database.run(sql)
    out = sys.stdout.buffer
    if as_json:
        output.write_json(result, out)
    elif as_csv:
        output.write_csv(result, out, terminal=out.isatty())
    else:
        console = Console(highlight=False, width=shutil.get_terminal_size((WIDTH, 24)).columns)
        output.show(result, console, lambda note: click.echo(f"note: {note}", err=True))


def _list(lake: LakePlace, database: QueryDatabase, *, as_json: bool) -> None:
    """Print the tables of the lake. A damaged one is named, and the command ends with 4 after the others."""
    from spark import table_errors
    from spark.query.descriptions import DESCRIPTIONS, maker_command
    from spark.query.text import json_text, spell_line

    order = {name: number for number, name in enumerate(DESCRIPTIONS)}
    damaged = False
    for name in sorted(database.tables, key=lambda table: (order.get(table, len(order)), table)):
        about = DESCRIPTIONS.get(name, "not a table of Waypost's")
        try:
            with table_errors.translate_errors(name):
                table = database.open(name)
                rows, version = int(table.count()), table.version()
            columns = database.columns(name)
        except table_errors.TableUnreadable as error:
            click.echo(f"error: {spell_line(str(error))}", err=True)
            damaged = True
            continue
        if as_json:
            found = [{"name": column.name, "type": column.type} for column in columns]
            click.echo(json_text({"table": name, "about": about, "rows": rows, "version": version, "columns": found}))
        else:
            click.echo(f"{spell_line(name)}: {about}")
            click.echo(f"  {counted(rows, 'row')}, version {version}")
            click.echo("\n".join(_wrap(", ".join(f"{spell_line(each.name)} {each.type}" for each in columns))))
    absent: dict[str, list[str]] = {}
    for name in DESCRIPTIONS:
        if name not in database.tables:
            absent.setdefault(maker_command(name, lake.uri), []).append(name)
    for made, names in absent.items():
        click.echo(f"note: not in this lake: {', '.join(names)} ({made})", err=True)
    if damaged:
        sys.exit(INTEGRITY)


def _wrap(text: str) -> Iterator[str]:
    from spark.query.limits import WIDTH

    width = shutil.get_terminal_size((WIDTH, 24)).columns
    yield from textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
