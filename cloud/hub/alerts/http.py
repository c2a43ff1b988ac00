"""Alerts over HTTP.

``GET  /api/v1/alerts``                         alerts, the latest first: ``?state=&severity=&q=&after=&limit=``; state
                                                ``open`` (default), ``firing``, ``acknowledged``, ``muted``,
                                                ``resolved``, ``all``; ``pending`` lists what has not fired yet
``GET  /api/v1/alerts/<id>``                    one with its gateways
``POST /api/v1/alerts/<id>/acknowledge``        ``{"note": ""}``
``GET  /api/v1/alert-rules``                    rules with their settings
``PATCH /api/v1/alert-rules/<rule>``            ``{"enabled", "for_s", "severity", "selector"}``; null: as delivered
``GET|POST /api/v1/mutes``                      mutes in effect; ``{"minutes", "reason", "rule", "selector",
                                                "gateway"}``
``DELETE /api/v1/mutes/<id>``
``GET  /api/v1/receivers``                      receivers of notifications
``PUT|DELETE /api/v1/receivers/<name>``         ``{"severity", "settings", "secret"}``
``POST /api/v1/receivers/<name>/test``          send a test: 200 when it was delivered, 502 with the reason

Viewing and muting cover the gateways of one's own tenant, or everything with the right on ``$fleet``. Rules and
receivers belong to the whole fleet.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.alerts.book import effective_rules
from cloud.hub.alerts.documents import (
    AlertPage,
    DeliveredName,
    MuteDocument,
    MutePage,
    PendingPage,
    ReceiverDocument,
    ReceiverPage,
    RuleDocument,
    RuleList,
    alert_detail,
    alert_document,
    mute_document,
    pending_document,
    receiver_document,
    receiver_tag,
    rule_document,
)
from cloud.hub.alerts.limits import (
    FOR_S_MAX,
    GATEWAYS_SHOWN_MAX,
    MUTE_S_MAX,
    MUTES_MAX,
    NOTE_CHARACTERS_MAX,
    RECEIVER_BYTES_MAX,
    RECEIVERS_MAX,
)
from cloud.hub.alerts.receivers import ReceiverSettings, WebhookSettings
from cloud.hub.alerts.rules import BY_NAME, RULES, AlertSeverity
from cloud.hub.alerts.service import HubAlerts
from cloud.hub.changes import note_change
from cloud.hub.json_http import answering, json_response
from cloud.hub.labels import parse_selector
from cloud.hub.page_position import decode_time_position
from cloud.hub.registry.alerts import AlertFilter, AlertRecord, MuteRecord, ReceiverRecord, RuleSettings
from cloud.hub.scope import FLEET, Scope, scope_of
from cloud.hub.webhooks.sending import key_of, make_secret
from edge.broker.http.access import HttpAccess
from edge.broker.http.json_documents import read_document
from edge.broker.http.preconditions import precondition_of, tag_of
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

ALERTS: Final = "/api/v1/alerts"
ALERT_RULES: Final = "/api/v1/alert-rules"
MUTES: Final = "/api/v1/mutes"
RECEIVERS: Final = "/api/v1/receivers"
_STATES: Final = ("open", "firing", "acknowledged", "muted", "resolved", "all", "pending")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

answered: Final = answering({})
Note = Annotated[str, msgspec.Meta(max_length=NOTE_CHARACTERS_MAX)]


class AcknowledgeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Acknowledgement of an alert."""

    note: Note = ""
    """Words for others, such as who looks after it."""


class RuleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a rule; null: as delivered; a field that is left out stays."""

    enabled: bool | msgspec.UnsetType | None = msgspec.UNSET
    for_s: Annotated[int, msgspec.Meta(ge=0, le=FOR_S_MAX)] | msgspec.UnsetType | None = msgspec.UNSET
    severity: AlertSeverity | msgspec.UnsetType | None = msgspec.UNSET
    selector: str | msgspec.UnsetType | None = msgspec.UNSET


class MuteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """New mute. Without rule, selector and gateway it covers everything within the user's rights."""

    minutes: Annotated[float, msgspec.Meta(gt=0, le=MUTE_S_MAX / 60)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=NOTE_CHARACTERS_MAX)]
    rule: str = ""
    selector: str = ""
    gateway: Annotated[str, msgspec.Meta(max_length=255)] = ""
    tenant: Annotated[str, msgspec.Meta(max_length=255)] = ""


class ReceiverRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Receiver to store."""

    settings: ReceiverSettings
    severity: AlertSeverity = AlertSeverity.WARNING
    secret: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None
    """Password of a mail server, or key of a webhook; null: keep it, or make one."""


def routes(alerts: HubAlerts, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _AlertApi(alerts, access)
    return [
        HttpRoute(ALERTS, answered(api.page), methods=PURE),
        HttpRoute(ALERTS + "/{id}", answered(api.one), methods=PURE),
        HttpRoute(ALERTS + "/{id}/acknowledge", answered(api.acknowledge, "alert.acknowledge"), methods=("POST",)),
        HttpRoute(ALERT_RULES, answered(api.rules), methods=PURE),
        HttpRoute(ALERT_RULES + "/{rule}", answered(api.change_rule, "alert-rule.change"), methods=("PATCH",)),
        HttpRoute(MUTES, answered(api.mutes), methods=PURE),
        HttpRoute(MUTES, answered(api.mute, "mute.create"), methods=("POST",)),
        HttpRoute(MUTES + "/{id}", answered(api.unmute, "mute.end"), methods=("DELETE",)),
        HttpRoute(RECEIVERS, answered(api.receivers), methods=PURE),
        HttpRoute(RECEIVERS + "/{name}", answered(api.put_receiver, "receiver.change"), methods=("PUT",)),
        HttpRoute(RECEIVERS + "/{name}", answered(api.delete_receiver, "receiver.delete"), methods=("DELETE",)),
        HttpRoute(RECEIVERS + "/{name}/test", answered(api.test_receiver, "receiver.test"), methods=("POST",)),
    ]


class _AlertApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, alerts: HubAlerts, access: HttpAccess) -> None:
        self._alerts = alerts
        self._access = access

    # --- alerts -------------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        scope, query = await scope_of(self._access, request), request.query_params
        limit = limit_of(query)
        state, severity = query.get("state") or "open", query.get("severity", "")
        if state not in _STATES:
            raise RequestRefused(400, f"state must be one of {', '.join(_STATES)}")
        if severity and severity not in tuple(AlertSeverity):
            raise RequestRefused(400, f"severity must be one of {', '.join(AlertSeverity)}")
        if state == "pending":
            return json_response(self._pending(scope, query.get("after", ""), limit))
        tenants = None if scope.tenant is None else (scope.tenant,)
        wanted = AlertFilter(tenants, "" if state == "all" else state, severity, query.get("q", "")[:100])
        if after := query.get("after"):
            wanted = wanted._replace(after=decode_time_position(after))
        found, total = await self._alerts.ask(lambda registry: registry.page(wanted, limit + 1))
        last = found[limit - 1] if len(found) > limit else None
        following = f"{last.fired_at}-{last.id}" if last is not None else None
        rows = [alert_document(each) for each in found[:limit]]
        return json_response(AlertPage(alerts=rows, next=following, total=total))

    def _pending(self, scope: Scope, after: str, limit: int) -> PendingPage:
        rules = self._alerts.rules
        found = [
            (f"{subject.rule} {subject.key or ''} {subject.detail}", subject, active)
            for subject, active in self._alerts.book.pending()
            if scope.tenant is None or (subject.key is not None and scope.covers(subject.key[0]))
        ]
        later = [one for one in found if one[0] > after]
        following = later[limit - 1][0] if len(later) > limit else None
        rows = [pending_document(subject, active, rules[subject.rule]) for _, subject, active in later[:limit]]
        return PendingPage(pending=rows, next=following, total=len(found))

    async def one(self, request: Request) -> Response:
        scope, identifier = await scope_of(self._access, request), request.path_params["id"]
        return json_response(alert_detail(*await self._get(scope, identifier)))

    async def acknowledge(self, request: Request) -> Response:
        scope, by = await self._scope_and_user(request, Operation.MANAGE)
        wanted = await read_document(request, AcknowledgeRequest, RECEIVER_BYTES_MAX, optional=True)
        identifier = request.path_params["id"]
        alert, _ = await self._get(scope, identifier)
        note_change(request, subject=f"{alert.rule} {alert.id}", tenant=alert.tenant, after={"note": wanted.note})
        now_us = self._alerts.now_us()
        await self._alerts.ask(lambda registry: registry.acknowledge(identifier, by, wanted.note, now_us))
        return json_response(alert_detail(*await self._get(scope, identifier)))

    async def _get(self, scope: Scope, identifier: str) -> tuple[AlertRecord, Any]:
        found = await self._alerts.ask(lambda registry: registry.get(identifier, GATEWAYS_SHOWN_MAX))
        if found is None or not scope.covers(found[0].tenant):
            raise RequestRefused(404, f"no alert {identifier[:64]}", code="alert-not-found")
        return found

    # --- rules --------------------------------------------------------------------------------------------------------

    async def rules(self, request: Request) -> Response:
        await scope_of(self._access, request)
        return json_response(RuleList(rules=await self._rules()))

    async def _rules(self) -> list[RuleDocument]:
        settings, book = await self._alerts.ask(lambda registry: registry.settings()), self._alerts.book
        firing = Counter(opened.record.rule for opened in book.open.values())
        pending = Counter(subject.rule for subject, active in book.active.items() if not active.alert)
        effective = effective_rules(settings)
        return [
            rule_document(
                effective[rule.name],
                settings.get(rule.name),
                measured=rule.name in self._alerts.measured,
                firing=firing[rule.name],
                pending=pending[rule.name],
            )
            for rule in RULES
        ]

    async def change_rule(self, request: Request) -> Response:
        by = await self._fleet_user(request)
        name = request.path_params["rule"]
        wanted = await read_document(request, RuleRequest, RECEIVER_BYTES_MAX, optional=True)
        condition = precondition_of(request)
        if name not in BY_NAME:
            raise RequestRefused(404, f"no rule {name[:64]}")
        known = (await self._alerts.ask(lambda registry: registry.settings())).get(name)
        before = known or RuleSettings(name, True, None, None, None, 0, "")
        selector = before.selector if wanted.selector is msgspec.UNSET else wanted.selector
        settings = RuleSettings(
            name,
            before.enabled if wanted.enabled is msgspec.UNSET else wanted.enabled is not False,
            before.for_s if wanted.for_s is msgspec.UNSET else wanted.for_s,
            before.severity if wanted.severity is msgspec.UNSET else wanted.severity and wanted.severity.value,
            str(parse_selector(selector)) if selector else None,
            self._alerts.now_us(),
            by,
        )
        note_change(request, before=_settings(before), after=_settings(settings))

        def check(present: RuleSettings | None) -> None:
            condition.check(tag_of(present))

        await self._alerts.change(lambda registry: registry.set_rule(settings, check))
        return json_response(next(each for each in await self._rules() if each.rule == name))

    # --- mutes --------------------------------------------------------------------------------------------------------

    async def mutes(self, request: Request) -> Response:
        scope = await scope_of(self._access, request)
        found = await self._alerts.ask(lambda registry: registry.mutes(self._alerts.now_us()))
        mine = [each for each in found if not each.tenant or scope.covers(each.tenant)]
        rows: list[MuteDocument] = [mute_document(each) for each in mine]
        return json_response(MutePage(mutes=rows, total=len(rows)))

    async def mute(self, request: Request) -> Response:
        scope, by = await self._scope_and_user(request, Operation.MANAGE)
        wanted = await read_document(request, MuteRequest, RECEIVER_BYTES_MAX, optional=True)
        now_us = self._alerts.now_us()
        tenant = scope.tenant if scope.tenant is not None else wanted.tenant
        if not scope.covers(wanted.tenant or tenant):
            raise RequestRefused(403, f"tenant {wanted.tenant} is outside your scope")
        if wanted.rule and wanted.rule not in BY_NAME:
            raise RequestRefused(400, f"no rule {wanted.rule[:64]}: see {ALERT_RULES}")
        made = MuteRecord(
            id=secrets.token_hex(8),
            tenant=tenant,
            rule=wanted.rule,
            selector=str(parse_selector(wanted.selector)) if wanted.selector else "",
            gateway=wanted.gateway,
            until=now_us + int(wanted.minutes * 60e6),
            reason=wanted.reason,
            made_at=now_us,
            made_by=by,
        )
        note_change(request, subject=made.id, tenant=tenant, after=mute_document(made))
        if not await self._alerts.change(lambda registry: registry.mute(made, MUTES_MAX)):
            raise RequestRefused(409, f"{MUTES_MAX} mutes are in effect: end some, or use wider ones")
        return json_response(mute_document(made), 201)

    async def unmute(self, request: Request) -> Response:
        scope = await scope_of(self._access, request, Operation.MANAGE)
        identifier, now_us = request.path_params["id"], self._alerts.now_us()
        known = await self._alerts.ask(lambda registry: registry.mutes(now_us))
        mine = next((each for each in known if each.id == identifier and scope.covers(each.tenant)), None)
        if mine is None:
            raise RequestRefused(404, f"no mute {identifier[:64]} is in effect", code="mute-not-found")
        note_change(request, tenant=mine.tenant, before=mute_document(mine))
        await self._alerts.change(lambda registry: registry.unmute(identifier, now_us))
        return json_response(mute_document(mine._replace(until=now_us)))

    # --- receivers ----------------------------------------------------------------------------------------------------

    async def receivers(self, request: Request) -> Response:
        await self._fleet_user(request, Operation.VIEW)
        found = await self._alerts.ask(lambda registry: registry.receivers())
        rows: list[ReceiverDocument] = [receiver_document(each) for each in found]
        return json_response(ReceiverPage(receivers=rows, total=len(rows)))

    async def put_receiver(self, request: Request) -> Response:
        by = await self._fleet_user(request)
        name = request.path_params["name"]
        wanted = await read_document(request, ReceiverRequest, RECEIVER_BYTES_MAX, optional=True)
        condition = precondition_of(request)
        if _NAME.fullmatch(name) is None:
            raise RequestRefused(400, "a receiver's name has letters, digits, - . _, 63 at most")
        before = await self._receiver(name)
        secret, made = wanted.secret, None
        if secret is None:
            kept = before is not None and type(wanted.settings).__struct_config__.tag == before.kind
            secret = before.secret if before is not None and kept else ""
            if not secret and isinstance(wanted.settings, WebhookSettings):
                secret = made = make_secret()
        if isinstance(wanted.settings, WebhookSettings):
            _require_usable(secret)
        record = ReceiverRecord(
            name=name,
            kind=str(type(wanted.settings).__struct_config__.tag),
            severity=wanted.severity.value,
            settings=msgspec.json.encode(wanted.settings).decode(),
            secret=secret,
            changed_at=self._alerts.now_us(),
            changed_by=by,
        )
        after: dict[str, Any] = {**_receiver_kind(record)}
        if before is not None and (before.settings, before.secret) != (record.settings, record.secret):
            after["settings"] = "changed"
        note_change(request, before=None if before is None else _receiver_kind(before), after=after)

        def check(present: ReceiverRecord | None) -> None:
            condition.check(None if present is None else receiver_tag(present))

        if not await self._alerts.ask(lambda registry: registry.put_receiver(record, RECEIVERS_MAX, check)):
            raise RequestRefused(409, f"there are {RECEIVERS_MAX} receivers: delete one first")
        return json_response(receiver_document(record, made), 200 if before is not None else 201)

    async def delete_receiver(self, request: Request) -> Response:
        await self._fleet_user(request)
        name = request.path_params["name"]
        condition = precondition_of(request)

        def check(present: ReceiverRecord) -> None:
            condition.check(receiver_tag(present))

        if not await self._alerts.ask(lambda registry: registry.delete_receiver(name, check)):
            raise RequestRefused(404, f"no receiver {name[:64]}", code="receiver-not-found")
        return json_response({"deleted": name})

    async def test_receiver(self, request: Request) -> Response:
        await self._fleet_user(request)
        name = request.path_params["name"]
        receiver = await self._receiver(name)
        if receiver is None:
            raise RequestRefused(404, f"no receiver {name[:64]}", code="receiver-not-found")
        failure = await self._alerts.test(receiver)
        if failure is not None:
            raise RequestRefused(502, f"{name} did not take it: {failure}")
        return json_response(DeliveredName(delivered=name))

    async def _receiver(self, name: str) -> ReceiverRecord | None:
        found = await self._alerts.ask(lambda registry: registry.receivers())
        return next((each for each in found if each.name == name), None)

    # --- rights -------------------------------------------------------------------------------------------------------

    async def _scope_and_user(self, request: Request, operation: Operation) -> tuple[Scope, str]:
        scope = await scope_of(self._access, request, operation)
        async with self._access.admitted(request) as (grant, _):
            return scope, grant.user if grant is not None else ""

    async def _fleet_user(self, request: Request, operation: Operation = Operation.MANAGE) -> str:
        """Return the user, who needs the right on the whole fleet. Raises `RequestRefused`."""
        scope, by = await self._scope_and_user(request, operation)
        if scope.tenant is not None:
            raise RequestRefused(403, f"this covers all tenants, which requires the right {operation.value}:{FLEET}")
        note_change(request, tenant="")
        return by


def _settings(rule: RuleSettings) -> dict[str, Any]:
    """Return the settings of a rule for the audit."""
    return {name: getattr(rule, name) for name in ("enabled", "for_s", "severity", "selector")}


def _receiver_kind(receiver: ReceiverRecord) -> dict[str, str]:
    """Return what the audit shows of a receiver: its settings may contain secrets."""
    return {"kind": receiver.kind, "severity": receiver.severity}


def _require_usable(secret: str) -> None:
    """Raise `RequestRefused` for a secret that cannot sign."""
    try:
        key_of(secret)
    except ValueError as error:
        raise RequestRefused(400, f"secret: {error}") from None
