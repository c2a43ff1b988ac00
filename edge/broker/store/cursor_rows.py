"""Interface for reads of table ``cursor``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from edge.broker.store.group import CursorRow


class CursorRows(Protocol):
    """Reads rows as of the last commit. Each method blocks for a short read and may raise StoreError."""

    def cursor(self, number: int) -> CursorRow | None:
        """Return one row; None if it is not found."""
        ...

    def cursor_of(self, name: str, log: int) -> CursorRow | None:
        """Return the row of one name and log; None if it is not found."""
        ...

    def cursors(self) -> Iterable[CursorRow]:
        """Return every row, by number."""
        ...

    def cursors_named(self, name: str) -> Sequence[CursorRow]:
        """Return the rows of one name, one for each log at most."""
        ...

    def cursors_in(self, log: int, below: int) -> Sequence[CursorRow]:
        """Return the rows of one log with a position below `below`, by number. Reads the whole table."""
        ...
