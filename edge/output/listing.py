"""Lists of commands in the form that their option `-o` asks for.

`json` and `yaml` have one envelope, `{"schema": 1, "kind": …, "items": […]}`: keys may be added to it and to items, and
none is removed or changes its meaning while `schema` stays.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from edge.output.terminal import say, say_json
from edge.output.text import cell, line

SCHEMA: Final = 1
FORMS: Final = ("table", "wide", "name", "json", "yaml", "csv")

output_option = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(FORMS),
    default="table",
    show_default=True,
    help="Form: a table, with more columns (wide), names only, or a document.",
)


class Listing(NamedTuple):
    """Kind of rows of a list, and their columns."""

    kind: str
    name: str
    """Key with the name of a row."""
    columns: Sequence[str]
    """Keys of a table."""
    wide: Sequence[str] = ()
    """Further keys of a wide table."""
    empty: str = "none"
    """Text in place of a table without rows."""


def envelope(kind: str, items: Sequence[Any]) -> dict[str, Any]:
    """Return a document in the envelope of all lists."""
    return {"schema": SCHEMA, "kind": kind, "items": items}


def print_listing(listing: Listing, rows: Sequence[Mapping[str, Any]], form: str) -> None:
    """Print rows in one of `FORMS`."""
    match form:
        case "json":
            say_json(envelope(listing.kind, rows))
        case "yaml":
            import yaml  # noqa: PLC0415 - only for this form

            click.echo(yaml.safe_dump(envelope(listing.kind, [dict(row) for row in rows]), sort_keys=False), nl=False)
        case "csv":
            _print_csv([*listing.columns, *listing.wide], rows)
        case "name":
            for row in rows:
                say(line(row[listing.name]))
        case _:
            _print_table([*listing.columns, *(listing.wide if form == "wide" else ())], rows, listing.empty)


def _print_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(_shown(row.get(column), "")) for column in columns] for row in rows)
    click.echo(text.getvalue(), nl=False)


def _print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    if not rows:
        say(empty)
        return
    table = [[line(_shown(row.get(column), "-")) for column in columns] for row in rows]
    head = [column.replace("_", " ").upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(head, *table, strict=True)]
    for style, texts in [("bold", head), *((None, texts) for texts in table)]:
        padded = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
        say("  ".join(padded).rstrip(), style=style)


def _shown(value: Any, nothing: str) -> str:
    """Return a value of a row as text."""
    if value is None or value in ("", [], {}):
        return nothing
    if isinstance(value, Mapping):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
