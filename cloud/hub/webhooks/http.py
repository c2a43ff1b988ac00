"""Webhooks over HTTP.

``GET    /api/v1/webhooks``              webhooks by id: ``?tenant=&after=&limit=``
``POST   /api/v1/webhooks``              `NewWebhook`: add one, answered with its secret
``GET    /api/v1/webhooks/<id>``         one webhook
``PATCH  /api/v1/webhooks/<id>``         `WebhookChange`: other settings, pause or resume
``DELETE /api/v1/webhooks/<id>``         remove it
``POST   /api/v1/webhooks/<id>/secret``  `NewWebhookSecret`: a new secret, while the one before stays valid for a time
``POST   /api/v1/webhooks/<id>/test``    send a test: 200 when it was delivered, 502 with the reason

Users see and change the webhooks of their own tenant. With the right on ``$fleet`` also those of other tenants, and
those of the whole fleet: there the tenant is empty.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change, note_secret
from cloud.hub.events.http import KNOWN_TYPES
from cloud.hub.events.limits import EVENT_FILTER_MAX
from cloud.hub.json_http import answering, json_response
from cloud.hub.labels import parse_selector
from cloud.hub.page_position import wrong_position
from cloud.hub.peers import gateway_fault, tenant_fault
from cloud.hub.registry.events import EventType
from cloud.hub.registry.webhooks import TooManyWebhooks, WebhookRecord, WebhookState
from cloud.hub.scope import Scope, scope_of
from cloud.hub.webhooks.documents import WebhookPage, webhook_document, webhook_tag
from cloud.hub.webhooks.limits import (
    SECRET_OVERLAP_S_MAX,
    WEBHOOK_DOCUMENT_BYTES_MAX,
    WEBHOOKS_MAX,
    WEBHOOKS_TENANT_MAX,
)
from cloud.hub.webhooks.sending import make_secret
from cloud.hub.webhooks.service import HubWebhooks, WebhookTestsBusy
from edge.broker.http.access import HttpAccess
from edge.broker.http.json_documents import read_document
from edge.broker.http.preconditions import Precondition, precondition_of
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

WEBHOOKS: Final = "/api/v1/webhooks"
answered: Final = answering(
    {
        WebhookTestsBusy: 503,
        TooManyWebhooks: lambda why: RequestRefused(409, str(why), next_step="remove one first").response(),
    }
)
_ID_CHARACTERS: Final = 32
_URL: Final = r"^https?://[^\s\x00-\x20@/?#]{1,255}([/?#][^\s\x00-\x20]{0,1700})?\Z"
WebhookUrl = Annotated[str, msgspec.Meta(pattern=_URL, max_length=2_000)]
_Words = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=255)]], msgspec.Meta(max_length=50)]


class NewWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Webhook to add."""

    url: WebhookUrl
    types: _Words = msgspec.field(default_factory=list)
    """Types of events, or their nouns, such as `alert`; empty: all."""
    gateways: _Words = msgspec.field(default_factory=list)
    """Names of gateways; empty: all, and events without a gateway."""
    selector: str = ""
    """Labels of gateways, such as `site=lyon`; empty: all, and events without a gateway."""
    tenant: str = ""
    """Tenant of its events; empty: the user's own, or all with the right on `$fleet`."""
    after: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] | None = None
    """Number of the event behind which it begins; null: with the next event."""


class WebhookChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Change of a webhook; a field that is left out stays."""

    url: WebhookUrl | msgspec.UnsetType = msgspec.UNSET
    types: _Words | msgspec.UnsetType = msgspec.UNSET
    gateways: _Words | msgspec.UnsetType = msgspec.UNSET
    selector: str | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    """True: it gets no events and keeps its place; false: it goes on from there, now."""


class NewWebhookSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Change of the secret of a webhook."""

    overlap_s: Annotated[int, msgspec.Meta(ge=0, le=SECRET_OVERLAP_S_MAX)] = 86_400
    """Seconds that requests are signed with the secret before, too."""


class RemovedWebhook(msgspec.Struct, kw_only=True):
    """Webhook that was removed."""

    removed: str


class TestedWebhook(msgspec.Struct, kw_only=True):
    """Webhook that took a test."""

    delivered: str


def webhook_routes(webhooks: HubWebhooks, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _WebhookApi(webhooks, access)
    return [
        HttpRoute(WEBHOOKS, answered(api.page), methods=PURE),
        HttpRoute(WEBHOOKS, answered(api.add, "webhook.create"), methods=("POST",)),
        HttpRoute(WEBHOOKS + "/{id}", answered(api.show), methods=PURE),
        HttpRoute(WEBHOOKS + "/{id}", answered(api.change, "webhook.change"), methods=("PATCH",)),
        HttpRoute(WEBHOOKS + "/{id}", answered(api.remove, "webhook.remove"), methods=("DELETE",)),
        HttpRoute(WEBHOOKS + "/{id}/secret", answered(api.rotate, "webhook.secret"), methods=("POST",)),
        HttpRoute(WEBHOOKS + "/{id}/test", answered(api.test, "webhook.test"), methods=("POST",)),
    ]


class _WebhookApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, webhooks: HubWebhooks, access: HttpAccess) -> None:
        self._webhooks = webhooks
        self._access = access

    async def page(self, request: Request) -> Response:
        """List webhooks."""
        scope, query = await scope_of(self._access, request), request.query_params
        limit, tenant = limit_of(query), query.get("tenant") or scope.tenant
        if tenant is not None and (fault := tenant_fault(tenant)):
            raise RequestRefused(400, fault)
        if tenant is not None and not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        after = query.get("after", "")
        if after and not _is_id(after):
            raise wrong_position()
        found, total = await self._webhooks.ask(lambda registry: registry.page(tenant, after, limit + 1))
        now_us, manages = self._webhooks.now_us(), await self._managed(request)
        shown = [webhook_document(each, now_us, hides_url=not manages(each.tenant)) for each in found[:limit]]
        following = shown[-1].id if len(found) > limit else None
        return json_response(WebhookPage(webhooks=shown, next=following, total=total))

    async def add(self, request: Request) -> Response:
        """Add a webhook."""
        scope, by = await self._scope_and_user(request)
        wanted = await read_document(request, NewWebhook, WEBHOOK_DOCUMENT_BYTES_MAX, optional=True)
        tenant = wanted.tenant or scope.tenant or ""
        if not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        if tenant and (fault := tenant_fault(tenant)):
            raise RequestRefused(400, fault)
        now_us, secret = self._webhooks.now_us(), make_secret()
        new = WebhookRecord(
            id=secrets.token_hex(8), tenant=tenant, url=wanted.url, types=_types(wanted.types),
            gateways=_gateways(wanted.gateways), selector=_selector(wanted.selector), secret=secret, older_secret=None,
            older_until=None, made_at=now_us, changed_at=now_us, changed_by=by, state=WebhookState.ACTIVE.value,
            number=0, holder=None, reached=0, gap_told=0, attempts=0, due_at=0, failing_since=None, failure="",
            delivered_at=None,
        )  # fmt: skip
        note_change(request, subject=new.id, tenant=tenant, after=_audited(new))
        note_secret(request)
        made = await self._webhooks.change(
            lambda registry: registry.add(new, wanted.after, WEBHOOKS_TENANT_MAX, WEBHOOKS_MAX)
        )
        return json_response(webhook_document(made, now_us, secret), 201)

    async def show(self, request: Request) -> Response:
        """Show a webhook."""
        found = await self._get(request, await scope_of(self._access, request))
        manages = await self._managed(request)
        return json_response(webhook_document(found, self._webhooks.now_us(), hides_url=not manages(found.tenant)))

    async def change(self, request: Request) -> Response:
        """Change settings, pause or resume."""
        scope, by = await self._scope_and_user(request)
        found = await self._get(request, scope)
        wanted = await read_document(request, WebhookChange, WEBHOOK_DOCUMENT_BYTES_MAX, optional=True)
        now_us, condition = self._webhooks.now_us(), precondition_of(request)
        changed = _changed(found, wanted, now_us, by)
        note_change(request, before=_audited(found), after=_audited(changed))

        def change(present: WebhookRecord) -> WebhookRecord:
            condition.check(webhook_tag(present))
            return _changed(present, wanted, now_us, by)

        return json_response(webhook_document(await self._store(found, change, condition), now_us))

    async def remove(self, request: Request) -> Response:
        """Remove a webhook."""
        scope, _ = await self._scope_and_user(request)
        found, condition = await self._get(request, scope), precondition_of(request)
        note_change(request, before=_audited(found))

        def check(present: WebhookRecord) -> None:
            condition.check(webhook_tag(present))

        if not await self._webhooks.change(lambda registry: registry.remove(found.id, check)):
            raise _unknown(found.id)
        return json_response(RemovedWebhook(removed=found.id))

    async def rotate(self, request: Request) -> Response:
        """Change the secret."""
        scope, by = await self._scope_and_user(request)
        found = await self._get(request, scope)
        wanted = await read_document(request, NewWebhookSecret, WEBHOOK_DOCUMENT_BYTES_MAX, optional=True)
        now_us, secret, condition = self._webhooks.now_us(), make_secret(), precondition_of(request)
        until = now_us + wanted.overlap_s * 1_000_000
        note_change(request, after={"overlap_s": wanted.overlap_s})
        note_secret(request)

        def change(present: WebhookRecord) -> WebhookRecord:
            condition.check(webhook_tag(present))
            after = present._replace(secret=secret, older_secret=present.secret, older_until=until)
            return after._replace(changed_at=_later(present, now_us), changed_by=by)

        return json_response(webhook_document(await self._store(found, change, condition), now_us, secret))

    async def test(self, request: Request) -> Response:
        """Send a test."""
        scope, _ = await self._scope_and_user(request)
        found = await self._get(request, scope)
        failure = await self._webhooks.test(found)
        if failure is not None:
            raise RequestRefused(502, f"{found.id} did not take it: {failure}")
        return json_response(TestedWebhook(delivered=found.id))

    async def _store(self, found: WebhookRecord, change: Any, condition: Precondition) -> WebhookRecord:
        """Change a webhook in the registry. Raises `RequestRefused`."""
        stored = await self._webhooks.change(lambda registry: registry.change(found.id, change))
        if stored is None:
            condition.check(None)
            raise _unknown(found.id)
        return stored

    async def _get(self, request: Request, scope: Scope) -> WebhookRecord:
        """Return the webhook of a request. Raises `RequestRefused`."""
        identifier = request.path_params["id"]
        known = _is_id(identifier)
        found = await self._webhooks.ask(lambda registry: registry.get(identifier)) if known else None
        if found is None or not scope.covers(found.tenant):
            raise _unknown(identifier)
        note_change(request, subject=found.id, tenant=found.tenant)
        return found

    async def _managed(self, request: Request) -> Callable[[str], bool]:
        """Return whether the user may manage webhooks of a tenant: those who may not see no secrets in URLs."""
        try:
            return (await scope_of(self._access, request, Operation.MANAGE)).covers
        except RequestRefused:
            return lambda _tenant: False

    async def _scope_and_user(self, request: Request) -> tuple[Scope, str]:
        scope = await scope_of(self._access, request, Operation.MANAGE)
        async with self._access.admitted(request) as (grant, _):
            return scope, grant.user if grant is not None else ""


def _is_id(text: str) -> bool:
    """Return whether a text may be the id of a webhook."""
    return text.isascii() and text.isalnum() and len(text) <= _ID_CHARACTERS


def _unknown(identifier: str) -> RequestRefused:
    return RequestRefused(404, f"no webhook {identifier[:64]}", code="webhook-not-found")


def _changed(before: WebhookRecord, wanted: WebhookChange, now_us: int, by: str) -> WebhookRecord:
    """Return a webhook with the changes of a request. Raises `RequestRefused`, `LabelError`."""
    after = before
    if wanted.url is not msgspec.UNSET:
        after = after._replace(url=wanted.url)
    if wanted.types is not msgspec.UNSET:
        after = after._replace(types=_types(wanted.types))
    if wanted.gateways is not msgspec.UNSET:
        after = after._replace(gateways=_gateways(wanted.gateways))
    if wanted.selector is not msgspec.UNSET:
        after = after._replace(selector=_selector(wanted.selector))
    if wanted.paused is True and before.state == WebhookState.ACTIVE.value:
        after = after._replace(state=WebhookState.PAUSED.value)
    if wanted.paused is False:  # also one that waits for its next attempt: it is due now
        after = after._replace(state=WebhookState.ACTIVE.value, attempts=0, due_at=0)
    if after == before:
        return before
    after = after._replace(attempts=0, due_at=0, failing_since=None)  # what failed before says nothing about it now
    return after._replace(changed_at=_later(before, now_us), changed_by=by)


def _later(before: WebhookRecord, now_us: int) -> int:
    """Return the time of a change; no two changes of a webhook have the same, whatever the clocks of hubs say."""
    return max(now_us, before.changed_at + 1)


def _types(words: list[str]) -> str:
    unknown = sorted(set(words) - KNOWN_TYPES)
    if unknown:
        raise RequestRefused(400, f"no type of events {unknown[0][:64]!r}: they are {', '.join(EventType)}")
    return _names(words)


def _gateways(words: list[str]) -> str:
    if fault := next((fault for each in words if (fault := gateway_fault(each))), None):
        raise RequestRefused(400, fault)
    return _names(words)


def _names(words: list[str]) -> str:
    found = sorted(set(words))
    if len(found) > EVENT_FILTER_MAX:
        raise RequestRefused(400, f"a webhook may name {EVENT_FILTER_MAX} types, and as many gateways")
    return msgspec.json.encode(found).decode()


def _selector(text: str) -> str:
    return str(parse_selector(text)) if text else ""


def _audited(webhook: WebhookRecord) -> dict[str, Any]:
    """Return what the audit shows of a webhook: its URL may contain a secret."""
    wanted = webhook.wanted
    filters = {"types": sorted(wanted.types), "gateways": sorted(wanted.gateways), "selector": webhook.selector}
    return {**filters, "state": webhook.state}
