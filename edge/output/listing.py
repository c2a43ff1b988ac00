"""Output of commands in the form that `-o` or `--json` selects.

Documents have one envelope, `{"schema": 1, "kind": …, "items": […]}` (`edge.output.document.envelope`). The kind of a
command is stated at its option, so the reference has it too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import click

from edge.output.document import envelope
from edge.output.terminal import say, say_json
from edge.output.text import cell, line

FORMS: Final = ("table", "wide", "name", "json", "yaml", "csv")

FC = TypeVar("FC", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """Output of a command that was called with `--json`."""

    kind: str

    def show(self, items: Sequence[Any], **more: Any) -> None:
        """Print items in the envelope. `more`: see `envelope`."""
        say_json(envelope(self.kind, items, **more))

    def stream(self, item: Any, kind: str = "") -> None:
        """Print one item of a stream as one line. `kind`: of this item, if not that of the command."""
        say_json(envelope(kind or self.kind, [item]), indent=0)


def json_option(kind: str, *, streams: bool = False) -> Callable[[FC], FC]:
    """Return the option `--json` of a command that prints items of a kind; its parameter is a `JsonOutput` or None."""

    def made(_context: click.Context, _parameter: click.Parameter, value: bool) -> JsonOutput | None:
        return JsonOutput(kind) if value else None

    how = "one document a line" if streams else "JSON"
    return click.option("--json", "as_json", is_flag=True, callback=made, help=f"Print {how}: items of kind `{kind}`.")


def output_option(kind: str) -> Callable[[FC], FC]:
    """Return the options `-o` and `--json` of a list; their parameter is the form."""

    def add(function: FC) -> FC:
        form = click.option(
            "-o",
            "--output",
            "form",
            type=click.Choice(FORMS),
            default="table",
            show_default=True,
            help="Form: a table, with more columns (wide), names only, or a document.",
        )
        short = click.option("--json", "form", flag_value="json", help=f"The same as -o json: items of kind `{kind}`.")
        return form(short(function))

    return add


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


def print_listing(listing: Listing, rows: Sequence[Mapping[str, Any]], form: str, **more: Any) -> None:
    """Print rows in one of `FORMS`. `more`: further keys of the envelope."""
    match form:
        case "json":
            say_json(envelope(listing.kind, rows, **more))
        case "yaml":
            import yaml  # noqa: PLC0415 - only for this form

            document = envelope(listing.kind, [dict(row) for row in rows], **more)
            click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
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
    writer.writerows([cell(line(_shown(row.get(column), ""))) for column in columns] for row in rows)
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
