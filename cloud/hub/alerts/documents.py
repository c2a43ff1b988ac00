"""JSON documents of alerts, for the API, the command line and webhooks. Times are milliseconds since 1970, UTC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cloud.hub.alerts.book import ActiveSubject, EffectiveRule
from cloud.hub.alerts.measures import AlertSubject
from cloud.hub.alerts.receivers import Notification, settings_of
from cloud.hub.registry.alerts import (
    FIRING,
    RESOLVED,
    AlertMember,
    AlertRecord,
    MuteRecord,
    ReceiverRecord,
    RuleSettings,
)
from edge.broker.http.preconditions import tag_of
from edge.output.text import line
from edge.output.times import moment_us


class AlertDocument(msgspec.Struct, kw_only=True):
    """Alert, open or resolved."""

    id: str
    rule: str
    """Name of the rule, the same as in Prometheus."""
    severity: str
    """``critical`` or ``warning``."""
    state: str
    """``firing``, ``acknowledged``, ``muted`` or ``resolved``."""
    tenant: str
    """Tenant of its gateways; empty: the alert is about the hub."""
    gateway: str
    """Its only gateway; empty for several, and for the hub."""
    selector: str
    """Label that its gateways have in common, if one cause is likely."""
    gateways: int
    """Number of its gateways now, or at the end."""
    what: str
    next_step: str
    since: int
    """Begin of the condition."""
    fired_at: int
    muted_until: int | None
    acknowledged_at: int | None
    acknowledged_by: str
    note: str
    notified_at: int | None
    """Time at which receivers were notified; null: not, because it is muted or acknowledged."""
    resolved_at: int | None
    outcome: str
    """Reason why it ended, unless the condition is over."""


class AlertGateway(msgspec.Struct, kw_only=True):
    """Gateway of an alert."""

    gateway: str
    since: int
    over_at: int | None
    """Time from which it was well again."""


class AlertDetail(AlertDocument, kw_only=True):
    """Alert with its gateways."""

    members: list[AlertGateway]
    """Up to 500, those still concerned first."""


class AlertPage(msgspec.Struct, kw_only=True):
    """Page of alerts, the latest first."""

    alerts: list[AlertDocument]
    next: str | None
    """Value of `after` for the next page; null: this is the last one."""
    total: int


class PendingAlert(msgspec.Struct, kw_only=True):
    """A rule that is true and has not been true for long enough."""

    rule: str
    severity: str
    tenant: str
    gateway: str
    what: str
    since: int
    fires_at: int
    """Time at which it fires if it stays true."""


class PendingPage(msgspec.Struct, kw_only=True):
    """Page of pending alerts, by rule and gateway."""

    pending: list[PendingAlert]
    next: str | None
    total: int


class RuleDocument(msgspec.Struct, kw_only=True):
    """Rule with the operator's settings."""

    rule: str
    title: str
    measure: str
    """Quantity that it compares."""
    comparison: str
    threshold: float
    expression: str
    """The same for Prometheus."""
    enabled: bool
    for_s: int
    """Time that the condition has to last."""
    severity: str
    selector: str
    """Gateways that it is for; empty: all."""
    next_step: str
    measured: bool
    """False: the hub has no figures for it yet, such as no proof of the lake."""
    firing: int
    """Open alerts."""
    pending: int
    """Gateways for which it is true and has not fired yet."""
    changed_at: int | None
    """Time of the last change of its settings; null: as delivered."""
    changed_by: str
    etag: str
    """State of its settings, for `If-Match`."""


class MuteDocument(msgspec.Struct, kw_only=True):
    """Mute: alerts that match notify no receiver until a time. Empty fields match everything."""

    id: str
    tenant: str
    rule: str
    selector: str
    gateway: str
    until: int
    reason: str
    made_at: int
    made_by: str


class ReceiverDocument(msgspec.Struct, kw_only=True):
    """Receiver of notifications, without its secret."""

    name: str
    severity: str
    """Least severity that it gets."""
    settings: dict[str, Any]
    """Settings of its kind: `kind` is ``webhook``, ``mail`` or ``ping``."""
    has_secret: bool
    secret: str | None = None
    """Key of the signatures of a new webhook, shown once."""
    changed_at: int
    changed_by: str
    delivered_at: int | None
    """Last delivery."""
    failed_at: int | None
    """Last failed attempt."""
    failure: str
    """Reason; empty after a delivery."""
    etag: str
    """State of its settings, for `If-Match`."""


class RuleList(msgspec.Struct, kw_only=True):
    """All rules."""

    rules: list[RuleDocument]


class MutePage(msgspec.Struct, kw_only=True):
    """Mutes in effect."""

    mutes: list[MuteDocument]
    total: int
    next: str | None = None


class ReceiverPage(msgspec.Struct, kw_only=True):
    """Receivers of notifications."""

    receivers: list[ReceiverDocument]
    total: int
    next: str | None = None


class DeliveredName(msgspec.Struct, kw_only=True):
    """Receiver that took a test notification."""

    delivered: str


def milliseconds(time_us: int | None) -> int | None:
    """Convert microseconds to milliseconds."""
    return None if time_us is None else time_us // 1_000


def alert_fields(record: AlertRecord) -> dict[str, Any]:
    """Return the fields of an alert's document."""
    return {
        "id": record.id,
        "rule": record.rule,
        "severity": record.severity,
        "state": record.state,
        "tenant": record.tenant,
        "gateway": record.gateway,
        "selector": record.selector,
        "gateways": record.gateways,
        "what": record.what,
        "next_step": record.next_step,
        "since": record.since // 1_000,
        "fired_at": record.fired_at // 1_000,
        "muted_until": milliseconds(record.muted_until),
        "acknowledged_at": milliseconds(record.acknowledged_at),
        "acknowledged_by": record.acknowledged_by,
        "note": record.note,
        "notified_at": milliseconds(record.notified_at),
        "resolved_at": milliseconds(record.resolved_at),
        "outcome": record.outcome,
    }


def alert_document(record: AlertRecord) -> AlertDocument:
    """Make the document of an alert."""
    return AlertDocument(**alert_fields(record))


def alert_detail(record: AlertRecord, members: Sequence[AlertMember]) -> AlertDetail:
    """Make the document of an alert with its gateways."""
    found = [
        AlertGateway(gateway=each.gateway, since=each.since // 1_000, over_at=milliseconds(each.over_at))
        for each in members
    ]
    return AlertDetail(**alert_fields(record), members=found)


def pending_document(subject: AlertSubject, active: ActiveSubject, rule: EffectiveRule) -> PendingAlert:
    """Make the document of a pending alert."""
    tenant, gateway = subject.key or ("", "")
    return PendingAlert(
        rule=subject.rule,
        severity=rule.severity,
        tenant=tenant,
        gateway=gateway,
        what=active.what,
        since=active.since_us // 1_000,
        fires_at=active.first_us // 1_000 + rule.for_s * 1_000,
    )


def rule_document(
    rule: EffectiveRule, settings: RuleSettings | None, *, measured: bool, firing: int, pending: int
) -> RuleDocument:
    """Make the document of a rule."""
    own = rule.rule
    return RuleDocument(
        rule=own.name,
        title=own.title,
        measure=own.measure.value,
        comparison=own.comparison.value,
        threshold=own.threshold,
        expression=own.promql,
        enabled=rule.enabled,
        for_s=rule.for_s,
        severity=rule.severity,
        selector=settings.selector or "" if settings is not None else "",
        next_step=own.next_step,
        measured=measured,
        firing=firing,
        pending=pending,
        changed_at=milliseconds(settings.changed_at) if settings is not None else None,
        changed_by=settings.changed_by if settings is not None else "",
        etag=tag_of(settings),
    )


def mute_document(record: MuteRecord) -> MuteDocument:
    """Make the document of a mute."""
    times = {"until": record.until // 1_000, "made_at": record.made_at // 1_000}
    return MuteDocument(**{**record._asdict(), **times})


def receiver_document(record: ReceiverRecord, secret: str | None = None) -> ReceiverDocument:
    """Make the document of a receiver. `secret`: shown once, to who made it."""
    return ReceiverDocument(
        name=record.name,
        severity=record.severity,
        settings=msgspec.to_builtins(settings_of(record)),
        has_secret=bool(record.secret),
        secret=secret,
        changed_at=record.changed_at // 1_000,
        changed_by=record.changed_by,
        delivered_at=milliseconds(record.delivered_at),
        failed_at=milliseconds(record.failed_at),
        failure=record.failure,
        etag=receiver_tag(record),
    )


def receiver_tag(record: ReceiverRecord) -> str:
    """Return the entity tag of a receiver's settings. A digest of its secret would help to guess that."""
    return tag_of((record.name, record.kind, record.severity, record.settings, record.changed_at))


def notification_of(record: AlertRecord, event: str, delivery: str, hub: str) -> Notification:
    """Make the notification about an alert. `hub`: name of the machine."""
    subject = f"[{event} · {record.severity}] {place_of(record)}: {record.what}"
    document = {"schema": 1, "event": event, "hub": hub, "alert": msgspec.to_builtins(alert_document(record))}
    return Notification(delivery, subject, document, _text(record, event, hub))


def make_test_notification(receiver: ReceiverRecord, delivery: str, hub: str) -> Notification:
    """Make the notification of a test."""
    words = f"This is a test of receiver {receiver.name}. Nothing is wrong."
    document = {"schema": 1, "event": "test", "hub": hub, "receiver": receiver.name, "what": words}
    return Notification(delivery, f"[test] {receiver.name}: Waypost hub {hub}", document, f"{words}\n\nHub: {hub}\n")


def place_of(record: AlertRecord) -> str:
    """Return the gateway, or the gateways, of an alert."""
    if record.gateway:
        return f"gateway {record.gateway}"
    if not record.tenant:
        return "hub"
    return f"{record.gateways} gateways{f' with {record.selector}' if record.selector else ''}"


def _text(record: AlertRecord, event: str, hub: str) -> str:
    """Return the text of a mail."""
    lines = [
        line(f"{place_of(record)}: {record.what}"),
        "",
        f"since:     {moment_us(record.since)}",
        f"severity:  {record.severity}",
        f"rule:      {record.rule}",
        f"hub:       {hub}",
    ]
    if record.tenant:
        lines.append(f"tenant:    {record.tenant}")
    if event == RESOLVED:
        lines.append(f"resolved:  {moment_us(record.resolved_at)}")
    if event == FIRING:
        lines += ["", f"next step: {record.next_step}"]
    return "\n".join(lines) + "\n"
