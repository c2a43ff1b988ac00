"""Pages of gateways in an order of the fleet, from the registry.

An order is a row of sections: all gateways of the first come before those of the second. Each section has the
conditions of its gateways, and the columns that order them. A page begins behind a place (section, and values of
these columns), so it stays right while gateways come and go, also the one at that place.

The order by danger and that by name have indexes. The others read all gateways of the query. A search for a rare
version or problem reads the gateways that have it (`cloud.hub.registry.gateway_traits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.fleet_condition import FleetCondition
from cloud.hub.groups import Key
from cloud.hub.labels import Labels, LabelSelector
from cloud.hub.registry.directory import RECORD, GatewayRecord
from cloud.hub.registry.gateway_pages import holds
from cloud.hub.registry.gateway_traits import ANY_TRAITS, GatewayTraits, count_gateways, only, rare_gateways
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.schema import gateways

LABELS_AT_ONCE: Final = 500
"""Gateways in one statement that reads their labels."""
SORTS: Final = ("danger", "name", "waiting", "room", "seen")
"""Orders of a list."""
INDEXED_SORTS: Final = ("danger", "name")
"""Orders in which a page reads its rows only."""
BY_KEY: Final = "key"
"""Order by tenant and name, for a file of all gateways: none of them changes its place."""
COUNTED_MAX: Final = 10_000
"""Gateways that are counted of a search; further ones are not, because each is read for that."""

PlaceValue = int | str


def _can_be_stored(value: PlaceValue) -> bool:
    """Return whether a database has such values."""
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return "\0" not in value and value.encode(errors="replace").decode() == value


class WrongPlace(ValueError):
    """The place is of another order."""


class FleetPlace(NamedTuple):
    """Place of a gateway in an order."""

    section: int
    values: tuple[PlaceValue, ...]


class NeverConnected(NamedTuple):
    """Gateway that has enrolled and never connected."""

    tenant: str
    name: str
    enrolled_us: int
    labels: Labels


class ListedGateway(NamedTuple):
    """Gateway of a page."""

    place: FleetPlace
    found: GatewayRecord | NeverConnected
    labels: Labels


class FleetFilter(NamedTuple):
    """Gateways to list, and their order."""

    tenant: str | None
    """None: of all tenants."""
    behind_us: int
    """Arrival of the oldest waiting message before which a connected gateway is behind."""
    part: str = ""
    """Part of the name, case ignored."""
    state: str = ""
    """A condition; ``danger``: all but those that are well; empty: all."""
    selector: LabelSelector | None = None
    sort: str = "danger"
    down: bool = False
    connected: bool | None = None
    """State of the connection; None: any."""
    traits: GatewayTraits = ANY_TRAITS

    @property
    def searches(self) -> bool:
        """Return whether only a search can count them."""
        return bool(self.part) or self.selector is not None or self.traits.searches

    @property
    def is_quick(self) -> bool:
        """Return whether a page reads its rows only."""
        return self.sort in INDEXED_SORTS and not self.searches

    def wants(self, condition: FleetCondition) -> bool:
        """Return whether gateways with this condition are listed."""
        away = condition in (FleetCondition.OFFLINE, FleetCondition.NEVER)
        if self.connected is not None and self.connected is away:
            return False
        if self.traits.seen_before is not None and condition is not FleetCondition.OFFLINE:
            return False
        well = condition is FleetCondition.WELL
        return not self.state or self.state == condition or (self.state == "danger" and not well)

    def chooses(self, gateway: NeverConnected) -> bool:
        """Return whether a gateway that has never connected is listed."""
        named = self.tenant in (None, gateway.tenant) and self.part.casefold() in gateway.name.casefold()
        labelled = self.selector is None or self.selector.matches(gateway.labels)
        return named and labelled and self.wants(FleetCondition.NEVER) and not self.traits.searches


class FleetSection(NamedTuple):
    """Part of an order."""

    conditions: Sequence[sa.ColumnElement[bool]]
    columns: Sequence[sa.ColumnElement[Any]]
    never: bool = False
    """The part of the gateways that have never connected, which have no row."""
    least: int | None = None
    """Lowest value of the first column, one more condition; None without."""
    most: int | None = None
    """Value above all of the first column, one more condition; None without."""

    def fits(self, values: Sequence[PlaceValue]) -> bool:
        """Return whether these can be values of its columns."""
        kinds = [column.type.python_type for column in self.columns]
        return [type(value) for value in values] == kinds and all(map(_can_be_stored, values))


def conditions_of(condition: FleetCondition, behind_us: int) -> Sequence[sa.ColumnElement[bool]]:
    """Return the terms that make the condition of a gateway with a row."""
    connected, accepts = gateways.c.connected == sa.true(), gateways.c.refusing == sa.false()
    return {
        FleetCondition.REFUSING: (connected, gateways.c.refusing == sa.true()),
        FleetCondition.OFFLINE: (gateways.c.connected == sa.false(),),
        FleetCondition.BEHIND: (connected, accepts, gateways.c.oldest_at < behind_us),
        FleetCondition.WELL: (connected, accepts, gateways.c.oldest_at >= behind_us),
        FleetCondition.NEVER: (sa.false(),),
    }[condition]


def sections_of(wanted: FleetFilter) -> list[FleetSection]:
    """Return the sections of an order, the first one first."""
    found = list(_danger_sections(wanted) if wanted.sort == "danger" else _other_sections(wanted))
    return found[::-1] if wanted.down else found


def _danger_sections(wanted: FleetFilter) -> Iterator[FleetSection]:
    for condition in FleetCondition:
        if wanted.wants(condition):
            time = gateways.c.full_at if condition is FleetCondition.OFFLINE else gateways.c.oldest_at
            conditions = conditions_of(condition, wanted.behind_us)
            if condition is FleetCondition.WELL:
                yield _section(wanted, conditions[:-1], time)._replace(least=wanted.behind_us)
            elif condition is FleetCondition.BEHIND:
                yield _section(wanted, conditions[:-1], time)._replace(most=wanted.behind_us)
            else:
                yield _section(wanted, conditions, time, never=condition is FleetCondition.NEVER)


def _other_sections(wanted: FleetFilter) -> Iterator[FleetSection]:
    never = _section(wanted, (sa.false(),), never=True)
    if wanted.state == FleetCondition.NEVER:
        yield never
        return
    states = _states(wanted)
    if wanted.sort == "name":
        yield FleetSection([*states, *_chosen(wanted)], (gateways.c.name, gateways.c.tenant))
    elif wanted.sort == BY_KEY:
        yield _section(wanted, states)
    elif wanted.sort == "seen":
        for there in (sa.true(), sa.false()):
            yield _section(wanted, (*states, gateways.c.connected == there), -gateways.c.last_seen)
    else:
        yield _section(wanted, states, gateways.c.waiting if wanted.sort == "waiting" else gateways.c.full_at)
    if wanted.wants(FleetCondition.NEVER):
        yield never


def _section(
    wanted: FleetFilter,
    conditions: Sequence[sa.ColumnElement[bool]],
    *first: sa.ColumnElement[int],
    never: bool = False,
) -> FleetSection:
    names = gateways.c.tenant, gateways.c.name
    if never:
        return FleetSection(conditions, names, never)
    return FleetSection([*conditions, *_chosen(wanted)], (*first, *names))


def _states(wanted: FleetFilter) -> list[sa.ColumnElement[bool]]:
    """Return the term of the conditions that are listed; none if all are."""
    if all(map(wanted.wants, FleetCondition)):
        return []
    each = (_all(conditions_of(one, wanted.behind_us)) for one in FleetCondition if wanted.wants(one))
    return [sa.or_(sa.false(), *each)]


def _all(conditions: Sequence[sa.ColumnElement[bool]]) -> sa.ColumnElement[bool]:
    return sa.and_(sa.true(), *conditions)


def _chosen(wanted: FleetFilter) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the terms of scope and search."""
    yield gateways.c.forgotten_at.is_(None)
    if wanted.tenant is not None:
        yield gateways.c.tenant == wanted.tenant
    if wanted.part:
        yield gateways.c.name.icontains(wanted.part, autoescape=True)
    for requirement in wanted.selector.requirements if wanted.selector is not None else ():
        yield holds(requirement, gateways.c.tenant, gateways.c.name)
    yield from wanted.traits.terms()


def read_page(
    tx: sa.Connection, wanted: FleetFilter, never: Sequence[NeverConnected], after: FleetPlace | None, limit: int
) -> list[ListedGateway]:
    """Return gateways behind a place. `never`: those that have never connected, as far as they are known.

    Raises `WrongPlace` for a place of another order.
    """
    sections = sections_of(wanted)
    first = after.section if after is not None else 0
    if after is not None and not (0 <= first < len(sections) and sections[first].fits(after.values)):
        raise WrongPlace
    rows: list[tuple[FleetPlace, GatewayRecord | NeverConnected]] = []
    rare = rare_gateways(tx, wanted.traits, wanted.tenant)
    for number in range(first, len(sections)):
        section, values = sections[number], after.values if after is not None and number == first else None
        more = limit - len(rows)
        if section.never:
            rows += _page_of_never(tx, wanted, never, number, values, more)
        else:
            rows += _page_of_section(tx, wanted, section, number, values, more, rare)
        if len(rows) >= limit:
            break
    labels = labels_of_keys(tx, [(found.tenant, found.name) for _, found in rows])
    return [ListedGateway(place, found, labels.get((found.tenant, found.name), {})) for place, found in rows]


def _page_of_never(
    tx: sa.Connection,
    wanted: FleetFilter,
    never: Sequence[NeverConnected],
    number: int,
    after: Sequence[PlaceValue] | None,
    limit: int,
) -> list[tuple[FleetPlace, GatewayRecord | NeverConnected]]:
    chosen = sorted((one for one in never if wanted.chooses(one)), key=lambda one: one[:2], reverse=wanted.down)
    if after is not None:
        place = tuple(after)
        chosen = [one for one in chosen if (one[:2] < place if wanted.down else one[:2] > place)]
    rows: list[tuple[FleetPlace, GatewayRecord | NeverConnected]] = []
    for start in range(0, len(chosen), limit):
        some = chosen[start : start + limit]
        gone = with_rows(tx, [one[:2] for one in some])  # it has connected since, at another hub
        rows += [(FleetPlace(number, one[:2]), one) for one in some if one[:2] not in gone]
        if len(rows) >= limit:
            break
    return rows[:limit]


def _page_of_section(
    tx: sa.Connection,
    wanted: FleetFilter,
    section: FleetSection,
    number: int,
    after: Sequence[PlaceValue] | None,
    limit: int,
    rare: sa.Select[tuple[str, str]] | None,
) -> list[tuple[FleetPlace, GatewayRecord | NeverConnected]]:
    columns = section.columns
    query = sa.select(*RECORD, *(column.label(f"place_{index}") for index, column in enumerate(columns)))
    query = query.where(*section.conditions)
    query = query.order_by(*(column.desc() if wanted.down else column for column in columns))
    query = query.where(*_range(section, after, down=wanted.down))
    if after is not None:
        query = query.where(_behind(wanted, columns, after))
    size = len(RECORD)
    rows = tx.execute(only(query, rare).limit(limit)).all()
    return [(FleetPlace(number, tuple(row[size:])), GatewayRecord(*row[:size])) for row in rows]


def _range(section: FleetSection, after: Sequence[PlaceValue] | None, *, down: bool) -> list[sa.ColumnElement[bool]]:
    """Return the range of the first column of a section behind a place.

    Of two bounds on one side SQLite uses one, and of a bound and a place the bound. So a bound that the place implies
    is left out, and a range with another end has the time of the place as its begin.
    """
    first, least, most = section.columns[0], section.least, section.most
    time = None if after is None else after[0]
    found: list[sa.ColumnElement[bool]] = []
    if least is not None and (not isinstance(time, int) or down or time < least):
        found.append(first >= least)
    if most is not None and (not isinstance(time, int) or not down or time >= most):
        found.append(first < most)
    if most is not None and time is not None and not down:
        found.append(first >= time)
    return found


def _behind(
    wanted: FleetFilter, columns: Sequence[sa.ColumnElement[Any]], after: Sequence[PlaceValue]
) -> sa.ColumnElement[bool]:
    """Return the condition of rows behind a place. The tenant of a list of one tenant is left out, as its indexes do;
    it excludes nothing unless the place is from the list of all."""
    pairs = list(zip(columns, after, strict=True))
    if wanted.tenant is not None:
        pairs = [each for each in pairs if each[0] is not gateways.c.tenant or each[1] != wanted.tenant]
    place, start = (sa.tuple_(*each) for each in ((one for one, _ in pairs), (sa.literal(one) for _, one in pairs)))
    return place < start if wanted.down else place > start


def count_search(tx: sa.Connection, wanted: FleetFilter) -> int:
    """Return the number of gateways with a row that a filter chooses; `COUNTED_MAX` at most."""
    states, of_traits = _states(wanted), wanted.traits
    if not states and not wanted.part and wanted.selector is None:
        count = count_gateways(tx, of_traits, wanted.tenant, COUNTED_MAX)
        if count is not None:
            return count
    some = sa.select(sa.literal(1)).select_from(gateways).where(*states, *_chosen(wanted))
    some = only(some, rare_gateways(tx, of_traits, wanted.tenant)).limit(COUNTED_MAX)
    return tx.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one()


def find_record(tx: sa.Connection, key: Key) -> GatewayRecord | None:
    """Return a known gateway that has connected; None for others."""
    mine = (gateways.c.tenant == key[0], gateways.c.name == key[1], gateways.c.forgotten_at.is_(None))
    row = tx.execute(sa.select(*RECORD).where(*mine)).first()
    return None if row is None else GatewayRecord(*row)


def with_rows(tx: sa.Connection, keys: Sequence[Key]) -> set[Key]:
    """Return which of these gateways have a row: they have connected, or were forgotten."""
    found: set[Key] = set()
    for tenant, names in _by_tenant(keys):
        query = sa.select(gateways.c.name).where(gateways.c.tenant == tenant, gateways.c.name.in_(names))
        found.update((tenant, str(name)) for name in tx.execute(query).scalars())
    return found


def labels_of_keys(tx: sa.Connection, keys: Sequence[Key]) -> Mapping[Key, Labels]:
    """Return the labels of these gateways; those without labels are left out."""
    found: dict[Key, Labels] = {}
    for tenant, names in _by_tenant(keys):
        found.update(((tenant, name), mine) for name, mine in labels_of(tx, tenant, names).items())
    return found


def _by_tenant(keys: Sequence[Key]) -> Iterator[tuple[str, list[str]]]:
    """Yield tenants with some names of each, as many as one statement takes."""
    names: dict[str, list[str]] = {}
    for tenant, name in keys:
        names.setdefault(tenant, []).append(name)
    for tenant, mine in names.items():
        for start in range(0, len(mine), LABELS_AT_ONCE):
            yield tenant, mine[start : start + LABELS_AT_ONCE]
