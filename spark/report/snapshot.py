"""The lake as one page sees it: every table is opened once, at versions that belong together.

The tables that describe the whole lake name in their commits what they were made of (`spark.provenance`). While a pass
runs, or after a run of single jobs, the newest of them are of different versions of `telemetry`. So the page takes each
at the newest version that all of them have a description of; older versions of a Delta table stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import deltalake

from spark.provenance import TELEMETRY, Provenance, State, parsed

DESCRIPTIONS = ("gateway_freshness", "throughput", "gaps", "completeness")
"""Tables with totals of messages."""
_PAIR = ("gaps", "completeness")
"""Made by one job of several landed tables: these two have to agree in all of them."""
COMMITS_MAX = 20
"""How far back in each table a common version of `telemetry` is looked for."""

_Made = list[tuple[int, Provenance]]
"""Versions of a description, newest first, and what each was made of."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`tables` by name, each at the version to draw.

    `telemetry`  the version of the messages that every description is of; None: there is none, or no common one.
    `mixed`      the descriptions have no version of `telemetry` in common: their totals may differ.
    """

    tables: Mapping[str, deltalake.DeltaTable]
    telemetry: State | None
    mixed: bool


def taken(root: Path) -> Snapshot:
    """Open the tables under `root`."""
    names = sorted(path.parent.name for path in root.glob("*/_delta_log"))
    paths = ((name, str(root / name)) for name in names)
    tables = {name: deltalake.DeltaTable(path) for name, path in paths if deltalake.DeltaTable.is_deltatable(path)}
    made = {name: _made(tables[name]) for name in DESCRIPTIONS if name in tables}
    # A table that no job has filled yet describes nothing.
    filled = [name for name in made if made[name] or tables[name].count()]
    if not filled:
        return Snapshot(tables, None, mixed=False)
    state, versions = _common({name: made[name] for name in filled})
    for name, version in versions.items():
        if version != tables[name].version():
            tables[name] = deltalake.DeltaTable(str(root / name), version=version)
    return Snapshot(tables, state, mixed=state is None)


def _made(table: deltalake.DeltaTable) -> _Made:
    version = table.version()
    commits = table.history(COMMITS_MAX)
    read = ((version - back, parsed(commit.get("userMetadata"))) for back, commit in enumerate(commits))
    return [(at, provenance) for at, provenance in read if provenance is not None and provenance.telemetry is not None]


def _common(made: Mapping[str, _Made]) -> tuple[State | None, dict[str, int]]:
    """The newest state of `telemetry` that all were made of, and each one's version of it."""
    for _, provenance in next(iter(made.values())):
        state = provenance.sources[TELEMETRY]
        versions = _versions(made, state)
        if versions is not None:
            return state, versions
    return None, {}


def _versions(made: Mapping[str, _Made], state: State) -> dict[str, int] | None:
    of_state = {name: [each for each in made[name] if each[1].telemetry == state] for name in made}
    if not all(of_state.values()):
        return None
    versions = {name: entries[0][0] for name, entries in of_state.items()}
    if all(name in made for name in _PAIR):
        gaps, completeness = (of_state[name] for name in _PAIR)
        pairs = ((one, other) for one, basis in gaps for other, its in completeness if basis == its)
        pair = next(pairs, None)
        if pair is None:
            return None
        versions |= dict(zip(_PAIR, pair, strict=True))
    return versions
