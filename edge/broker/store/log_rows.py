"""Reads of table ``log``: one row by number or by name, or all of them in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class LogRow(NamedTuple):
    """A row of table ``log``."""

    log: int
    name: str
    first: int
    next: int
    bytes: int


class LogEntry(NamedTuple):
    """A row of table ``log``, with the position of its cursor called `QUEUE_CURSOR`; None: it has no such cursor."""

    log: int
    name: str
    first: int
    next: int
    bytes: int
    position: int | None


class LogRows(Protocol):
    """Reads what the last commit left. Each method blocks for a short read, and raises StoreError."""

    def log(self, number: int) -> LogEntry | None:
        """Return the row of a number; None if it is not found."""
        ...

    def log_named(self, name: str) -> LogEntry | None:
        """Return the row of a name; None if it is not found."""
        ...

    def logs_after(self, number: int, *, holding: bool = False) -> Sequence[LogRow]:
        """Return a page of rows above a number, in order; empty at the end. `holding`: those that keep bytes."""
        ...
