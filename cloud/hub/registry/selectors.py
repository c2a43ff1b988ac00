"""What gateways are to have because of their labels: a configuration for each selector that somebody gave one.

One rule where more than one thing was said of a gateway: *what was said last counts*, be it for the gateway by name,
for a selector, or by a roll-out. Each version knows what it was said for, and when. What is wanted of a gateway

- that was said for a selector stays while the selector has this configuration, chooses the gateway, and is the one said
  last of those that do. Else the gateway gets what was said last of those that choose it; where none does, nothing: all
  is its own again; what a selector's has replaced does not come back.
- that was said by name stays until something is said for a selector that chooses the gateway.

Nothing is wanted of a gateway that was forgotten (`forgetting`): who has its name next begins with nothing.

A gateway of a roll-out that is not over is the roll-out's. Versions are made in the transaction that changes labels or
what a selector has, and, for who has enrolled and whose roll-out is over, by a hub that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.desired import read
from bridge.hidden import hides
from cloud.hub.labels import Changes, LabelError, Labels, Selector, selector
from cloud.hub.limits import SELECTORS_MAX
from cloud.hub.registry import labels, names
from cloud.hub.registry.configurations import (
    NEWEST,
    Sign,
    UnknownGateway,
    VersionRecord,
    Wanted,
    contents_in,
    in_order,
    make_versions,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import configurations, configured, rollout_members, rollouts, selectors
from cloud.hub.rollout import GOING, Phase

Documents = Mapping[str, list[dict[str, Any]]]
"""Resources, by gateway."""


@hides("resources")
class SelectorRecord(NamedTuple):
    """What the gateways a selector chooses are to have."""

    tenant: str
    selector: str
    decided_at: int
    """In the order of `in_order`."""
    made_by: str
    note: str
    resources: list[dict[str, Any]]
    confirm_s: float
    restart: bool
    rollout: str | None = None
    """The one that brought it."""


class Making(NamedTuple):
    """How versions are made."""

    now_us: int
    sign: Sign
    judge: Callable[[Documents, Documents], None]
    """Raises where what gateways are to have, beside what others have, must not be."""


class Selectors:
    """For the thread that opened the database. Every method is one transaction; raises `RegistryError`. What makes
    versions raises what `Making.judge` does; then nothing has changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def labels(self, tenant: str) -> dict[str, dict[str, str]]:
        """Of every gateway of a tenant that is known, by name."""

        def work(tx: sa.Connection) -> dict[str, dict[str, str]]:
            found = labels.labels_of(tx, tenant)
            return {name: found.get(name, {}) for name in names.known(tx, tenant)}

        return self._database.transaction(work)

    def label(self, tenant: str, gateways: Collection[str], changes: Changes, making: Making) -> list[VersionRecord]:
        """Change the labels of gateways; returns what they are to have now, of those that are to have something else.
        Raises `UnknownGateway`, `LabelError`."""

        def work(tx: sa.Connection) -> list[VersionRecord]:
            for gateway in gateways:
                if not names.is_known(tx, tenant, gateway):
                    raise UnknownGateway(f"there is no gateway {gateway} of tenant {tenant}")
                labels.put(tx, tenant, gateway, changes)
            return _fall(tx, tenant, gateways, making)

        return self._database.transaction(work)

    def all(self, tenant: str | None = None) -> list[SelectorRecord]:
        """Of a tenant, or of all; said last first."""
        return self._database.transaction(lambda tx: _all(tx, tenant))

    def want(self, record: SelectorRecord, making: Making) -> list[VersionRecord]:
        """Say what the gateways of a selector are to have, from now on and in the place of what was said for it before;
        returns the versions made. `decided_at` of the record counts for nothing. Raises `LabelError`."""

        def work(tx: sa.Connection) -> list[VersionRecord]:
            require_room(tx, record.tenant, record.selector)
            keep(tx, record._replace(decided_at=in_order(tx, making.now_us)))
            return _fall(tx, record.tenant, None, making)

        return self._database.transaction(work)

    def delete(self, tenant: str, text: str, making: Making) -> list[VersionRecord]:
        """Nothing is said for a selector any more; returns the versions made. Raises `UnknownGateway` where nothing
        was."""

        def work(tx: sa.Connection) -> list[VersionRecord]:
            mine = (selectors.c.tenant == tenant, selectors.c.selector == text)
            if not tx.execute(selectors.delete().where(*mine)).rowcount:
                raise UnknownGateway(f"selector {text} of tenant {tenant} has no configuration")
            return _fall(tx, tenant, None, making)

        return self._database.transaction(work)

    def falling(self, tenant: str) -> list[str]:
        """Gateways of a tenant that are to have something else than is wanted of them."""
        return [each.gateway for each in self._database.transaction(lambda tx: _falling(tx, tenant, None))]

    def fall(self, tenant: str, gateways: Collection[str], making: Making) -> list[VersionRecord]:
        """Make the versions of those of these gateways that are to have something else than is wanted of them."""
        return self._database.transaction(lambda tx: _fall(tx, tenant, gateways, making))

    def tenants(self) -> list[str]:
        """Those where a selector has a configuration, or a gateway has what one had."""
        had = sa.select(configurations.c.tenant).join(configured, NEWEST).where(configurations.c.selector.is_not(None))
        query = sa.union(sa.select(selectors.c.tenant), had)
        return self._database.transaction(lambda tx: sorted(tx.execute(query).scalars()))


_SELECTOR = [selectors.c[name] for name in SelectorRecord._fields]


def keep(tx: sa.Connection, record: SelectorRecord) -> None:
    """Keep what a selector has, unless something was said for it later."""
    mine = (selectors.c.tenant == record.tenant, selectors.c.selector == record.selector)
    before = tx.execute(sa.select(selectors.c.decided_at).where(*mine)).scalar()
    if before is not None and before > record.decided_at:
        return
    tx.execute(selectors.delete().where(*mine))
    resources = msgspec.json.encode(record.resources).decode()
    tx.execute(selectors.insert().values(**{**record._asdict(), "resources": resources}))


def require_room(tx: sa.Connection, tenant: str, text: str) -> None:
    """Raise `LabelError` where a tenant has as many selectors as it may, and this is not one of them."""
    others = (selectors.c.tenant == tenant, selectors.c.selector != text)
    if (tx.execute(sa.select(sa.func.count()).select_from(selectors).where(*others)).scalar() or 0) >= SELECTORS_MAX:
        raise LabelError(f"{SELECTORS_MAX} selectors of a tenant have a configuration at most: delete those of no use")


class _Choice(NamedTuple):
    """A selector's configuration, ready to be held against labels."""

    selector: Selector
    record: SelectorRecord


def _all(tx: sa.Connection, tenant: str | None) -> list[SelectorRecord]:
    query = sa.select(*_SELECTOR).order_by(selectors.c.decided_at.desc(), selectors.c.selector)
    if tenant is not None:
        query = query.where(selectors.c.tenant == tenant)
    rows = [SelectorRecord(*row) for row in tx.execute(query)]
    return [each._replace(resources=msgspec.json.decode(str(each.resources))) for each in rows]


def _fall(tx: sa.Connection, tenant: str, gateways: Collection[str] | None, making: Making) -> list[VersionRecord]:
    wanted = _falling(tx, tenant, gateways)
    if not wanted:
        return []
    mine = {each.gateway: each.resources for each in wanted}
    making.judge(mine, contents_in(tx, tenant, mine.keys()))
    return make_versions(tx, wanted, making.now_us, making.sign)


def _falling(tx: sa.Connection, tenant: str, gateways: Collection[str] | None) -> list[Wanted]:
    """What is to be wanted of those of these gateways (None: of all of the tenant) that are to have something else."""
    choices = [_Choice(selector(each.selector), each) for each in _all(tx, tenant)]
    held = held_in(tx, tenant)
    known = names.known(tx, tenant).keys() if choices or held else set()
    candidates = set(known) if choices else {name for name in known if held.get(name, (None, 0))[0] is not None}
    if gateways is not None:
        candidates &= set(gateways)
    labelled = labels.labels_of(tx, tenant) if candidates else {}
    wanted: list[Wanted] = []
    going = _going(tx, tenant) if candidates else set()
    for name in sorted(candidates - going):
        best = _best(choices, labelled.get(name, {}))
        if not _stays(*held.get(name, (None, 0)), best):
            wanted.append(_nothing(tx, tenant, name) if best is None else _as_chosen(best, name))
    return wanted


def _best(choices: Iterable[_Choice], found: Labels) -> SelectorRecord | None:
    return next((each.record for each in choices if each.selector.matches(found)), None)


def _stays(said_for: str | None, decided_at: int, best: SelectorRecord | None) -> bool:
    """Whether what is wanted of a gateway is what is to be."""
    if said_for is not None:
        return best is not None and (said_for, decided_at) == (best.selector, best.decided_at)
    return best is None or decided_at >= best.decided_at


def held_in(tx: sa.Connection, tenant: str) -> dict[str, tuple[str | None, int]]:
    """(the selector, when it was said) of what is wanted of gateways."""
    columns = (configurations.c.gateway, configurations.c.selector, configurations.c.decided_at)
    query = sa.select(*columns).join(configured, NEWEST).where(configured.c.tenant == tenant)
    return {gateway: (said_for, decided_at or 0) for gateway, said_for, decided_at in tx.execute(query)}


def _going(tx: sa.Connection, tenant: str) -> set[str]:
    """Gateways of roll-outs that are not over."""
    query = (
        sa.select(rollout_members.c.gateway)
        .join(rollouts, rollout_members.c.rollout == rollouts.c.id)
        .where(rollouts.c.tenant == tenant, rollouts.c.state.in_([each.value for each in GOING]))
        .where(rollout_members.c.phase != Phase.FORGOTTEN.value)
    )
    return set(tx.execute(query).scalars())


def _as_chosen(record: SelectorRecord, gateway: str) -> Wanted:
    return Wanted(
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


def _nothing(tx: sa.Connection, tenant: str, gateway: str) -> Wanted:
    """No selector chooses it any more: all is its own again. It may restart for that where it might before."""
    here = (configured.c.tenant == tenant, configured.c.gateway == gateway)
    query = sa.select(configurations.c.content, configurations.c.selector).join(configured, NEWEST).where(*here)
    row = tx.execute(query).one()
    before, note = read(row.content), f"{row.selector} does not choose it any more"
    return Wanted(tenant, gateway, [], before.confirm_s, before.restart, "", note, decided_at=0)
