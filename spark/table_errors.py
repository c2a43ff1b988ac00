"""Describe in a sentence why a table cannot be opened or read, and the next step. No JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Final, Literal

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

FAILURES: Final = (DeltaError, pa.ArrowException, OSError, ValueError)
"""Errors of delta-rs and pyarrow for an invalid log or data file."""
OTHER_COLUMNS: Final = (
    "Another program wrote it: restore a landed table from a copy; `waypost lake rebuild` rebuilds a derived one"
)
"""Next step for a table that lacks a column, or has it with another type."""
_FRAME: Final = re.compile(r"\s*(\d+: |(stack )?backtrace:)", re.IGNORECASE)
_NEWER: Final = re.compile("unsupported|not supported", re.IGNORECASE)
_CHARACTERS_MAX = 300


Of = Literal["log", "rows", "columns"]
"""The invalid part: the log, so that the table cannot be opened; a data file; or names and types of columns."""


class TableUnreadable(RuntimeError):
    """A table cannot be opened, or its rows cannot be read; the message says what to do."""

    def __init__(self, table: str, text: str) -> None:
        super().__init__(text)
        self.table = table


@contextmanager
def translate_errors(table: str, of: Of = "log") -> Iterator[None]:
    """Raise `TableUnreadable` for an error while a table is opened or read; a missing table stays what it is."""
    try:
        yield
    except TableNotFoundError:
        raise
    except FAILURES as error:
        raise make_unreadable(table, error, of) from error


def make_unreadable(table: str, error: Exception, of: Of = "log") -> TableUnreadable:
    """Return the error to raise, or to print, for a table that cannot be opened or read."""
    text = summarize(error)
    return TableUnreadable(table, f"table {table} cannot be read: {text}. {_advise(table, text, of)}")


def summarize(error: Exception) -> str:
    """Return an error in one line; delta-rs adds frames of its stack if RUST_BACKTRACE is set."""
    lines = takewhile(lambda line: not _FRAME.match(line), str(error).splitlines())
    return " ".join(line.strip() for line in lines)[:_CHARACTERS_MAX].rstrip(" .")


def advise_for_files(table: str) -> str:
    """Return the next step for damaged data files of a table."""
    from spark import schemas  # noqa: PLC0415 - Spark's types are half a second that a report must not pay

    if table not in schemas.LANDED:
        return "`waypost lake rebuild` rebuilds derived tables from what has landed"
    return (
        "Restore it from a copy, or let `waypost lake verify --drop` remove damaged files from the table and "
        "record the loss"
    )


def _advise(table: str, text: str, of: Of) -> str:
    from spark import schemas  # noqa: PLC0415 - Spark's types are half a second that a report must not pay

    if _NEWER.search(text):
        return "A newer program wrote it: use that program"
    if table in schemas.LANDED:
        return {
            "log": "Start the hub, which removes a torn end of its log, or restore the table from a copy",
            "rows": f"`waypost lake verify` names the damaged files of {table}: restore them from copies, or "
            "remove them with `verify --drop`",
            "columns": "Another program wrote it: restore the table from a copy",
        }[of]
    if table == schemas.PAYLOAD_SCHEMAS.name:
        return "Restore it from a copy, or delete it and register the schemas again: `waypost lake schema add`"
    return "Rebuild it: `waypost lake rebuild`"
