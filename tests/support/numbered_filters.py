"""Table of filters, each with a number."""

from __future__ import annotations

import sqlite3

from edge.broker.router.filter_table import FilterTable


class NumberedFilters:
    """A table with filters by number."""

    def __init__(self, filters: list[str]) -> None:
        self.execute = sqlite3.connect(":memory:").execute
        self.execute("CREATE TABLE f (pattern TEXT, number INTEGER, PRIMARY KEY (pattern, number)) WITHOUT ROWID")
        self._table = FilterTable(self.execute, "f")
        for number, pattern in enumerate(filters):
            self.execute("INSERT INTO f VALUES (?, ?)", (pattern, number))
        self.deciding_levels = self._table.deciding_levels

    def match(self, name: str) -> list[int]:
        return [number for _, number in self._table.match(name)]
