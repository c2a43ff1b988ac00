"""The lake as one page sees it: each table is opened once, at versions that belong together.

Derived tables name their sources in their commits (`spark.lineage`). While a pass runs, or after a run of single jobs,
the newest of them are of different versions of `telemetry`. So the page takes the tables that describe the whole lake
at the newest version that all of them describe. Of each other table it takes the newest version without data that
landed later. Older versions of a Delta table stay readable.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import deltalake
from deltalake.exceptions import TableNotFoundError

from cloud.place.place import LakeLocation, LakePlace, place_of, place_of_table
from spark import lineage, table_errors
from spark.data_files import list_files
from spark.lineage import TELEMETRY, TableLineage, TableState

DESCRIPTIONS = ("gateway_freshness", "throughput", "outages", "gaps", "completeness")
"""Tables with totals of messages."""
_PAIR = ("gaps", "completeness")
"""Tables of one job with several landed sources: both have to agree in all of them."""
READINGS, REJECTS = "readings", "reject"
_FOLLOWING = {READINGS: TELEMETRY, "rollup_1m": READINGS, "rollup_1h": READINGS}
"""Tables that follow the messages, in order, with the source of each."""

_Made = list[tuple[int, TableLineage]]
"""Versions of a table, newest first, with the source versions of each."""


class VersionDoubt(enum.Enum):
    """Reason why a table is not of the page's version."""

    BEHIND = "behind"
    """Messages that the page counts are missing from it."""
    AHEAD = "ahead"
    """The table has messages that the page does not count, and no older version of it can be read."""
    UNKNOWN = "unknown"
    """Its commits do not name their sources."""


@dataclass(frozen=True, slots=True)
class TableStanding:
    """State of a table that is not of the page's version. `of`: its version, unless `doubt` is UNKNOWN."""

    doubt: VersionDoubt
    of: TableState | None = None


@dataclass(frozen=True, slots=True)
class ReportSnapshot:
    """`tables` by name, each at the version to draw.

    `telemetry`  the version of the messages that all descriptions share; None if they share none.
    `mixed`      the descriptions share no version of `telemetry`, so their totals may differ.
    `apart`      the other derived tables that are not of that version, with their state.
    `unreadable` tables that are left out, with reasons.
    """

    tables: Mapping[str, deltalake.DeltaTable]
    telemetry: TableState | None
    mixed: bool
    apart: Mapping[str, TableStanding] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


def take_snapshot(lake: LakeLocation, without: Mapping[str, str] | None = None) -> ReportSnapshot:
    """Open the tables of a lake except those in `without`. Raises `TableUnreadable`."""
    place, unreadable = place_of(lake), without or {}
    names = [name for name in place.tables() if name not in unreadable]
    tables = {name: table for name in names if (table := _open_table(place.at(name))) is not None}
    return replace(_match_versions(tables), unreadable=unreadable)


def _match_versions(tables: dict[str, deltalake.DeltaTable]) -> ReportSnapshot:
    """Return the tables at versions that belong together."""
    made = {name: _list_lineages(tables[name]) for name in DESCRIPTIONS if name in tables}
    # A table that no job has filled yet describes nothing.
    filled = [name for name in made if made[name] or tables[name].count()]
    if not filled:
        return ReportSnapshot(tables, None, mixed=False)
    state, versions = _find_common({name: made[name] for name in filled})
    for name, version in versions.items():
        tables[name] = _open_version(tables[name], version)
    if state is None:
        return ReportSnapshot(tables, None, mixed=True)
    return ReportSnapshot(tables, state, mixed=False, apart=_follow(tables, state))


def _follow(tables: dict[str, deltalake.DeltaTable], page: TableState) -> dict[str, TableStanding]:
    """Open the tables that follow the messages. Return those that are not of the page's version."""
    apart: dict[str, TableStanding] = {}
    for name, source in _FOLLOWING.items():
        if name in tables:
            with table_errors.translate_errors(name):
                tables[name], standing = _choose_version(tables, name, source, page)
            if standing is not None:
                apart[name] = standing
            elif source in apart and tables[name].count():
                apart[name] = apart[source]
    if REJECTS in tables and READINGS in tables:
        with table_errors.translate_errors(REJECTS):
            tables[REJECTS] = _match_rejects(tables[REJECTS], tables[READINGS])
    return apart


def _choose_version(
    tables: Mapping[str, deltalake.DeltaTable], name: str, source: str, page: TableState
) -> tuple[deltalake.DeltaTable, TableStanding | None]:
    """Return table `name`, derived from `source`, at the version to draw, and its state if that is not the page's."""
    newest = tables[name]
    of_page = [(version, basis) for version, basis in _list_lineages(newest) if basis.sources[TELEMETRY].id == page.id]
    for version, basis in of_page:
        of = basis.sources[TELEMETRY]
        table = _open_readable(newest, version) if of.version <= page.version else None
        if table is not None:
            upto = page.version if source == TELEMETRY else None
            lacks = of.version < page.version and (
                source not in tables or lineage.rows_changed(tables[source], basis.sources[source].version, upto)
            )
            return table, TableStanding(VersionDoubt.BEHIND, of) if lacks else None
    if of_page:
        return newest, TableStanding(VersionDoubt.AHEAD, of_page[0][1].sources[TELEMETRY])
    return newest, TableStanding(VersionDoubt.UNKNOWN) if newest.count() else None


def _match_rejects(rejects: deltalake.DeltaTable, readings: deltalake.DeltaTable) -> deltalake.DeltaTable:
    """Return the rejects that belong to `readings` by its commit, or else the newest ones."""
    made_of = dict(lineage.list_versions(readings)).get(readings.version())
    state = made_of.siblings.get(REJECTS) if made_of is not None else None
    if state is None or not lineage.rows_changed(rejects, state.version):
        return rejects
    return _open_readable(rejects, state.version) or rejects


def _open_table(place: LakePlace) -> deltalake.DeltaTable | None:
    try:
        with table_errors.translate_errors(place.name):
            return place.delta()
    except TableNotFoundError:
        return None


def _open_version(table: deltalake.DeltaTable, version: int) -> deltalake.DeltaTable:
    return table if version == table.version() else place_of_table(table).delta(version)


def _open_readable(table: deltalake.DeltaTable, version: int) -> deltalake.DeltaTable | None:
    """Return a table at a version; None if a vacuum has removed files of it."""
    older = _open_version(table, version)
    place = place_of_table(table)
    return older if older is table or all(place.size(file.path) is not None for file in list_files(older)) else None


def _list_lineages(table: deltalake.DeltaTable) -> _Made:
    with table_errors.translate_errors(place_of_table(table).name):
        found = lineage.list_versions(table)
    return [(at, basis) for at, basis in found if basis is not None and basis.telemetry is not None]


def _find_common(made: Mapping[str, _Made]) -> tuple[TableState | None, dict[str, int]]:
    """Return the newest state of `telemetry` that all tables derive from, and each table's version of it."""
    for _, basis in next(iter(made.values())):
        state = basis.sources[TELEMETRY]
        versions = _match_state(made, state)
        if versions is not None:
            return state, versions
    return None, {}


def _match_state(made: Mapping[str, _Made], state: TableState) -> dict[str, int] | None:
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
