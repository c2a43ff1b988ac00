"""Changes of files by commits of a Delta table, read from its log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import deltalake


class Written(NamedTuple):
    """Data files added and removed. `size`: bytes of the added ones."""

    added: int = 0
    removed: int = 0
    size: int = 0

    def plus(self, other: Written) -> Written:
        """Return the sum of both."""
        return Written(*(one + more for one, more in zip(self, other, strict=True)))


def version(table: Path) -> int:
    """Return the newest version; -1 without a table."""
    return deltalake.DeltaTable(table).version() if deltalake.DeltaTable.is_deltatable(str(table)) else -1


def written(table: Path, after: int) -> Written:
    """Return the changes of all versions after `after`."""
    found = Written()
    for number in range(after + 1, version(table) + 1):
        entry = (table / "_delta_log" / f"{number:020}.json").read_text()
        found = found.plus(_written(map(json.loads, entry.splitlines())))
    return found


def _written(actions: Iterable[dict[str, Any]]) -> Written:
    found = Written()
    for action in actions:
        if "add" in action:
            found = found.plus(Written(1, 0, action["add"]["size"]))
        elif "remove" in action:
            found = found.plus(Written(0, 1, 0))
    return found


def data_changes(table: Path, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit that add or remove rows, as readers that follow the table see them."""
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    assert actions, "an empty commit"
    return [
        action[kind]
        for action in actions
        for kind in ("add", "remove")
        if kind in action and action[kind].get("dataChange", True)
    ]
