"""Configurations of selectors: what gateways get because of their labels.

If several decisions concern a gateway, the latest one counts, whether it was made by name, for a selector or by a
roll-out. Each version records its source and time. The wanted version of a gateway

- from a selector stays while the selector has this configuration, chooses the gateway, and is the latest one that does.
  Otherwise the gateway gets the configuration of the latest selector that chooses it, or an empty one: its own
  resources apply again, and a replaced version by name does not return;
- by name stays until a configuration is set for a selector that chooses the gateway.

A forgotten gateway has no wanted version (`forgetting`); the next one of that name starts with none.

A gateway in an open roll-out belongs to that roll-out. Versions are made in the transaction that changes labels or a
selector's configuration. A running hub makes them after enrolments and completed roll-outs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.desired import read
from bridge.hidden import hides
from cloud.hub.labels import Changes, LabelError, Labels, LabelSelector, parse_selector
from cloud.hub.limits import SELECTORS_MAX
from cloud.hub.registry import labels, names
from cloud.hub.registry.configurations import (
    NEWEST,
    Sign,
    UnknownGateway,
    VersionRecord,
    WantedConfiguration,
    contents_in,
    in_order,
    make_versions,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import configurations, configured, rollout_members, rollouts, selectors
from cloud.hub.registry.tenant_state import require_tenant
from cloud.hub.rollout import GOING, MemberPhase

Documents = Mapping[str, list[dict[str, Any]]]
"""Resources by gateway."""


@hides("resources")
class SelectorRecord(NamedTuple):
    """Configuration of a selector."""

    tenant: str
    selector: str
    decided_at: int
    """Time of the decision, in the order of `in_order`."""
    made_by: str
    note: str
    resources: list[dict[str, Any]]
    confirm_s: float
    restart: bool
    rollout: str | None = None
    """Roll-out that set it."""


class VersionContext(NamedTuple):
    """Time, signature and check for new versions."""

    now_us: int
    sign: Sign
    judge: Callable[[Documents, Documents], None]
    """Called with the new resources and those of other gateways; raises if they are not allowed together."""


class PlannedGateway(NamedTuple):
    """Gateway that a selector chooses, and what it would get."""

    gateway: str
    connected: bool
    before: list[dict[str, Any]]
    """Resources of its wanted version."""
    why_not: str = ""
    """Reason why it would not get the configuration; empty if it would."""


class SelectorPlan(NamedTuple):
    """Result of setting the configuration of a selector."""

    changed: list[PlannedGateway]
    """Gateways with other resources now."""
    unchanged: list[PlannedGateway]
    """Gateways that have these resources already: they get a new version without a change."""
    excluded: list[PlannedGateway]
    """Gateways that would not get it now."""
    overlaps: Counter[str]
    """Gateways that other selectors with a configuration choose too, by selector."""


class _PlanRollback(Exception):
    """Rolls back the transaction of a plan."""

    def __init__(self, plan: SelectorPlan) -> None:
        super().__init__()
        self.plan = plan


class Selectors:
    """Labels and configurations of selectors in the registry, for the thread that opened the database. Every method is
    one transaction; raises `RegistryError`. Methods that make versions raise what `VersionContext.judge` raises; then
    nothing has changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def labels(self, tenant: str) -> dict[str, dict[str, str]]:
        """Return the labels of every known gateway of a tenant, by name."""

        def work(tx: sa.Connection) -> dict[str, dict[str, str]]:
            found = labels.labels_of(tx, tenant)
            return {name: found.get(name, {}) for name in names.known_gateways(tx, tenant)}

        return self._database.transaction(work)

    def labels_of(self, tenant: str, gateway: str) -> dict[str, str]:
        """Return the labels of a gateway; none for an unknown one."""
        return self._database.transaction(lambda tx: labels.labels_of(tx, tenant, (gateway,)).get(gateway, {}))

    def label(
        self,
        tenant: str,
        gateways: Collection[str],
        changes: Changes,
        making: VersionContext,
        check: Callable[[Labels], None] = lambda _labels: None,
    ) -> list[VersionRecord]:
        """Change the labels of gateways; return the versions made. `check` gets the labels of each before, and raises
        to prevent the change. Raises `UnknownGateway`, `LabelError`."""

        def work(tx: sa.Connection) -> list[VersionRecord]:
            for gateway in gateways:
                if not names.is_known(tx, tenant, gateway):
                    raise UnknownGateway(f"tenant {tenant} has no gateway {gateway}")
                check(labels.labels_of(tx, tenant, (gateway,)).get(gateway, {}))
                labels.put(tx, tenant, gateway, changes)
            return _apply_selectors(tx, tenant, gateways, making)

        return self._database.transaction(work)

    def all(self, tenant: str | None = None) -> list[SelectorRecord]:
        """Return the configurations of selectors of a tenant, or of all tenants, the latest first."""
        return self._database.transaction(lambda tx: _all(tx, tenant))

    def set_wanted(
        self,
        record: SelectorRecord,
        making: VersionContext,
        check: Callable[[int | None], None] = lambda _decided_at: None,
    ) -> list[VersionRecord]:
        """Set the configuration of a selector; return the versions made. `decided_at` of the record is ignored; `check`
        gets that of the configuration before, None without one, and raises to prevent the change. Raises
        `LabelError`."""

        def work(tx: sa.Connection) -> list[VersionRecord]:
            require_tenant(tx, record.tenant)
            check(_decided_at(tx, record.tenant, record.selector))
            require_room(tx, record.tenant, record.selector)
            store_selector(tx, record._replace(decided_at=in_order(tx, making.now_us)))
            return _apply_selectors(tx, record.tenant, None, making)

        return self._database.transaction(work)

    def plan(self, record: SelectorRecord, making: VersionContext) -> SelectorPlan:
        """Return what setting the configuration of a selector would do; nothing is changed. Raises `LabelError`."""

        def work(tx: sa.Connection) -> None:
            require_room(tx, record.tenant, record.selector)
            store_selector(tx, record._replace(decided_at=in_order(tx, making.now_us)))
            raise _PlanRollback(_plan(tx, record, making))

        try:
            self._database.transaction(work)
        except _PlanRollback as planned:
            return planned.plan
        raise AssertionError("a plan ends its transaction")

    def delete(
        self,
        tenant: str,
        text: str,
        making: VersionContext,
        check: Callable[[int | None], None] = lambda _decided_at: None,
    ) -> list[VersionRecord]:
        """Delete the configuration of a selector; return the versions made. `check`: as of `set_wanted`. Raises
        `UnknownGateway` if it has none."""

        def work(tx: sa.Connection) -> list[VersionRecord]:
            check(_decided_at(tx, tenant, text))
            mine = (selectors.c.tenant == tenant, selectors.c.selector == text)
            if not tx.execute(selectors.delete().where(*mine)).rowcount:
                raise UnknownGateway(f"selector {text} of tenant {tenant} has no configuration")
            return _apply_selectors(tx, tenant, None, making)

        return self._database.transaction(work)

    def find_outdated(self, tenant: str) -> list[str]:
        """Return the gateways of a tenant with an outdated wanted version."""
        return [each.gateway for each in self._database.transaction(lambda tx: _find_outdated(tx, tenant, None))]

    def apply_to(self, tenant: str, gateways: Collection[str], making: VersionContext) -> list[VersionRecord]:
        """Make new versions for those of these gateways that have an outdated one."""
        return self._database.transaction(lambda tx: _apply_selectors(tx, tenant, gateways, making))

    def tenants(self) -> list[str]:
        """Return the tenants with configurations of selectors, or with versions from one."""
        had = sa.select(configurations.c.tenant).join(configured, NEWEST).where(configurations.c.selector.is_not(None))
        query = sa.union(sa.select(selectors.c.tenant), had)
        return self._database.transaction(lambda tx: sorted(tx.execute(query).scalars()))


_SELECTOR = [selectors.c[name] for name in SelectorRecord._fields]


def _decided_at(tx: sa.Connection, tenant: str, text: str) -> int | None:
    mine = (selectors.c.tenant == tenant, selectors.c.selector == text)
    return tx.execute(sa.select(selectors.c.decided_at).where(*mine)).scalar()


def store_selector(tx: sa.Connection, record: SelectorRecord) -> None:
    """Store the configuration of a selector, unless a later one exists."""
    mine = (selectors.c.tenant == record.tenant, selectors.c.selector == record.selector)
    before = _decided_at(tx, record.tenant, record.selector)
    if before is not None and before > record.decided_at:
        return
    tx.execute(selectors.delete().where(*mine))
    resources = msgspec.json.encode(record.resources).decode()
    tx.execute(selectors.insert().values(**{**record._asdict(), "resources": resources}))


def require_room(tx: sa.Connection, tenant: str, text: str) -> None:
    """Raise `LabelError` if a new selector would exceed the tenant's limit."""
    others = (selectors.c.tenant == tenant, selectors.c.selector != text)
    if (tx.execute(sa.select(sa.func.count()).select_from(selectors).where(*others)).scalar() or 0) >= SELECTORS_MAX:
        raise LabelError(f"the limit of {SELECTORS_MAX} selectors with a configuration is reached: delete unused ones")


class _Choice(NamedTuple):
    """Parsed selector with its configuration."""

    selector: LabelSelector
    record: SelectorRecord


def _all(tx: sa.Connection, tenant: str | None) -> list[SelectorRecord]:
    query = sa.select(*_SELECTOR).order_by(selectors.c.decided_at.desc(), selectors.c.selector)
    if tenant is not None:
        query = query.where(selectors.c.tenant == tenant)
    rows = [SelectorRecord(*row) for row in tx.execute(query)]
    return [each._replace(resources=msgspec.json.decode(str(each.resources))) for each in rows]


def _apply_selectors(
    tx: sa.Connection, tenant: str, gateways: Collection[str] | None, making: VersionContext
) -> list[VersionRecord]:
    wanted = _find_outdated(tx, tenant, gateways)
    if not wanted:
        return []
    mine = {each.gateway: each.resources for each in wanted}
    making.judge(mine, contents_in(tx, tenant, mine.keys()))
    return make_versions(tx, wanted, making.now_us, making.sign)


def _find_outdated(tx: sa.Connection, tenant: str, gateways: Collection[str] | None) -> list[WantedConfiguration]:
    """Return the new wanted configurations of those of these gateways (None: all) that are out of date."""
    choices = [_Choice(parse_selector(each.selector), each) for each in _all(tx, tenant)]
    held = held_in(tx, tenant)
    known = names.known_gateways(tx, tenant).keys() if choices or held else set()
    candidates = set(known) if choices else {name for name in known if held.get(name, (None, 0))[0] is not None}
    if gateways is not None:
        candidates &= set(gateways)
    labelled = labels.labels_of(tx, tenant) if candidates else {}
    wanted: list[WantedConfiguration] = []
    going = _going(tx, tenant) if candidates else set()
    for name in sorted(candidates - going):
        best = _best(choices, labelled.get(name, {}))
        if not _stays(*held.get(name, (None, 0)), best):
            wanted.append(_nothing(tx, tenant, name) if best is None else _as_chosen(best, name))
    return wanted


def _plan(tx: sa.Connection, record: SelectorRecord, making: VersionContext) -> SelectorPlan:
    """Return the plan within a transaction that has stored the selector."""
    tenant, chosen = record.tenant, parse_selector(record.selector)
    labelled, known = labels.labels_of(tx, tenant), names.known_gateways(tx, tenant)
    matching = [name for name in known if chosen.matches(labelled.get(name, {}))]
    outdated = {each.gateway: each.resources for each in _find_outdated(tx, tenant, matching)}
    making.judge(outdated, contents_in(tx, tenant, outdated.keys()))
    held = _resources_in(tx, tenant)
    plan = SelectorPlan([], [], [], Counter())
    for name in matching:
        planned = PlannedGateway(name, known[name], held.get(name, []))
        if name not in outdated:
            why = "it is in an open roll-out; it gets the configuration after it"
            plan.excluded.append(planned._replace(why_not=why))
        else:
            (plan.unchanged if planned.before == record.resources else plan.changed).append(planned)
    for other in _all(tx, tenant):
        if other.selector != record.selector:
            selector = parse_selector(other.selector)
            count = sum(selector.matches(labelled.get(name, {})) for name in matching)
            plan.overlaps.update({other.selector: count} if count else {})
    return plan


def _resources_in(tx: sa.Connection, tenant: str) -> dict[str, list[dict[str, Any]]]:
    """Return the resources of the wanted version of each gateway of a tenant."""
    columns = (configurations.c.gateway, configurations.c.content)
    query = sa.select(*columns).join(configured, NEWEST).where(configured.c.tenant == tenant)
    decoded: dict[str, list[dict[str, Any]]] = {}
    found = {}
    for gateway, content in tx.execute(query):
        text = bytes(msgspec.json.decode(content, type=_StoredResources).resources).decode()
        found[gateway] = decoded[text] = decoded.get(text) or msgspec.json.decode(text)
    return found


class _StoredResources(msgspec.Struct):
    resources: msgspec.Raw


def _best(choices: Iterable[_Choice], found: Labels) -> SelectorRecord | None:
    return next((each.record for each in choices if each.selector.matches(found)), None)


def _stays(chosen_by: str | None, decided_at: int, best: SelectorRecord | None) -> bool:
    """Return whether the wanted version of a gateway is up to date."""
    if chosen_by is not None:
        return best is not None and (chosen_by, decided_at) == (best.selector, best.decided_at)
    return best is None or decided_at >= best.decided_at


def held_in(tx: sa.Connection, tenant: str) -> dict[str, tuple[str | None, int]]:
    """Return (selector, time) of the wanted version of each gateway."""
    columns = (configurations.c.gateway, configurations.c.selector, configurations.c.decided_at)
    query = sa.select(*columns).join(configured, NEWEST).where(configured.c.tenant == tenant)
    return {gateway: (chosen_by, decided_at or 0) for gateway, chosen_by, decided_at in tx.execute(query)}


def _going(tx: sa.Connection, tenant: str) -> set[str]:
    """Return the gateways of open roll-outs."""
    query = (
        sa.select(rollout_members.c.gateway)
        .join(rollouts, rollout_members.c.rollout == rollouts.c.id)
        .where(rollouts.c.tenant == tenant, rollouts.c.state.in_([each.value for each in GOING]))
        .where(rollout_members.c.phase != MemberPhase.FORGOTTEN.value)
    )
    return set(tx.execute(query).scalars())


def _as_chosen(record: SelectorRecord, gateway: str) -> WantedConfiguration:
    return WantedConfiguration(
        tenant=record.tenant,
        gateway=gateway,
        resources=record.resources,
        confirm_s=record.confirm_s,
        restart=record.restart,
        made_by=record.made_by,
        note=record.note,
        selector=record.selector,
        decided_at=record.decided_at,
    )


def _nothing(tx: sa.Connection, tenant: str, gateway: str) -> WantedConfiguration:
    """Return an empty configuration for a gateway without a selector that chooses it. It may restart for that if its
    last version allowed it."""
    mine = (configured.c.tenant == tenant, configured.c.gateway == gateway)
    query = sa.select(configurations.c.content, configurations.c.selector).join(configured, NEWEST).where(*mine)
    row = tx.execute(query).one()
    before, note = read(row.content), f"selector {row.selector} does not choose it any more"
    return WantedConfiguration(tenant, gateway, [], before.confirm_s, before.restart, "", note, decided_at=0)
