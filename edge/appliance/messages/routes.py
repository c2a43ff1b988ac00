"""HTTP routes of stored messages, for the console and `waypost message`.

=======================================  ======  ==================================================================
``GET /api/v1/dead-letters``             view    `documents.DeadLetterList`: groups by reason and origin
``GET /api/v1/dead-letters/messages``    recv    `documents.MessagePage`: ``?queue=&reason=&from=&after=&limit=&bytes=``
                                                 ``&since=&until=&q=&where=&json=``
``POST /api/v1/dead-letters/retry``      manage  send some back to where they were dropped: `documents.DeadLetterStep`
``POST /api/v1/dead-letters/move``       manage  send some to an address, with ``recv``: `documents.DeadLetterMove`
``POST /api/v1/dead-letters/delete``     manage  drop some, with an entry in the loss ledger: `DeadLetterStep`
``GET /api/v1/messages``                 recv    messages that an address keeps, `documents.MessagePage`:
                                                 ``?address=&order=&after=&limit=&bytes=&since=&until=&q=&where=&json=``
``POST /api/v1/messages``                send    publish one as the signed-in user: `documents.NewMessage`
``GET /api/v1/messages/scheduled``       view    messages that wait for their delivery time,
                                                 `documents.ScheduledMessageList`: ``?address=&user=&after=&limit=``
``DELETE /api/v1/messages/scheduled``    manage  drop those of ``?address=&user=``: `documents.ScheduledDeletion`
``DELETE /api/v1/messages/scheduled/N``  manage  drop the message with this number, with an entry in the loss ledger
``GET /api/v1/messages/live``            recv    messages as they arrive, `live.LiveMessages`: ``?filter=``
=======================================  ======  ==================================================================

`where` is a selector (``unit = 'K' AND message.size > 100``), `json` a condition on the body (``$.t > 30``): see
`conditions`. A change takes up to 1 000 messages; its answer, `documents.DeadLetterOutcome`, has the `after` of the
next one. To see messages a user needs the right to receive from their address. Errors are problem details.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.publisher import client_of, device_of
from bridge.topic_filter import filter_fault
from edge.appliance.messages.browsing import MessageBrowser, MessageQuery
from edge.appliance.messages.conditions import MessageCondition
from edge.appliance.messages.dead_letters import DeadLetterService
from edge.appliance.messages.documents import DeadLetterMove, DeadLetterStep, NewMessage, PublishOutcome
from edge.appliance.messages.limits import BODY_BYTES_SHOWN, BODY_BYTES_SHOWN_MAX, PROPERTY_BYTES_MAX
from edge.appliance.messages.live import LiveMessages
from edge.appliance.messages.scheduled import ScheduledMessageService, ScheduledSelection
from edge.appliance.store.selection import moment
from edge.broker.http.access import USER, AdmittedClient, HttpAccess
from edge.broker.http.api import STATUS, HttpDeviceApi
from edge.broker.http.application import needing
from edge.broker.http.audit import note_rehearsal
from edge.broker.http.json_documents import answering, json_answer, read_document
from edge.broker.http.messages import JSON, BadRequest, HttpMessage, check_address, check_content_type
from edge.broker.http.queries import choice_of, limit_of, number_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Grant
from edge.broker.model.refusals import RefusalCause
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.store.contract import Store

S = TypeVar("S", bound=DeadLetterStep)


def message_routes(router: Router, store: Store, devices: HttpDeviceApi, access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the routes of this module. `devices` publishes."""
    dead = _DeadLetters(DeadLetterService(router, store, lambda *sent: _may_send(access.gate, *sent)), access)
    messages = _Messages(router, store, devices, access)
    scheduled = _Scheduled(ScheduledMessageService(router))
    view, manage = needing(access.require_view), needing(access.require_manage)
    return [
        HttpRoute("/api/v1/dead-letters", view(dead.groups), methods=PURE),
        HttpRoute("/api/v1/dead-letters/messages", answering(dead.messages), methods=PURE),
        HttpRoute("/api/v1/dead-letters/retry", manage(dead.retry), methods=("POST",)),
        HttpRoute("/api/v1/dead-letters/move", manage(dead.move), methods=("POST",)),
        HttpRoute("/api/v1/dead-letters/delete", manage(dead.delete), methods=("POST",)),
        HttpRoute("/api/v1/messages", answering(messages.page), methods=PURE),
        HttpRoute("/api/v1/messages", answering(messages.publish), methods=("POST",)),
        HttpRoute("/api/v1/messages/scheduled", view(scheduled.page), methods=PURE),
        HttpRoute("/api/v1/messages/scheduled", manage(scheduled.delete_selected), methods=("DELETE",)),
        HttpRoute("/api/v1/messages/scheduled/{number}", manage(scheduled.delete), methods=("DELETE",)),
        HttpRoute("/api/v1/messages/live", answering(messages.live), methods=("GET",)),
    ]


class _DeadLetters:
    def __init__(self, service: DeadLetterService, access: HttpAccess) -> None:
        self._service = service
        self._access = access

    async def groups(self, request: Request) -> Response:
        return json_answer(await self._service.groups())

    async def messages(self, request: Request) -> Response:
        query = request.query_params
        selection = DeadLetterStep(
            queue=query.get("queue", ""),
            reason=query.get("reason"),
            origin=query.get("from"),
            after=number_of(query, "after"),
        )
        await check_receiving(self._access, request, selection.queue)
        wanted = MessageQuery(
            address="#",
            since_ns=_moment_of(query, "since"),
            until_ns=_moment_of(query, "until"),
            condition=condition_of(query),
            limit=limit_of(query),
            bytes_shown=bytes_of(request),
        )
        return json_answer(await self._service.page(selection, wanted))

    async def retry(self, request: Request) -> Response:
        selection = await _selection(request, DeadLetterStep)
        return json_answer(await self._service.retry(selection, request.scope.get(USER, "")))

    async def move(self, request: Request) -> Response:
        selection = await _selection(request, DeadLetterMove)
        await check_receiving(self._access, request, selection.queue)
        return json_answer(await self._service.move(selection, selection.to, request.scope.get(USER, "")))

    async def delete(self, request: Request) -> Response:
        selection = await _selection(request, DeadLetterStep)
        return json_answer(await self._service.delete(selection, request.scope.get(USER, "")))


class _Scheduled:
    def __init__(self, service: ScheduledMessageService) -> None:
        self._service = service

    async def page(self, request: Request) -> Response:
        query = request.query_params
        return json_answer(self._service.page(_scheduled(query), number_of(query, "after"), limit_of(query)))

    async def delete_selected(self, request: Request) -> Response:
        return json_answer(await self._service.delete(_scheduled(request.query_params)))

    async def delete(self, request: Request) -> Response:
        return json_answer(await self._service.delete_one(request.path_params["number"]))


class _Messages:
    def __init__(self, router: Router, store: Store, devices: HttpDeviceApi, access: HttpAccess) -> None:
        self._browser = MessageBrowser(router, store)
        self._live = LiveMessages(router, access)
        self._devices = devices
        self._access = access

    async def page(self, request: Request) -> Response:
        query = request.query_params
        wanted = MessageQuery(
            address=query.get("address", ""),
            newest=choice_of(query, "order", ("newest", "oldest")) == "newest",
            after=number_of(query, "after"),
            since_ns=_moment_of(query, "since"),
            until_ns=_moment_of(query, "until"),
            condition=condition_of(query),
            limit=limit_of(query),
            bytes_shown=bytes_of(request),
        )
        if fault := filter_fault(wanted.address) if wanted.address else "it is missing":
            raise RequestRefused(400, f"address is a name, or a filter of topics: {fault}")
        await check_receiving(self._access, request, wanted.address)
        return json_answer(await self._browser.page(wanted))

    async def publish(self, request: Request) -> Response:
        wanted = await read_document(request, NewMessage)
        message = _message_of(wanted)
        async with self._access.admitted(request) as client:
            grant = client.grant
            if grant is not None and not grant.may_send(wanted.address):
                self._access.record(request, RefusalCause.NOT_ALLOWED_TO_SEND, grant.user, wanted.address)
                raise RequestRefused(403, f"{grant.user} must not send to {wanted.address[:100]}")
            done = await self._devices.published(client.user or "console", [message], client.user)
        if done.refusals:
            why = done.refusals[0]
            raise RequestRefused(STATUS[why], why.value)
        return json_answer(PublishOutcome(subscribers=not done.unrouted))

    async def live(self, request: Request) -> Response:
        return await self._live.respond(request, lambda client, wanted: _check(self._access, request, client, wanted))


def _may_send(gate: Authenticator | None, publisher: str, address: str) -> bool:
    """Return True if a publisher may send to an address; also for one of the bridge, which is not a user here."""
    user, client = device_of(publisher), client_of(publisher)
    if gate is None or gate.open or not gate.knows(user):
        return True
    return Grant(user, client, gate.rules_of(user, client)).may_send(address)


async def _selection(request: Request, kind: type[S]) -> S:
    """Return the selection in the body of a request; a dry run is left out of the audit. Raises RequestRefused."""
    selection = await read_document(request, kind)
    if selection.dry_run:
        note_rehearsal(request.scope)
    return selection


async def check_receiving(access: HttpAccess, request: Request, address: str) -> None:
    """Raise RequestRefused unless the user of a request may receive from an address."""
    async with access.admitted(request) as client:
        _check(access, request, client, address)


def _check(access: HttpAccess, request: Request, client: AdmittedClient, address: str) -> None:
    grant = client.grant
    if grant is not None and not grant.may_receive(address):
        access.record(request, RefusalCause.NOT_ALLOWED_TO_RECEIVE, grant.user, address)
        raise RequestRefused(403, f"{grant.user} must not receive from {address[:100]}: it needs recv:{address[:100]}")


def _message_of(wanted: NewMessage) -> HttpMessage:
    """Return the message to publish. Raises RequestRefused."""
    try:
        body = wanted.body.encode() if wanted.base64 is None else base64.b64decode(wanted.base64, validate=True)
        check_address(wanted.address)
        content_type = check_content_type(wanted.content_type)
        properties = tuple((_checked(name), _checked(text)) for name, text in wanted.properties.items())
    except BadRequest as error:
        raise RequestRefused(error.status, str(error)) from None
    except ValueError:  # of base64, or half a surrogate pair
        raise RequestRefused(400, "the body is not valid text or Base64") from None
    if (content_type or "").partition(";")[0].strip().lower() == JSON:
        try:
            msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise RequestRefused(400, f"the body is not JSON: {error}") from None
    return HttpMessage(
        address=wanted.address,
        body=body,
        retain=wanted.retain,
        content_type=content_type,
        ttl_s=wanted.ttl_s,
        user_properties=properties,
    )


def _checked(text: str) -> str:
    """Return the name or value of a property. Raises BadRequest, UnicodeEncodeError."""
    if "\0" in text or len(text.encode()) > PROPERTY_BYTES_MAX:
        raise BadRequest(
            f"names and values of properties have up to {PROPERTY_BYTES_MAX} bytes, without null characters"
        )
    return text


def _scheduled(query: Mapping[str, str]) -> ScheduledSelection:
    return ScheduledSelection(query.get("address", ""), query.get("user", ""))


def _moment_of(query: Mapping[str, str], name: str) -> int | None:
    """Return a time of a query in UTC nanoseconds. Raises RequestRefused."""
    text = query.get(name)
    if not text:
        return None
    try:
        return moment(text, time.time())
    except (ValueError, OverflowError) as error:
        raise RequestRefused(400, f"{name}: {error}") from None


def condition_of(query: Mapping[str, str]) -> MessageCondition:
    """Return the condition of a request: ``q``, ``where`` and ``json``. Raises RequestRefused."""
    return MessageCondition(query.get("q", ""), query.get("where", ""), query.get("json", ""))


def bytes_of(request: Request) -> int:
    """Return how many bytes of each body a request wants. Raises RequestRefused."""
    text = request.query_params.get("bytes", str(BODY_BYTES_SHOWN))
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= BODY_BYTES_SHOWN_MAX):
        raise RequestRefused(400, f"bytes is a whole number up to {BODY_BYTES_SHOWN_MAX}, not {text[:40]!r}")
    return int(text)
