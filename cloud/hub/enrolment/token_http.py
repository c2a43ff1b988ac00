"""Enrolment tokens over HTTP, for operators.

``GET  /api/v1/tokens``        tokens, the newest first: ``?state=open|spent|revoked|expired&id=&after=&limit=``
``POST /api/v1/tokens``        `tokens.TokenRequest`: 1 to 500 new tokens, with their texts and QR codes, shown once
``DELETE /api/v1/tokens/<id>`` revoke a token; 409 if a gateway has used it

Reading needs the right to view, changes the right to manage: for one's own tenant, or with ``$fleet`` for every tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change, note_secret
from cloud.hub.enrolment.http import STATUS
from cloud.hub.enrolment.limits import TOKEN_DOCUMENT_BYTES_MAX
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.enrolment.tokens import NewTokens, TokenPage, TokenRequest, make_tokens, new_token, token_document
from cloud.hub.json_http import answering, json_response
from cloud.hub.labels import apply_changes, validate_labels
from cloud.hub.page_position import decode_time_position
from cloud.hub.peers import DEFAULT_TENANT, gateway_fault, tenant_fault
from cloud.hub.registry.enrolments import EnrolmentRefused, TokenFilter
from cloud.hub.scope import scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.body import read_body
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

TOKENS: Final = "/api/v1/tokens"
answered: Final = answering({EnrolmentRefused: lambda refused: STATUS[refused.reason]})
_STATES: Final = ("open", "spent", "revoked", "expired")


def routes(enrolment: Enrolment, access: HttpAccess, hub_url: Callable[[], str]) -> list[HttpRoute]:
    """Return the routes of this module. `hub_url` returns the URL of the hub for gateways."""
    api = _TokenApi(enrolment, access, hub_url)
    return [
        HttpRoute(TOKENS, answered(api.page), methods=PURE),
        HttpRoute(TOKENS, answered(api.create, "token.create"), methods=("POST",)),
        HttpRoute(TOKENS + "/{id}", answered(api.revoke, "token.revoke"), methods=("DELETE",)),
    ]


class _TokenApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, enrolment: Enrolment, access: HttpAccess, hub_url: Callable[[], str]) -> None:
        self._enrolment = enrolment
        self._access = access
        self._hub_url = hub_url

    async def page(self, request: Request) -> Response:
        scope, query = await scope_of(self._access, request), request.query_params
        state, limit = query.get("state", ""), limit_of(query)
        if state and state not in _STATES:
            raise RequestRefused(400, f"state must be one of {', '.join(_STATES)}")
        after, now_us = query.get("after"), self._enrolment.now_us()
        wanted = TokenFilter(scope.tenant, state, query.get("id", ""), decode_time_position(after) if after else None)
        found, total = await self._enrolment.ask(lambda registry: registry.page(wanted, limit + 1, now_us))
        last = found[limit - 1] if len(found) > limit else None
        following = f"{last.created_at}-{last.id}" if last is not None else None
        rows = [token_document(each, now_us) for each in found[:limit]]
        return json_response(TokenPage(tokens=rows, next=following, total=total))

    async def create(self, request: Request) -> Response:
        scope = await scope_of(self._access, request, Operation.MANAGE)
        body = await read_body(request, TOKEN_DOCUMENT_BYTES_MAX, "the request")
        try:
            wanted = msgspec.json.decode(body or b"{}", type=TokenRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestRefused(400, f"invalid request: {error}") from None
        tenant = wanted.tenant or scope.tenant or DEFAULT_TENANT
        if not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant} is outside your scope")
        _check(wanted, tenant)
        now_us = self._enrolment.now_us()
        made = make_tokens(wanted, tenant, self._enrolment.authority.fingerprint, now_us)
        await self._enrolment.ask(lambda registry: registry.add([record for _, record in made]))
        rows = [new_token(token, record) for token, record in made]
        shown = {"tokens": len(made), "gateways": wanted.gateways, "labels": wanted.labels}
        note_change(request, subject=", ".join(record.id for _, record in made[:10]), tenant=tenant, after=shown)
        note_secret(request)
        return json_response(NewTokens(hub=self._hub_url(), tokens=rows), 201)

    async def revoke(self, request: Request) -> Response:
        scope = await scope_of(self._access, request, Operation.MANAGE)
        identifier, now_us = request.path_params["id"], self._enrolment.now_us()
        found = await self._enrolment.ask(lambda registry: registry.token(identifier))
        if found is None or not scope.covers(found.tenant):
            raise RequestRefused(404, f"no token {identifier[:64]}", code="token-not-found")
        if found.spent_at is not None:
            raise RequestRefused(
                409,
                f"token {identifier} was used to enrol a gateway",
                code="token-spent",
                next_step="revoke the gateway instead",
            )
        note_change(request, tenant=found.tenant)
        await self._enrolment.ask(lambda registry: registry.revoke_token(identifier, now_us))
        after = await self._enrolment.ask(lambda registry: registry.token(identifier))
        return json_response(token_document(after or found, now_us))


def _check(wanted: TokenRequest, tenant: str) -> None:
    """Check names and labels. Raises `RequestRefused`, `LabelError`."""
    faults = (tenant_fault(tenant), *(gateway_fault(each) for each in wanted.gateways))
    if fault := next(filter(None, faults), None):
        raise RequestRefused(400, fault)
    if len(set(wanted.gateways)) < len(wanted.gateways):
        raise RequestRefused(400, "a gateway is named twice: one token enrols it once")
    validate_labels(wanted.labels)
    apply_changes({}, wanted.labels)
