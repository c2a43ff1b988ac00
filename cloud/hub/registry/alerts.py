"""Alerts in the registry: open and resolved ones, mutes, settings of rules, receivers, and notifications to deliver.

For the hub, in a thread of its own, and for commands of the CLI next to it. Times are UTC microseconds since 1970. The
hubs of one lake share the alerts about gateways and roll-outs; an alert about a hub belongs to it alone. The changes of
an evaluation are written only if no other hub has written some since they were made, and a notification is stored in
the transaction that changes its alert. So neither a second hub nor a restart loses or repeats one
(``cloud/decisions/0014-acts-happen-once.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event
from cloud.hub.registry.hubs import HubState
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import (
    PARAMETERS_MAX,
    alert_evaluations,
    alert_gateways,
    alert_rules,
    alerts,
    deliveries,
    hubs,
    mutes,
    receivers,
    writers,
)
from cloud.hub.registry.tenant_state import require_tenant

FIRING: Final = "firing"
"""Event of a notification: the alert fires."""
STOPPED_HUB_US: Final = 600_000_000
"""Time after which alerts about a stopped hub end, ten minutes: a hub that is updated comes back within that."""
RESOLVED: Final = "resolved"
"""Event of a notification: the alert is over."""


class AlertRecord(NamedTuple):
    """Alert: one cause, of one or many gateways, or of the hub."""

    id: str
    hub: str
    """Writer id of the hub that evaluates it."""
    rule: str
    severity: str
    tenant: str
    """Empty for an alert about the hub."""
    selector: str
    """Label that its gateways have in common; empty without."""
    gateway: str
    """Its only gateway; empty for several, and for the hub."""
    detail: str
    """Part of the hub that it is about, such as a state of commands."""
    what: str
    next_step: str
    since: int
    """Begin of the condition."""
    fired_at: int
    gateways: int
    """Gateways now, or at the end."""
    muted_until: int | None = None
    acknowledged_at: int | None = None
    acknowledged_by: str = ""
    note: str = ""
    notified_at: int | None = None
    """Time at which receivers were notified that it fires; None: not yet."""
    resolved_at: int | None = None
    outcome: str = ""

    @property
    def state(self) -> str:
        """State in words: firing, acknowledged, muted or resolved."""
        if self.resolved_at is not None:
            return RESOLVED
        if self.acknowledged_at is not None:
            return "acknowledged"
        return "muted" if self.muted_until is not None else FIRING


class AlertMember(NamedTuple):
    """Gateway of an alert."""

    gateway: str
    since: int
    over_at: int | None = None


class MuteRecord(NamedTuple):
    """Mute: alerts that match are not notified until a time. Empty fields match everything."""

    id: str
    tenant: str
    rule: str
    selector: str
    gateway: str
    until: int
    reason: str
    made_at: int
    made_by: str


class RuleSettings(NamedTuple):
    """Settings of a rule by the operator; None: as the rule has it."""

    rule: str
    enabled: bool
    for_s: int | None
    severity: str | None
    selector: str | None
    changed_at: int
    changed_by: str


@hides("secret", "settings")
class ReceiverRecord(NamedTuple):
    """Receiver of notifications."""

    name: str
    kind: str
    severity: str
    """Least severity that it gets."""
    settings: str
    """Document of its kind, JSON."""
    secret: str
    """Key of signatures, or password."""
    changed_at: int
    changed_by: str
    delivered_at: int | None = None
    failed_at: int | None = None
    failure: str = ""


class DeliveryRecord(NamedTuple):
    """Notification for one receiver."""

    number: int
    hub: str
    receiver: str
    alert: str
    event: str
    made_at: int
    attempts: int
    due_at: int


class AlertFilter(NamedTuple):
    """Filter of a list of alerts; None and empty values match everything."""

    tenants: Collection[str] | None = None
    """Only these; the empty name stands for the hub."""
    state: str = ""
    """A state; ``open``: all but resolved ones."""
    severity: str = ""
    text: str = ""
    """Part of rule, gateway, selector or what is wrong, case ignored."""
    after: tuple[int, str] | None = None
    """Time and id of the last alert of the page before."""


class AlertsNow(NamedTuple):
    """State of the registry before an evaluation."""

    open: Sequence[AlertRecord]
    mutes: Sequence[MuteRecord]
    """Mutes in effect."""
    settings: Sequence[RuleSettings]
    receivers: Sequence[ReceiverRecord]
    number: int
    """Number of evaluations of the lake's hubs that changed something."""


class AlertsMoved(Exception):
    """Another hub has changed alerts since they were read: evaluate again."""


class AlertChanges(NamedTuple):
    """Changes of one evaluation, written together."""

    opened: Sequence[AlertRecord] = ()
    changed: Sequence[AlertRecord] = ()
    joined: Sequence[tuple[str, AlertMember]] = ()
    """Alert and gateway."""
    left: Sequence[tuple[str, AlertMember]] = ()
    notify: Sequence[tuple[AlertRecord, str, Collection[str]]] = ()
    """Alert, event, and names of receivers."""

    def __bool__(self) -> bool:
        return any(self)


NamesFor = Callable[[Sequence[ReceiverRecord], AlertRecord], Collection[str]]
"""Chooses the receivers that are notified of an alert, by name."""

_ALERT: Final = [alerts.c[name] for name in AlertRecord._fields]
_MUTE: Final = [mutes.c[name] for name in MuteRecord._fields]
_RULE: Final = [alert_rules.c[name] for name in RuleSettings._fields]
_RECEIVER: Final = [receivers.c[name] for name in ReceiverRecord._fields]
_DELIVERY: Final = [deliveries.c[name] for name in DeliveryRecord._fields]
_MUTABLE: Final = ("severity", "what", "gateways", "muted_until", "notified_at", "resolved_at", "outcome")
"""Columns that an evaluation changes; acknowledgements belong to people."""


class Alerts:
    """Alerts in the registry, for the thread that creates it. Every method is one transaction, durable on return;
    raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one."""
        self._database = open_registry(url).database

    def close(self) -> None:
        self._database.close()

    # --- evaluation -------------------------------------------------------------------------------------------------

    def now(self, hub: str, now_us: int, shared: Collection[str] = ()) -> AlertsNow:
        """Return the open alerts of a hub, those that it shares too, and everything that decides about them. `shared`:
        rules about no gateway that the hubs share."""

        def work(tx: sa.Connection) -> AlertsNow:
            still = sa.select(*_ALERT).where(alerts.c.resolved_at.is_(None), _is_owned(hub, shared))
            silenced = sa.select(*_MUTE).where(mutes.c.until > now_us).order_by(mutes.c.until)
            return AlertsNow(
                [AlertRecord(*row) for row in tx.execute(still.order_by(alerts.c.fired_at, alerts.c.id))],
                [MuteRecord(*row) for row in tx.execute(silenced)],
                [RuleSettings(*row) for row in tx.execute(sa.select(*_RULE))],
                [ReceiverRecord(*row) for row in tx.execute(sa.select(*_RECEIVER).order_by(receivers.c.name))],
                _evaluations(tx, _lake_of(tx, hub)),
            )

        return self._database.transaction(work)

    def members(self, identifiers: Collection[str]) -> dict[str, list[AlertMember]]:
        """Return the present gateways of alerts."""

        def work(tx: sa.Connection) -> dict[str, list[AlertMember]]:
            found: dict[str, list[AlertMember]] = {each: [] for each in identifiers}
            names = sorted(identifiers)
            for start in range(0, len(names), PARAMETERS_MAX):
                some = names[start : start + PARAMETERS_MAX]
                query = sa.select(alert_gateways).where(alert_gateways.c.alert.in_(some))
                for row in tx.execute(query.where(alert_gateways.c.over_at.is_(None))):
                    found[row.alert].append(AlertMember(row.gateway, row.since))
            return found

        return self._database.transaction(work)

    def apply(self, hub: str, changes: AlertChanges, now_us: int, waiting_max: int, number: int) -> None:
        """Write the changes of an evaluation. `waiting_max`: notifications that may wait; the oldest ones are
        dropped. `number`: that of `now`. Raises `AlertsMoved` if another hub was faster; then nothing is written."""

        def work(tx: sa.Connection) -> None:
            _count_evaluation(tx, _lake_of(tx, hub), number)
            if changes.opened:
                tx.execute(alerts.insert(), [each._asdict() for each in changes.opened])
            for each in changes.changed:
                values = {name: getattr(each, name) for name in _MUTABLE}
                tx.execute(alerts.update().where(alerts.c.id == each.id).values(**values))
            _write_members(tx, changes)
            _store_deliveries(tx, hub, changes.notify, now_us, waiting_max)
            notify(tx, NoticeTopic.ALERTS)
            over = [each for each in changes.changed if each.resolved_at is not None]
            append_events(tx, _alert_events(now_us, changes.opened, over))

        self._database.transaction(work)

    def end_of_stopped_hubs(
        self, hub: str, now_us: int, waiting_max: int, shared: Collection[str], names_for: NamesFor
    ) -> int:
        """Resolve the alerts about hubs that have stopped, or have been gone, for `STOPPED_HUB_US`, and notify of it
        whoever was notified of them; return the number of alerts. `names_for`: receivers of an alert; `shared` and
        `waiting_max`: as of `now` and `apply`."""
        silent = hubs.c.state.in_((HubState.STOPPED.value, HubState.GONE.value))
        stopped = sa.select(hubs.c.id).where(silent, hubs.c.seen_at < now_us - STOPPED_HUB_US)
        kept = _of_lake(alerts.c.hub, hub) & alerts.c.rule.in_(shared)  # hubs that run go on with them
        left = (alerts.c.resolved_at.is_(None), alerts.c.tenant == "", alerts.c.hub.in_(stopped), ~kept)

        def work(tx: sa.Connection) -> int:
            found = [AlertRecord(*row) for row in tx.execute(sa.select(*_ALERT).where(*left))]
            if not found:
                return 0
            end: dict[str, Any] = {"resolved_at": now_us, "outcome": "its hub has stopped", "muted_until": None}
            tx.execute(alerts.update().where(*left).values(**end))
            for lake in {_lake_of(tx, each.hub) for each in found}:
                _count_evaluation(tx, lake, _evaluations(tx, lake))
            known = [ReceiverRecord(*row) for row in tx.execute(sa.select(*_RECEIVER))]
            over = [(each, RESOLVED, names_for(known, each)) for each in found if each.notified_at is not None]
            _store_deliveries(tx, hub, over, now_us, waiting_max)
            notify(tx, NoticeTopic.ALERTS)
            append_events(tx, _alert_events(now_us, (), [each._replace(outcome=end["outcome"]) for each in found]))
            return len(found)

        return self._database.transaction(work)

    def clean_up(self, before_us: int, most: int) -> None:
        """Delete alerts that were resolved before a time or are more than `most`, and mutes that are over since
        then."""

        def work(tx: sa.Connection) -> None:
            over = sa.select(alerts.c.id).where(alerts.c.resolved_at.is_not(None))
            oldest = tx.execute(
                sa.select(alerts.c.resolved_at)
                .where(alerts.c.resolved_at.is_not(None))
                .order_by(alerts.c.resolved_at.desc())
                .offset(most)
                .limit(1)
            ).scalar()
            until = max(before_us, oldest or 0)
            old = over.where(alerts.c.resolved_at <= until)
            tx.execute(alert_gateways.delete().where(alert_gateways.c.alert.in_(old)))
            tx.execute(alerts.delete().where(alerts.c.resolved_at <= until))
            tx.execute(mutes.delete().where(mutes.c.until <= before_us))

        self._database.transaction(work)

    # --- people -----------------------------------------------------------------------------------------------------

    def page(self, wanted: AlertFilter, limit: int) -> tuple[list[AlertRecord], int]:
        """Return alerts, the latest first, and the number of all that match."""
        conditions = list(_conditions(wanted))
        query = sa.select(*_ALERT).where(*conditions).order_by(alerts.c.fired_at.desc(), alerts.c.id.desc())
        if wanted.after is not None:
            at, identifier = wanted.after
            earlier = (alerts.c.fired_at == at) & (alerts.c.id < identifier)
            query = query.where((alerts.c.fired_at < at) | earlier)
        counting = sa.select(sa.func.count()).select_from(alerts).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[AlertRecord], int]:
            return [AlertRecord(*row) for row in tx.execute(query.limit(limit))], tx.execute(counting).scalar() or 0

        return self._database.transaction(work)

    def get(self, identifier: str, gateways_max: int) -> tuple[AlertRecord, list[AlertMember]] | None:
        """Return an alert with its gateways, those still in it first; None for an unknown one."""
        mine = sa.select(alert_gateways.c.gateway, alert_gateways.c.since, alert_gateways.c.over_at)
        ordered = mine.where(alert_gateways.c.alert == identifier).order_by(
            alert_gateways.c.over_at.is_not(None), alert_gateways.c.gateway
        )

        def work(tx: sa.Connection) -> tuple[AlertRecord, list[AlertMember]] | None:
            found = _one(tx, identifier)
            return found and (found, [AlertMember(*row) for row in tx.execute(ordered.limit(gateways_max))])

        return self._database.transaction(work)

    def acknowledge(self, identifier: str, by: str, note: str, now_us: int) -> AlertRecord | None:
        """Acknowledge an open alert; return it, None if unknown. One that is over or acknowledged is unchanged."""
        still = (alerts.c.id == identifier, alerts.c.resolved_at.is_(None), alerts.c.acknowledged_at.is_(None))
        values = {"acknowledged_at": now_us, "acknowledged_by": by, "note": note}

        def work(tx: sa.Connection) -> AlertRecord | None:
            tx.execute(alerts.update().where(*still).values(**values))
            return _one(tx, identifier)

        return self._database.transaction(work)

    def mutes(self, now_us: int) -> list[MuteRecord]:
        """Return the mutes in effect, the first to end first."""
        query = sa.select(*_MUTE).where(mutes.c.until > now_us).order_by(mutes.c.until, mutes.c.id)
        return [MuteRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def mute(self, made: MuteRecord, most: int) -> bool:
        """Store a mute; return False when `most` are in effect. Raises `TenantRemoved`."""

        def work(tx: sa.Connection) -> bool:
            require_tenant(tx, made.tenant)
            query = sa.select(sa.func.count()).select_from(mutes).where(mutes.c.until > made.made_at)
            if (tx.execute(query).scalar() or 0) >= most:
                return False
            tx.execute(mutes.insert().values(**made._asdict()))
            return True

        return self._database.transaction(work)

    def unmute(self, identifier: str, now_us: int) -> MuteRecord | None:
        """End a mute; return it, None if unknown or over."""

        def work(tx: sa.Connection) -> MuteRecord | None:
            row = tx.execute(sa.select(*_MUTE).where(mutes.c.id == identifier, mutes.c.until > now_us)).one_or_none()
            if row is not None:
                tx.execute(mutes.update().where(mutes.c.id == identifier).values(until=now_us))
            return MuteRecord(*row) if row is not None else None

        return self._database.transaction(work)

    def settings(self) -> dict[str, RuleSettings]:
        """Return the settings of rules that have some."""
        rows = self._database.transaction(lambda tx: tx.execute(sa.select(*_RULE)).all())
        return {row.rule: RuleSettings(*row) for row in rows}

    def set_rule(
        self, settings: RuleSettings, check: Callable[[RuleSettings | None], None] = lambda _settings: None
    ) -> None:
        """Store the settings of a rule. `check` gets those before, and raises to prevent the change."""

        def work(tx: sa.Connection) -> None:
            row = tx.execute(sa.select(*_RULE).where(alert_rules.c.rule == settings.rule)).first()
            check(None if row is None else RuleSettings(*row))
            tx.execute(alert_rules.delete().where(alert_rules.c.rule == settings.rule))
            tx.execute(alert_rules.insert().values(**settings._asdict()))

        self._database.transaction(work)

    # --- receivers --------------------------------------------------------------------------------------------------

    def receivers(self) -> list[ReceiverRecord]:
        """Return the receivers, by name."""
        query = sa.select(*_RECEIVER).order_by(receivers.c.name)
        return [ReceiverRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def put_receiver(
        self, made: ReceiverRecord, most: int, check: Callable[[ReceiverRecord | None], None] = lambda _before: None
    ) -> bool:
        """Store a receiver, or replace the one of that name; return False when there are `most`. `check`: as of
        `set_rule`."""

        def work(tx: sa.Connection) -> bool:
            check(_receiver(tx, made.name))
            tx.execute(receivers.delete().where(receivers.c.name == made.name))
            if (tx.execute(sa.select(sa.func.count()).select_from(receivers)).scalar() or 0) >= most:
                return False
            tx.execute(receivers.insert().values(**made._asdict()))
            return True

        return self._database.transaction(work)

    def delete_receiver(self, name: str, check: Callable[[ReceiverRecord], None] = lambda _before: None) -> bool:
        """Delete a receiver and its waiting notifications; return False if unknown. `check`: as of `set_rule`."""

        def work(tx: sa.Connection) -> bool:
            if (before := _receiver(tx, name)) is not None:
                check(before)
            tx.execute(deliveries.delete().where(deliveries.c.receiver == name))
            return bool(tx.execute(receivers.delete().where(receivers.c.name == name)).rowcount)

        return self._database.transaction(work)

    def claim(
        self, hub: str, now_us: int, until_us: int, limit: int
    ) -> list[tuple[DeliveryRecord, AlertRecord | None]]:
        """Claim notifications that are due, in order; return each with its alert as it is now. Until the time, no other
        hub claims them; then one does if their outcome is missing, and the receiver gets the same identity again."""

        def work(tx: sa.Connection) -> list[tuple[DeliveryRecord, AlertRecord | None]]:
            mine = (_of_lake(deliveries.c.hub, hub), deliveries.c.due_at <= now_us)
            query = sa.select(*_DELIVERY).where(*mine).order_by(deliveries.c.number).limit(limit)
            found = [DeliveryRecord(*row) for row in tx.execute(query)]
            numbers = [each.number for each in found]
            if numbers:
                tx.execute(deliveries.update().where(deliveries.c.number.in_(numbers)).values(due_at=until_us))
            return [(each, _one(tx, each.alert)) for each in found]

        return self._database.transaction(work)

    def settle(self, delivery: DeliveryRecord, now_us: int, failure: str | None, again_us: int | None) -> None:
        """Record the outcome of an attempt. `again_us`: time of the next one; None: there is none."""

        def work(tx: sa.Connection) -> None:
            mine = deliveries.c.number == delivery.number
            if again_us is None:
                tx.execute(deliveries.delete().where(mine))
            else:
                tx.execute(deliveries.update().where(mine).values(attempts=delivery.attempts + 1, due_at=again_us))
            _record_outcome(tx, delivery.receiver, now_us, failure)

        self._database.transaction(work)

    def record_outcome(self, receiver: str, now_us: int, failure: str | None) -> None:
        """Record the outcome of a test or a ping; `failure`: None if it was delivered."""
        self._database.transaction(lambda tx: _record_outcome(tx, receiver, now_us, failure))


def _alert_events(at: int, opened: Iterable[AlertRecord], over: Iterable[AlertRecord]) -> Iterable[FleetEvent]:
    for kind, records in ((EventType.ALERT_FIRED, opened), (EventType.ALERT_RESOLVED, over)):
        for each in records:
            yield make_event(
                at,
                kind,
                each.tenant,
                each.gateway,
                each.id,
                rule=each.rule,
                severity=each.severity,
                what=each.what,
                gateways=each.gateways,
                selector=each.selector or None,
                next_step=each.next_step if kind is EventType.ALERT_FIRED else None,
                outcome=each.outcome or None,
            )


def _record_outcome(tx: sa.Connection, receiver: str, now_us: int, failure: str | None) -> None:
    values: dict[str, Any] = {"delivered_at": now_us, "failure": ""}
    if failure is not None:
        values = {"failed_at": now_us, "failure": failure}
    tx.execute(receivers.update().where(receivers.c.name == receiver).values(**values))


def _receiver(tx: sa.Connection, name: str) -> ReceiverRecord | None:
    row = tx.execute(sa.select(*_RECEIVER).where(receivers.c.name == name)).first()
    return None if row is None else ReceiverRecord(*row)


def _one(tx: sa.Connection, identifier: str) -> AlertRecord | None:
    row = tx.execute(sa.select(*_ALERT).where(alerts.c.id == identifier)).one_or_none()
    return AlertRecord(*row) if row is not None else None


def _lake_of(tx: sa.Connection, hub: str) -> str:
    return tx.execute(sa.select(writers.c.lake).where(writers.c.id == hub)).scalar() or ""


def _evaluations(tx: sa.Connection, lake: str) -> int:
    query = sa.select(alert_evaluations.c.number).where(alert_evaluations.c.lake == lake)
    return tx.execute(query).scalar() or 0


def _count_evaluation(tx: sa.Connection, lake: str, number: int) -> None:
    """Count an evaluation that began at this number. Raises `AlertsMoved`."""
    if _evaluations(tx, lake) != number:
        raise AlertsMoved
    if number:
        tx.execute(alert_evaluations.update().where(alert_evaluations.c.lake == lake).values(number=number + 1))
    else:
        tx.execute(alert_evaluations.insert().values(lake=lake, number=1))


def _of_lake(column: sa.ColumnElement[str], hub: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column has a hub, or another writer of its lake, running or not."""
    lake = sa.select(writers.c.lake).where(writers.c.id == hub).scalar_subquery()
    return (column == hub) | column.in_(sa.select(writers.c.id).where(writers.c.lake == lake))


def _is_owned(hub: str, shared: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition that an alert is of a hub, or of all hubs of its lake. A hub that replaced one which ran
    before hubs wrote that they are there has its alerts."""
    common = (alerts.c.tenant != "") | alerts.c.rule.in_(shared)
    older = alerts.c.hub.not_in(sa.select(hubs.c.id))
    return (alerts.c.hub == hub) | (_of_lake(alerts.c.hub, hub) & (common | older))


def _store_deliveries(
    tx: sa.Connection,
    hub: str,
    notified: Iterable[tuple[AlertRecord, str, Collection[str]]],
    now_us: int,
    waiting_max: int,
) -> None:
    """Store notifications: alert, event and receivers of each. Above `waiting_max` the oldest ones are dropped."""
    rows = [
        {
            "hub": hub, "receiver": name, "alert": alert.id, "event": event,
            "made_at": now_us, "attempts": 0, "due_at": now_us,
        }
        for alert, event, names in notified
        for name in sorted(names)
    ]  # fmt: skip
    if not rows:
        return
    tx.execute(deliveries.insert(), rows)
    latest = sa.select(deliveries.c.number).order_by(deliveries.c.number.desc())
    last = tx.execute(latest.offset(waiting_max).limit(1)).scalar()
    if last is not None:
        tx.execute(deliveries.delete().where(deliveries.c.number <= last))


def _write_members(tx: sa.Connection, changes: AlertChanges) -> None:
    if changes.left:
        mine = (
            alert_gateways.c.alert == sa.bindparam("of_alert"),
            alert_gateways.c.gateway == sa.bindparam("of_gateway"),
        )
        rows = [
            {"of_alert": alert, "of_gateway": member.gateway, "at": member.over_at} for alert, member in changes.left
        ]
        tx.execute(alert_gateways.update().where(*mine).values(over_at=sa.bindparam("at")), rows)
    if changes.joined:
        keys = [{"of_alert": alert, "of_gateway": member.gateway} for alert, member in changes.joined]
        mine = (
            alert_gateways.c.alert == sa.bindparam("of_alert"),
            alert_gateways.c.gateway == sa.bindparam("of_gateway"),
        )
        tx.execute(alert_gateways.delete().where(*mine), keys)  # a gateway may return to an open alert
        tx.execute(alert_gateways.insert(), [{"alert": alert, **member._asdict()} for alert, member in changes.joined])


def _conditions(wanted: AlertFilter) -> Iterable[Any]:
    if wanted.tenants is not None:
        yield alerts.c.tenant.in_(wanted.tenants)
    if wanted.severity:
        yield alerts.c.severity == wanted.severity
    if wanted.text:
        part = f"%{wanted.text.lower().replace('~', '~~').replace('%', '~%').replace('_', '~_')}%"
        columns = (alerts.c.rule, alerts.c.gateway, alerts.c.selector, alerts.c.what)
        yield sa.or_(*(sa.func.lower(each).like(part, escape="~") for each in columns))
    acknowledged, over = alerts.c.acknowledged_at.is_not(None), alerts.c.resolved_at.is_not(None)
    muted = alerts.c.muted_until.is_not(None)
    states = {
        "open": (~over,),
        FIRING: (~over, ~acknowledged, ~muted),
        "muted": (~over, ~acknowledged, muted),
        "acknowledged": (~over, acknowledged),
        RESOLVED: (over,),
    }
    yield from states.get(wanted.state, ())
