"""Topic filters in a table of SQLite, found by the names that they match.

`FilterTree` is ten times as fast, and takes 200 to 700 bytes for each filter. This table is for filters that are rarely
needed, such as those of absent clients: a match reads some 20 ranges of an index, 2.5 us each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from edge.broker.model.topics import EVERY_NAME

_BEHIND_SLASH: Final = chr(ord("/") + 1)


class FilterTable:
    """Rows of a table with an index on its column ``pattern``. Several rows may have the same filter."""

    def __init__(self, execute: Callable[..., sqlite3.Cursor], table: str) -> None:
        self._execute = execute
        self._equal = f"SELECT * FROM {table} WHERE pattern = ?"  # noqa: S608 - a table of ours, as below
        self._between = f"SELECT 1 FROM {table} WHERE pattern >= ? AND pattern < ? LIMIT 1"  # noqa: S608
        self._beyond = f"SELECT 1 FROM {table} WHERE pattern > ? AND pattern < ? LIMIT 1"  # noqa: S608

    def match(self, name: str) -> list[tuple[Any, ...]]:
        """Return every row with a filter that matches the topic name."""
        levels, hidden = name.split("/"), name.startswith("$")
        found = self._rows(EVERY_NAME["#"])
        stack = [("", 0)]  # prefix of matching filters, and the next level of the name
        while stack:
            prefix, at = stack.pop()
            wildcards = not (hidden and at == 0)
            if wildcards:
                found += self._rows(f"{prefix}#")  # also the parent level [MQTT-4.7.1-2]
            if at == len(levels):
                continue
            wanted = ["+"] if wildcards else []
            if at == 0:
                wanted.append(EVERY_NAME["+"])
            if levels[at] not in ("+", "#"):
                wanted.append(levels[at])
            for level in dict.fromkeys(wanted):
                if at + 1 == len(levels):
                    found += self._rows(prefix + level)
                below = f"{prefix}{level}/"
                if self._has_below(below):
                    stack.append((below, at + 1))
        return found

    def deciding_levels(self, name: str) -> int:
        """See `FilterTree.deciding_levels`."""
        levels = name.split("/")
        if name.startswith("$"):
            return len(levels)
        prefixes, wildcards = [""], ["+", EVERY_NAME["+"]]
        for count, level in enumerate(levels[:-1], 1):
            below = (f"{prefix}{each}/" for prefix in prefixes for each in (level, *wildcards))
            # without prefixes that no filter has: otherwise their number would double with each level
            prefixes, wildcards = [each for each in below if self._has_below(each)], ["+"]
            if all(self._has_only_all_below(prefix) for prefix in prefixes):
                return count
        return len(levels)

    def _rows(self, pattern: str) -> list[tuple[Any, ...]]:
        return self._execute(self._equal, (pattern,)).fetchall()

    def _has_below(self, prefix: str) -> bool:
        """Return True when some filter begins with this prefix, which ends with a slash."""
        return self._execute(self._between, (prefix, _end(prefix))).fetchone() is not None

    def _has_only_all_below(self, prefix: str) -> bool:
        """Return True when all filters that begin with this prefix continue with the wildcard of all levels."""
        wildcard = f"{prefix}#"
        before = self._execute(self._between, (prefix, wildcard)).fetchone()
        return before is None and self._execute(self._beyond, (wildcard, _end(prefix))).fetchone() is None


def _end(prefix: str) -> str:
    """Return the end of the range of texts that begin with this prefix, which ends with a slash."""
    return prefix[:-1] + _BEHIND_SLASH
