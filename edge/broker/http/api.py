"""The HTTP device API, for devices that can do nothing else.

``POST /t/<address>``         one message, the body as it is: 202 once it is on disk (see `messages.single` for options)
``POST /t``                   a batch (see `messages.batch`); kept or refused as one, with an answer for each in order
                              A topic without a subscriber keeps nothing: 202 with ``Waypost-Subscribers: 0``, in the
                              answer to a batch their number as ``unrouted``.
``GET /c/<address>?wait=30``  the next message of a queue: 200 with its body, 204 when none came in the time

Errors are JSON, ``{"error": …}``: 400 what is wrong, 401 and 403 who may not, 413 too large, 429 and 503 later, 507 the
store is full. A message of `GET /c/` is accepted when its answer has been written to a connection that was still there,
and goes back to the queue otherwise; a device that dies in between has lost it, so commands should be repeatable.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from bridge.message import AMQP, Run
from edge.broker.http.access import Access, Admission
from edge.broker.http.exchange import PublishRequest, ReceivedMessage, SingleReceiver
from edge.broker.http.fields import fields_of
from edge.broker.http.limits import (
    HTTP_ANSWER_S_MAX,
    HTTP_BODY_BYTES_MAX,
    HTTP_BODY_S_MAX,
    HTTP_REQUESTS_MAX,
    HTTP_WAIT_S_MAX,
    HTTP_WAIT_S_MIN,
)
from edge.broker.http.messages import (
    CONTENT_TYPE_CHARACTERS_MAX,
    BadRequest,
    Message,
    batch,
    check_address,
    single,
)
from edge.broker.http.peer import peer_of
from edge.broker.http.polls import Polls
from edge.broker.http.refusal import RETRY_AFTER_S, Refused
from edge.broker.http.route import HttpRoute
from edge.broker.limits import Limits
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import NONE, decode_run
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import Grant
from edge.broker.model.budget import Budget
from edge.broker.model.interfaces import AddressError, Outcome, Refusal, SubscribeOptions
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
    Refusal.FORMAT_INVALID: 400,
}
NO_SUBSCRIBERS: Final = {"Waypost-Subscribers": "0"}
"""Header of an answer that accepts a message to a topic without a subscriber: it is neither stored nor delivered."""
DEVICE: Final = "http"
"""Name of a device that gives none where nobody has to."""
DEVICE_CHARACTERS_MAX: Final = 255


class DeviceApi:
    """The routes, and what is under way over them."""

    def __init__(
        self, router: Router, limits: Limits, access: Access | None = None, budget: Budget | None = None
    ) -> None:
        """`budget`: of the gateway, which bodies under way are counted in."""
        self.publishing = 0
        """Requests under way that publish what has come whole."""
        self.polls = Polls()
        self._router = router
        self._access = access or Access()
        self._body_bytes_max = min(HTTP_BODY_BYTES_MAX, limits.packet_bytes_max)
        self._budget = budget or Budget(limits.memory_bytes_max, "")

    @property
    def routes(self) -> list[HttpRoute]:
        """For an application to mount."""
        return [
            HttpRoute("/t", self._batch, methods=("POST",)),
            HttpRoute("/t/{address:path}", self._publish, methods=("POST",)),
            HttpRoute("/c/{address:path}", self._poll, methods=("GET",)),
        ]

    def origins(self, path: str) -> Collection[str]:
        """Origins whose pages may use a path (CORS); ``*``: all."""
        return ()

    # --- publishing -------------------------------------------------------------------------------------------

    async def _publish(self, request: Request) -> Response:
        return await self._take(request, many=False)

    async def _batch(self, request: Request) -> Response:
        return await self._take(request, many=True)

    async def _take(self, request: Request, *, many: bool) -> Response:
        try:
            async with self._admitted(request) as (device, admission), self._body(request) as body:
                if many:
                    messages = batch(body, request.headers.get("content-type", ""))
                else:
                    address = str(request.path_params["address"])
                    messages = [single(address, body, request.query_params, fields_of(request))]
                _check_sending(admission.grant, messages)
                with self._publishing():
                    publishing = await self._published(device, messages, admission.user)
            return _answer(publishing, messages) if many else _single_answer(publishing)
        except BadRequest as error:
            return Refused(error.status, str(error)).response()
        except Refused as refused:
            return refused.response()
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Count a request whose body is whole: a slow one takes no place of those. Raises Refused."""
        if self.publishing >= HTTP_REQUESTS_MAX:
            raise Refused(503, f"more than {HTTP_REQUESTS_MAX} requests are under way")
        self.publishing += 1
        try:
            yield
        finally:
            self.publishing -= 1

    async def _published(self, device: str, messages: list[Message], user: str) -> PublishRequest:
        publishing = PublishRequest(device, len(messages), user)
        if messages:
            publishing.publish(self._router, messages)
            await self._safe(publishing)
        return publishing

    async def _safe(self, publishing: PublishRequest) -> None:
        """Wait until everything of it has been answered. Raises Refused."""
        try:
            async with asyncio.timeout(HTTP_ANSWER_S_MAX):
                await asyncio.shield(publishing.answered)
        except TimeoutError:
            why = f"no answer in {HTTP_ANSWER_S_MAX:g} s; the message may have been taken all the same"
            raise Refused(504, why) from None
        finally:
            self._router.forget_origin(publishing)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The request's body, counted while it is held."""
        largest = self._body_bytes_max
        too_large = Refused(413, f"a body has at most {largest} bytes")
        said = request.headers.get("content-length", "")
        if said.isascii() and said.isdigit() and int(said) > largest:
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
                        raise Refused(503, "too much is being sent at once")
                    parts.append(part)
                    account.hold(request, size)
            yield b"".join(parts)
        except TimeoutError:
            raise Refused(408, f"the body did not come within {HTTP_BODY_S_MAX:g} s") from None
        finally:
            account.hold(request, 0)

    # --- taking -----------------------------------------------------------------------------------------------

    async def _poll(self, request: Request) -> Response:
        try:
            async with self._admitted(request) as (device, admission):
                address = check_address(str(request.path_params["address"]))
                wait_s = _wait_s(request.query_params.get("wait", "0"))
                _check_receiving(admission.grant, address)
                with self.polls.waiting(request, admission), peer_of(request).parking():
                    return await self._next(request, admission, SingleReceiver(device, admission.user), address, wait_s)
        except BadRequest as error:
            return Refused(error.status, str(error)).response()
        except Refused as refused:
            return refused.response()

    async def _next(
        self, request: Request, admission: Admission, receiver: SingleReceiver, address: str, wait_s: float
    ) -> Response:
        kind = self._router.address_type(address)
        if not (kind.is_queue or kind is AddressType.ANYCAST):
            raise Refused(409, f"{address[:100]} is a {kind.value}; messages are fetched from queues")
        try:
            subscription = self._router.subscribe(receiver, address, SubscribeOptions())
        except AddressError as error:
            busy = error.refusal is Refusal.FULL  # with consumers, not the store
            raise Refused(503 if busy else STATUS[error.refusal], str(error)) from error

        def settle(outcome: Outcome) -> None:
            receiver.settle(outcome)
            self._router.unsubscribe(receiver, subscription, forget=False)

        gone = asyncio.ensure_future(until_gone(request))
        try:
            subscription.pump()
            waited_for = (receiver.received, gone, admission.ended)
            await asyncio.wait(waited_for, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            settle(Outcome.RELEASED)
            raise
        finally:
            gone.cancel()
        if admission.ended.done():
            settle(Outcome.RELEASED)
            raise Refused(401, admission.ended.result().value)
        if receiver.received.done():
            run = _readable(receiver.received.result())
            return Handover(run.bodies[0], _headers_of(run), settle)
        settle(Outcome.RELEASED)
        return Response(status_code=204)

    # --- who --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _admitted(self, request: Request) -> AsyncIterator[tuple[str, Admission]]:
        """(name of the device, what it may do). Raises Refused."""
        async with self._access.admitted(request) as admission:
            if admission.grant is not None:
                yield admission.grant.user, admission
                return
            name = request.query_params.get("device") or fields_of(request).get("device-id") or DEVICE
            if len(name) > DEVICE_CHARACTERS_MAX or not name.isprintable():
                raise Refused(400, f"a device's name has up to {DEVICE_CHARACTERS_MAX} printable characters")
            yield name, admission


class Handover(Response):
    """The answer that carries a message: accepted once it is written, released when nobody was there to read it."""

    def __init__(self, body: bytes, headers: Mapping[str, str], settle: Callable[[Outcome], None]) -> None:
        """`settle` is called once, when this answer has been given or could not be."""
        super().__init__(body, headers=headers)
        self._settle = settle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = Outcome.RELEASED
        try:
            if not await Request(scope, receive).is_disconnected():
                await super().__call__(scope, receive, send)
                outcome = Outcome.ACCEPTED
        finally:
            self._settle(outcome)


def _readable(received: ReceivedMessage) -> Run:
    run = received.stored.run
    return mqtt_runs(run)[0] if run.flags & AMQP else run


def _headers_of(run: Run) -> dict[str, str]:
    """What a message says beside its body. Values are escaped: a sender's property must not end a header line."""
    try:
        properties = decode_run(run.properties)
    except MqttError:
        properties = NONE
    content_type = properties.content_type or ""
    headers = {
        "Content-Type": content_type if content_type and _plain(content_type) else "application/octet-stream",
        "Cache-Control": "no-store",
        "Waypost-Address": quote(run.address, safe="/"),
    }
    if properties.response_topic is not None:
        headers["Waypost-Response-Address"] = quote(properties.response_topic, safe="/")
    if properties.correlation_data is not None:
        headers["Waypost-Correlation-Data"] = base64.b64encode(properties.correlation_data).decode("ascii")
    return headers


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= CONTENT_TYPE_CHARACTERS_MAX


def _single_answer(publishing: PublishRequest) -> Response:
    why = publishing.refusals.get(0)
    if why is not None:
        return Refused(STATUS[why], why.value).response()
    return Response(status_code=202, headers=NO_SUBSCRIBERS if publishing.unrouted else None)


def _answer(publishing: PublishRequest, messages: Sequence[Message]) -> Response:
    """Answer 202 when every message was taken; else the status of the first that was not, and the answer for each in
    order."""
    refusals = publishing.refusals
    counts = {"accepted": len(messages) - len(refusals)}
    if publishing.unrouted:
        counts["unrouted"] = publishing.unrouted
    if not refusals:
        return JSONResponse(counts, 202)
    first = refusals[min(refusals)]
    results = [{"status": STATUS[refusals[i]] if i in refusals else 202} for i in range(len(messages))]
    document = {"error": first.value, **counts, "results": results}
    headers = {"Retry-After": str(RETRY_AFTER_S)} if STATUS[first] == 503 else None
    return JSONResponse(document, STATUS[first], headers=headers)


def _check_sending(grant: Grant | None, messages: Sequence[Message]) -> None:
    for message in messages:
        if grant is not None and not grant.may_send(message.address):
            raise Refused(STATUS[Refusal.NOT_AUTHORIZED], f"{grant.user} must not send to {message.address[:100]}")


def _check_receiving(grant: Grant | None, address: str) -> None:
    if grant is not None and not grant.may_receive(address):
        raise Refused(STATUS[Refusal.NOT_AUTHORIZED], f"{grant.user} must not receive from {address[:100]}")


async def until_gone(request: Request) -> None:
    """Return when the peer has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _wait_s(text: str) -> float:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise BadRequest(f"wait is a whole number of seconds, not {text[:40]!r}")
    return min(max(float(text), HTTP_WAIT_S_MIN), HTTP_WAIT_S_MAX)
