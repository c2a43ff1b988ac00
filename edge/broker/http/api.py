"""HTTP device API, for devices that speak only HTTP.

``POST /t/<address>``         publish one message, the body: 202 once it is on disk (see `messages.parse_single`)
``POST /t``                   publish a batch (see `messages.parse_batch`): one commit, with a result
                              per message. For a topic without a subscriber nothing is stored: 202 with
                              ``Waypost-Subscribers: 0``, or their number as ``unrouted`` in the answer to a batch.
``GET /c/<address>?wait=30``  fetch the next message of a queue: 200 with its body, 204 if none came in time
``DELETE /c/<address>?lock=TOKEN``  accept the message: 204 once that is on disk
``PUT /c/<address>?lock=TOKEN&outcome=released``  return the message, 204: `released`; `modified` (a failed attempt);
                              `rejected` (to the loss ledger, or the dead letter address)

A fetched message is locked for its client. The header `Waypost-Lock` has the token, and `?lock=SECONDS` sets the
duration (30 s). When the lock expires the delivery counts as failed (`Waypost-Delivery-Count`) and the message is
delivered again: at least once. With `?settle=auto` there is no lock: the message is accepted when the client's TCP has
acknowledged the answer. A client that crashes before it reads the answer loses the message: at most once.

A body with ``Content-Encoding: gzip`` is decompressed, up to the size limit of a body.

Errors are problem details (`edge.broker.http.refusal`): 400 invalid, 401 and 403 not allowed, 410 lock not found or
expired, 413 too large, 415 unsupported content encoding, 429 and 503 try later, 507 the store is full.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, NamedTuple, NotRequired, TypedDict
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from bridge.message import AMQP, Run
from edge.broker.http.access import AdmittedClient, HttpAccess
from edge.broker.http.content_encoding import decompress, is_compressed
from edge.broker.http.exchange import MessageFetch, PublishRequest, ReceivedMessage, SingleReceiver
from edge.broker.http.fields import fields_of
from edge.broker.http.handover import AcceptedOnReceipt, LockedAnswer
from edge.broker.http.limits import (
    HTTP_ANSWER_S_MAX,
    HTTP_BODY_BYTES_MAX,
    HTTP_BODY_S_MAX,
    HTTP_LOCK_S,
    HTTP_LOCK_S_MAX,
    HTTP_REQUESTS_MAX,
    HTTP_WAIT_S_MAX,
    HTTP_WAIT_S_MIN,
)
from edge.broker.http.locks import MessageLocks
from edge.broker.http.message_headers import message_headers
from edge.broker.http.messages import (
    BadRequest,
    HttpMessage,
    check_address,
    parse_batch,
    parse_single,
)
from edge.broker.http.peer import peer_of
from edge.broker.http.polls import LongPolls, owner_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import HttpRoute
from edge.broker.limits import Limits
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import NONE, decode_run
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import Grant
from edge.broker.model.budget import Budget
from edge.broker.model.interfaces import AddressError, DeliveryOutcome, Refusal
from edge.broker.model.refusals import RefusalCause
from edge.broker.model.remote import remote_of
from edge.broker.router.router import Router

STATUS: Final = {
    Refusal.NOT_AUTHORIZED: 403,
    Refusal.NO_CONSUMER: 503,
    Refusal.NO_CONSUMER_CONNECTED: 503,
    Refusal.FULL: 507,
    Refusal.NAMES: 429,
    Refusal.STORE_FAILED: 503,
    Refusal.ADDRESS_INVALID: 400,
    Refusal.TOO_LARGE: 413,
    Refusal.REJECTED: 422,
    Refusal.RELEASED: 503,
    Refusal.DELIVERY_FAILED: 503,
    Refusal.UNDELIVERABLE: 503,
    Refusal.NO_ANSWER: 504,
    Refusal.PATH_LOST: 504,
    Refusal.FORMAT_INVALID: 400,
}
SUBJECT: Final = "subject"
"""User property that names a command."""
NO_SUBSCRIBERS: Final = {"Waypost-Subscribers": "0"}
"""Header of the answer if a topic has no subscriber: the message is neither stored nor delivered."""
_OUTCOMES: Final = {
    "released": DeliveryOutcome.RELEASED,
    "modified": DeliveryOutcome.MODIFIED_FAILED,
    "rejected": DeliveryOutcome.REJECTED,
}
"""Outcomes that end a lock without acceptance of the message (AMQP 1.0 section 3.4)."""
DEVICE: Final = "http"
"""Default device name without authentication."""
DEVICE_CHARACTERS_MAX: Final = 255


class BatchOutcome(TypedDict):
    """A batch of which all messages are on disk."""

    accepted: int
    unrouted: NotRequired[int]
    """Messages for topics without a subscriber, which were not stored."""


class HttpDeviceApi:
    """Routes of the API, and the requests in progress."""

    def __init__(
        self, router: Router, limits: Limits, access: HttpAccess | None = None, budget: Budget | None = None
    ) -> None:
        """`budget`: memory budget of the gateway, for request bodies."""
        self.publishing = 0
        """Publishing requests in progress, with their body received."""
        self.polls = LongPolls()
        self.locks = MessageLocks()
        self._router = router
        self._access = access or HttpAccess()
        self._body_bytes_max = min(HTTP_BODY_BYTES_MAX, limits.packet_bytes_max)
        self._budget = budget or Budget(limits.memory_bytes_max, "")

    @property
    def routes(self) -> list[HttpRoute]:
        """Routes to mount in an application."""
        return [
            HttpRoute("/t", self._batch, methods=("POST",)),
            HttpRoute("/t/{address:path}", self._publish, methods=("POST",)),
            HttpRoute("/c/{address:path}", self._poll, methods=("GET",)),
            HttpRoute("/c/{address:path}", self._accept, methods=("DELETE",)),
            HttpRoute("/c/{address:path}", self._return, methods=("PUT",)),
        ]

    def origins(self, path: str) -> Collection[str]:
        """Return the other origins with access to a path (CORS); ``*``: all."""
        return ()

    # --- publishing ---------------------------------------------------------------------------------------------

    async def _publish(self, request: Request) -> Response:
        return await self._take(request, many=False)

    async def _batch(self, request: Request) -> Response:
        return await self._take(request, many=True)

    async def _take(self, request: Request, *, many: bool) -> Response:
        try:
            async with self._admitted(request) as (device, admission), self._body(request) as body:
                if many:
                    messages = parse_batch(body, request.headers.get("content-type", ""))
                else:
                    address = str(request.path_params["address"])
                    messages = [parse_single(address, body, request.query_params, fields_of(request))]
                _check_sending(self._access, request, admission.grant, messages)
                publishing = await self.published(device, messages, admission.user)
            return _answer(publishing, messages) if many else _single_answer(publishing)
        except BadRequest as error:
            return RequestRefused(error.status, str(error)).response()
        except RequestRefused as refused:
            return refused.response()
        except ClientDisconnect:
            return Response(status_code=400)  # the client has gone

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Count a request with a complete body, so that slow clients do not use up the limit. Raises RequestRefused."""
        if self.publishing >= HTTP_REQUESTS_MAX:
            raise RequestRefused(503, f"limit of {HTTP_REQUESTS_MAX} requests in progress reached")
        self.publishing += 1
        try:
            yield
        finally:
            self.publishing -= 1

    async def published(self, device: str, messages: list[HttpMessage], user: str) -> PublishRequest:
        """Publish messages, and wait until all are answered. Raises RequestRefused."""
        with self._publishing():
            publishing = PublishRequest(device, len(messages), user)
            if messages:
                publishing.publish(self._router, messages)
                await self._wait_answered(publishing)
            return publishing

    async def _wait_answered(self, publishing: PublishRequest) -> None:
        """Wait until all messages are answered. Raises RequestRefused."""
        try:
            async with asyncio.timeout(HTTP_ANSWER_S_MAX):
                await asyncio.shield(publishing.answered)
        except TimeoutError:
            why = f"no answer within {HTTP_ANSWER_S_MAX:g} s; the message may have been accepted"
            raise RequestRefused(504, why) from None
        finally:
            self._router.forget_origin(publishing)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """Receive and decompress the body of a request, counted in the memory budget. Raises RequestRefused."""
        largest = self._body_bytes_max
        compressed = is_compressed(request)
        too_large = RequestRefused(413, f"a body has at most {largest} bytes")
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > largest:
            raise too_large
        parts: list[bytes] = []
        size = 0
        account = self._budget.bodies_at(remote_of(request.client.host if request.client is not None else ""))
        try:
            async with asyncio.timeout(HTTP_BODY_S_MAX):
                async for part in request.stream():
                    size += len(part)
                    if size > largest:
                        raise too_large
                    if not account.has_room(len(part)):
                        raise RequestRefused(503, "memory limit for request bodies reached")
                    parts.append(part)
                    account.hold(request, size)
            body = b"".join(parts)
            if compressed:
                body = decompress(body, largest)
                if not account.has_room(len(body)):
                    raise RequestRefused(503, "memory limit for request bodies reached")
                account.hold(request, size + len(body))
            yield body
        except TimeoutError:
            raise RequestRefused(408, f"the body was not complete within {HTTP_BODY_S_MAX:g} s") from None
        finally:
            account.hold(request, 0)

    # --- fetching -----------------------------------------------------------------------------------------------

    async def _poll(self, request: Request) -> Response:
        try:
            async with self._admitted(request) as (device, admission):
                address = check_address(str(request.path_params["address"]))
                options = _fetch_options(request.query_params)
                _check_receiving(self._access, request, admission.grant, address)
                if not options.settles:
                    self.locks.check_room(owner_of(request, admission))
                with self.polls.waiting(request, admission, device, address), peer_of(request).parking():
                    fetch = self._fetch(SingleReceiver(device, admission.user), address)
                    return await self._next(request, admission, fetch, address, options)
        except BadRequest as error:
            return RequestRefused(error.status, str(error)).response()
        except RequestRefused as refused:
            return refused.response()

    def _fetch(self, receiver: SingleReceiver, address: str) -> MessageFetch:
        kind = self._router.addresses.type_of(address)
        if not (kind.is_queue or kind is AddressType.ANYCAST):
            raise RequestRefused(409, f"{address[:100]} is a {kind.value}; messages can be fetched from queues only")
        try:
            return MessageFetch(self._router, receiver, address)
        except AddressError as error:
            busy = error.refusal is Refusal.FULL  # consumers, not the store
            raise RequestRefused(503 if busy else STATUS[error.refusal], str(error)) from error

    async def _next(
        self, request: Request, admission: AdmittedClient, fetch: MessageFetch, address: str, options: FetchOptions
    ) -> Response:
        gone = asyncio.ensure_future(until_gone(request))
        try:
            fetch.pump()
            waited_for = (fetch.receiver.received, gone, admission.ended)
            await asyncio.wait(waited_for, timeout=options.wait_s, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            fetch.settle(DeliveryOutcome.UNANSWERED)
            raise
        finally:
            gone.cancel()
        if admission.ended.done():
            fetch.settle(DeliveryOutcome.UNANSWERED)
            raise RequestRefused(401, admission.ended.result().value)
        if not fetch.receiver.received.done():
            fetch.settle(DeliveryOutcome.UNANSWERED)
            return Response(status_code=204)
        message = fetch.receiver.take()
        self._router.figures.sent += 1
        run = _readable(message)
        headers = _headers_of(run) | {"Waypost-Delivery-Count": str(message.attempts)}
        if options.settles:
            return AcceptedOnReceipt(run.bodies[0], headers, fetch.settle)
        owner = owner_of(request, admission)
        token = self.locks.add(owner, admission.user, address, fetch, options.lock_s)
        headers |= {"Waypost-Lock": token, "Waypost-Lock-Seconds": str(options.lock_s)}
        return LockedAnswer(run.bodies[0], headers, partial(self.locks.return_unread, token))

    async def _accept(self, request: Request) -> Response:
        """Accept a locked message; answer once that is on disk."""

        async def settle(token: str, user: str, address: str) -> None:
            fetch = self.locks.settle(token, user, address, DeliveryOutcome.ACCEPTED)
            try:
                async with asyncio.timeout(HTTP_ANSWER_S_MAX):
                    why = await fetch.confirmed()
            except TimeoutError:
                raise RequestRefused(504, f"no commit within {HTTP_ANSWER_S_MAX:g} s; try again") from None
            if why is not None:
                raise RequestRefused(STATUS[why], f"{why.value}: the message may be delivered again; try again")

        return await self._settled(request, settle)

    async def _return(self, request: Request) -> Response:
        """End a lock without accepting the message."""
        text = request.query_params.get("outcome", DeliveryOutcome.RELEASED.value)

        async def settle(token: str, user: str, address: str) -> None:
            if text not in _OUTCOMES:
                raise BadRequest(f"outcome is one of {', '.join(_OUTCOMES)}, not {text[:40]!r}")
            self.locks.settle(token, user, address, _OUTCOMES[text])

        return await self._settled(request, settle)

    async def _settled(self, request: Request, settle: Callable[[str, str, str], Awaitable[None]]) -> Response:
        """Call `settle` with token, user and address of the lock, then answer 204."""
        try:
            async with self._admitted(request) as (_, admission):
                address = check_address(str(request.path_params["address"]))
                _check_receiving(self._access, request, admission.grant, address)
                await settle(_token_of(request), admission.user, address)
                return Response(status_code=204)
        except BadRequest as error:
            return RequestRefused(error.status, str(error)).response()
        except RequestRefused as refused:
            return refused.response()

    # --- client -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _admitted(self, request: Request) -> AsyncIterator[tuple[str, AdmittedClient]]:
        """Authenticate a client; yield device name and client. Raises RequestRefused."""
        async with self._access.admitted(request) as admission:
            if admission.grant is not None:
                yield admission.grant.user, admission
                return
            name = request.query_params.get("device") or fields_of(request).get("device-id") or DEVICE
            if len(name) > DEVICE_CHARACTERS_MAX or not name.isprintable():
                raise RequestRefused(400, f"a device's name has up to {DEVICE_CHARACTERS_MAX} printable characters")
            yield name, admission


class FetchOptions(NamedTuple):
    """Options of a request for a message."""

    wait_s: float
    lock_s: int
    settles: bool
    """The answer settles the message, without a lock."""


def _readable(received: ReceivedMessage) -> Run:
    run = received.stored.run
    return mqtt_runs(run)[0] if run.flags & AMQP else run


def _headers_of(run: Run) -> dict[str, str]:
    """Return the headers for the properties of a message, escaped so that none can end a header line."""
    try:
        properties = decode_run(run.properties)
    except MqttError:
        properties = NONE
    headers = message_headers(properties.content_type) | {"Waypost-Address": quote(run.address, safe="/")}
    if properties.response_topic is not None:
        headers["Waypost-Response-Address"] = quote(properties.response_topic, safe="/")
    subjects = [value for name, value in properties.user_property if name == SUBJECT]
    if subjects:
        headers["Waypost-Subject"] = quote(subjects[0], safe="/ ")
    if properties.correlation_data is not None:
        headers["Waypost-Correlation-Data"] = base64.b64encode(properties.correlation_data).decode("ascii")
    return headers


def _single_answer(publishing: PublishRequest) -> Response:
    why = publishing.refusals.get(0)
    if why is not None:
        return RequestRefused(STATUS[why], why.value).response()
    return Response(status_code=202, headers=NO_SUBSCRIBERS if publishing.unrouted else None)


def _answer(publishing: PublishRequest, messages: Sequence[HttpMessage]) -> Response:
    """Answer 202 if every message was accepted; else the status of the first refusal, and a result for each."""
    refusals = publishing.refusals
    counts: BatchOutcome = {"accepted": len(messages) - len(refusals)}
    if publishing.unrouted:
        counts["unrouted"] = publishing.unrouted
    if not refusals:
        return JSONResponse(counts, 202)
    first = refusals[min(refusals)]
    results = [{"status": STATUS[refusals[i]] if i in refusals else 202} for i in range(len(messages))]
    return RequestRefused(STATUS[first], first.value).response(**counts, results=results)


def _check_sending(access: HttpAccess, request: Request, grant: Grant | None, messages: Sequence[HttpMessage]) -> None:
    for message in messages:
        if grant is not None and not grant.may_send(message.address):
            access.record(request, RefusalCause.NOT_ALLOWED_TO_SEND, grant.user, message.address)
            raise RequestRefused(
                STATUS[Refusal.NOT_AUTHORIZED], f"{grant.user} must not send to {message.address[:100]}"
            )


def _check_receiving(access: HttpAccess, request: Request, grant: Grant | None, address: str) -> None:
    if grant is not None and not grant.may_receive(address):
        access.record(request, RefusalCause.NOT_ALLOWED_TO_RECEIVE, grant.user, address)
        raise RequestRefused(STATUS[Refusal.NOT_AUTHORIZED], f"{grant.user} must not receive from {address[:100]}")


async def until_gone(request: Request) -> None:
    """Return when the peer has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _fetch_options(query: Mapping[str, str]) -> FetchOptions:
    """Parse the query of a GET. Raises BadRequest."""
    settle = query.get("settle", "lock")
    if settle not in ("lock", "auto"):
        raise BadRequest(f"settle is lock or auto, not {settle[:40]!r}")
    lock_s = _seconds("lock", query.get("lock", str(HTTP_LOCK_S)))
    if not 1 <= lock_s <= HTTP_LOCK_S_MAX:
        raise BadRequest(f"lock is a whole number of seconds from 1 to {HTTP_LOCK_S_MAX}, not {lock_s}")
    return FetchOptions(_wait_s(query.get("wait", "0")), lock_s, settle == "auto")


def _token_of(request: Request) -> str:
    """Return the lock token of a request. Raises BadRequest."""
    token = request.query_params.get("lock", "")
    if not token:
        raise BadRequest("lock is missing: add ?lock= with the value of Waypost-Lock in the answer to GET")
    return token


def _wait_s(text: str) -> float:
    return min(max(float(_seconds("wait", text)), HTTP_WAIT_S_MIN), HTTP_WAIT_S_MAX)


def _seconds(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise BadRequest(f"{name} is a whole number of seconds, not {text[:40]!r}")
    return int(text)
