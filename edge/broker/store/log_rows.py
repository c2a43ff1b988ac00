"""Interface for reads of table ``log``: one row by number or name, or all rows in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class LogRow(NamedTuple):
    """Row of table ``log``."""

    log: int
    name: str
    first: int
    next: int
    bytes: int


class LogEntry(NamedTuple):
    """Row of table ``log`` with the position of its cursor `QUEUE_CURSOR`; None: it has no such cursor."""

    log: int
    name: str
    first: int
    next: int
    bytes: int
    position: int | None


class LogRows(Protocol):
    """Reads rows as of the last commit. Each method blocks for a short read and may raise StoreError."""

    def log(self, number: int) -> LogEntry | None:
        """Return the row of a number; None if it is not found."""
        ...

    def log_named(self, name: str) -> LogEntry | None:
        """Return the row of a name; None if it is not found."""
        ...

    def logs_after(self, number: int, *, holding: bool = False) -> Sequence[LogRow]:
        """Return a page of rows above a number, in order; empty at the end. `holding`: only rows with bytes."""
        ...
