"""What commits of a Delta table did to its files, as its log says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import deltalake


class Written(NamedTuple):
    """Data files that came and went. `size`: bytes of those that came."""

    added: int = 0
    removed: int = 0
    size: int = 0

    def plus(self, other: Written) -> Written:
        """Both together."""
        return Written(*(one + more for one, more in zip(self, other, strict=True)))


def version(table: Path) -> int:
    """The newest version; -1 where there is no table."""
    return deltalake.DeltaTable(table).version() if deltalake.DeltaTable.is_deltatable(str(table)) else -1


def written(table: Path, after: int) -> Written:
    """What the versions after `after` did together."""
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
    """Return the actions of a commit that add or take away rows, as readers that follow the table see them."""
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    assert actions, "an empty commit"
    return [
        action[kind]
        for action in actions
        for kind in ("add", "remove")
        if kind in action and action[kind].get("dataChange", True)
    ]
