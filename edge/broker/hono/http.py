"""HTTP adapter of Hono, in addition to the gateway's own HTTP API: telemetry, events, commands and responses.

``POST /telemetry``, ``POST /event``                       an authenticated device, or a gateway for itself
``PUT /telemetry/<tenant>/<device>``, ``/event/…``         a gateway for a device, or any device without authentication
``POST /command/res/<request>``                            a device's response to a command
``PUT /command/res/<tenant>/<device>/<request>``           a gateway's response on behalf of a device

``hono-ttd``, ``hono-ttl``, ``qos-level`` and ``hono-cmd-status`` are headers or query parameters. The status 202 is
sent once the message is on disk; for telemetry with ``qos-level: 0`` once it is received. With ``hono-ttd`` the answer
waits that many seconds for a command. The command is accepted when the device's TCP has acknowledged the answer. If the
connection ends before, the delivery counts as failed and the command is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bridge.message import AMQP, DURABLE, Run
from edge.broker.hono import messages
from edge.broker.hono.command_router import CommandSubscription
from edge.broker.hono.commands import DeviceCommand, read_command
from edge.broker.hono.errors import DeviceError, bad_request, refusal_error
from edge.broker.hono.limits import CORS_S_MAX, TTD_S_MAX
from edge.broker.hono.service import DeviceService
from edge.broker.hono.tenant import DevicePrincipal
from edge.broker.hono.topics import DeviceEndpoint, content_type_of, seconds_of, status_of
from edge.broker.http.access import BASIC, AdmittedClient, HttpAccess, parse_basic
from edge.broker.http.api import HttpDeviceApi, until_gone
from edge.broker.http.exchange import PublishRequest, SingleReceiver
from edge.broker.http.fields import fields_of
from edge.broker.http.handover import AcceptedOnReceipt
from edge.broker.http.message_headers import message_headers
from edge.broker.http.peer import peer_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import HttpRoute
from edge.broker.limits import Limits
from edge.broker.model.authorization import Ended
from edge.broker.model.budget import Budget
from edge.broker.model.interfaces import AddressError, DeliveryOutcome
from edge.broker.router.batch import Publication

_PUBLISHED: Final = 202
_PATHS: Final = ("/telemetry", "/event", "/command/")
"""Prefixes of Hono's paths."""

CORS_REQUEST_HEADERS: Final = (
    "Authorization", "Content-Type", "hono-ttd", "hono-ttl", "qos-level", "hono-cmd-status",
)  # fmt: skip
"""Headers that a page of another origin may send."""
CORS_RESPONSE_HEADERS: Final = ("hono-command", "hono-cmd-req-id", "hono-cmd-target-device")
"""Headers of an answer that such a page may read."""


class RequestSender(NamedTuple):
    """Sender of a request, and the device of its message."""

    principal: DevicePrincipal | None
    device: str
    named: bool
    """True if the path names the device."""


class HonoApi(HttpDeviceApi):
    """Routes of `HttpDeviceApi` and of Hono."""

    def __init__(
        self, service: DeviceService, limits: Limits, access: HttpAccess | None = None, budget: Budget | None = None
    ) -> None:
        super().__init__(service.router, limits, access, budget)
        self._service = service

    @property
    def routes(self) -> list[HttpRoute]:
        return [
            *super().routes,
            self._route("/telemetry", self._telemetry, "POST"),
            self._route("/telemetry/{rest:path}", self._telemetry, "PUT"),
            self._route("/event", self._event, "POST"),
            self._route("/event/{rest:path}", self._event, "PUT"),
            self._route("/command/res/{rest:path}", self._response, "POST", "PUT"),
        ]

    def _route(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], *methods: str) -> HttpRoute:
        """Create a route, with CORS if pages of other origins are allowed."""
        origins = self._service.cors_origins
        if not origins:
            return HttpRoute(path, endpoint, methods=methods)
        cors = Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=methods,
            allow_headers=CORS_REQUEST_HEADERS,
            expose_headers=CORS_RESPONSE_HEADERS,
            max_age=CORS_S_MAX,
        )

        async def answer(request: Request) -> Response:
            if request.method == "OPTIONS":  # not a preflight, which the middleware answers
                return Response(status_code=204)
            return await endpoint(request)

        return HttpRoute(path, answer, methods=(*methods, "OPTIONS"), middleware=[cors])

    def origins(self, path: str) -> Collection[str]:
        return self._service.cors_origins if path.startswith(_PATHS) else super().origins(path)

    async def _telemetry(self, request: Request) -> Response:
        return await self._answered(request, DeviceEndpoint.TELEMETRY)

    async def _event(self, request: Request) -> Response:
        return await self._answered(request, DeviceEndpoint.EVENT)

    async def _response(self, request: Request) -> Response:
        return await self._answered(request, DeviceEndpoint.RESPONSE)

    async def _answered(self, request: Request, endpoint: DeviceEndpoint) -> Response:
        try:
            async with self._admitted(request) as (name, admission), self._body(request) as body:
                principal = self._principal(request, name if admission.grant is not None else None)
                if endpoint is DeviceEndpoint.RESPONSE:
                    return await self._respond(request, principal, body)
                sender = self._sender(request, principal)
                return await self._upload(request, endpoint, sender, body, admission)
        except DeviceError as error:
            return RequestRefused(error.status, str(error)).response()
        except RequestRefused as refused:
            return refused.response()
        except ClientDisconnect:
            return Response(status_code=400)  # the client has gone

    # --- client ----------------------------------------------------------------------------------------------------

    def _principal(self, request: Request, user: str | None) -> DevicePrincipal | None:
        """Return the sending device; None without authentication. Raises DeviceError or RequestRefused."""
        if user is None:
            if "authorization" not in request.headers:
                return None
            return self._service.tenant.principal(parse_basic(request.headers["authorization"], BASIC)[0])
        principal = self._service.tenant.principal(user)
        if principal is None:
            raise DeviceError(403, f"{user} is not a device of tenant {self._service.tenant.name}")
        return principal

    def _sender(self, request: Request, principal: DevicePrincipal | None) -> RequestSender:
        rest = request.path_params.get("rest")
        if rest is None:
            return RequestSender(principal, self._service.tenant.device(principal, "", ""), named=False)
        levels = str(rest).split("/")
        if len(levels) != 2 or not levels[1]:
            raise bad_request("the path must end with <tenant>/<device> or /<device>")
        return RequestSender(principal, self._service.tenant.device(principal, *levels), named=True)

    # --- telemetry and events -----------------------------------------------------------------------------------

    async def _upload(
        self, request: Request, endpoint: DeviceEndpoint, sender: RequestSender, body: bytes, admission: AdmittedClient
    ) -> Response:
        ttd_text = _field(request, "hono-ttd")
        ttd = min(seconds_of(ttd_text, "hono-ttd"), TTD_S_MAX) if ttd_text is not None else 0
        run, qos = self._run(request, endpoint, sender, body, ttd or None)
        if not ttd:
            await self.publish_run(run, qos)
            return Response(status_code=_PUBLISHED)
        with self.polls.waiting(request, admission):
            async with self._subscribed(sender) as (receiver, commands):
                await self.publish_run(run, qos)
                with peer_of(request).parking():
                    found = await self._next_command(request, sender, receiver, commands, ttd, admission.ended)
            return found or Response(status_code=_PUBLISHED)

    def _run(
        self, request: Request, endpoint: DeviceEndpoint, sender: RequestSender, body: bytes, ttd: int | None
    ) -> tuple[Run, int]:
        """Return the message and its QoS. Raises DeviceError."""
        content_type = content_type_of(_field(request, "content-type"))
        messages.check_payload(content_type, body)
        qos, ttl_s = 1, None
        if endpoint is DeviceEndpoint.TELEMETRY:
            level = _field(request, "qos-level") or "0"
            if level not in ("0", "1"):
                raise bad_request(f"qos-level must be 0 or 1, not {level[:20]!r}")
            qos = int(level)
        elif (ttl := _field(request, "hono-ttl")) is not None:
            ttl_s = seconds_of(ttl, "hono-ttl")
        address = self._service.address(endpoint)
        source = messages.MessageSource(sender.device, messages.HTTP_ADAPTER, request.url.path)
        message = messages.encode_bare_message(
            to=address,
            body=body,
            now_ns=self._service.router.now_ns(),
            application=messages.upload_properties(source, ttd),
            content_type=content_type or messages.OPAQUE,
        )
        flags = AMQP | (DURABLE | 1 if qos else 0)
        return Run(address, sender.device, flags, messages.header(durable=qos > 0, ttl_s=ttl_s), [message]), qos

    async def publish_run(self, run: Run, qos: int) -> None:
        """Publish a message, and wait for its commit at QoS 1. Raises DeviceError or RequestRefused."""
        publishing = PublishRequest(run.device, 1)
        if not qos:
            self._service.router.publish(Publication(publishing, run, ()))
            self._service.router.forget_origin(publishing)
            publishing.answered.cancel()
            return
        with self._publishing():
            self._service.router.publish(Publication(publishing, run, (0,)))
            await self._wait_answered(publishing)
        if publishing.refusals:
            raise refusal_error(publishing.refusals[0])

    # --- commands -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _subscribed(self, sender: RequestSender) -> AsyncIterator[tuple[SingleReceiver, CommandSubscription]]:
        """Subscribe to the commands of the device, or of all devices of a gateway that sends for itself."""
        router, receiver = self._service.commands, SingleReceiver(sender.device)
        principal = sender.principal
        try:
            if principal is not None and principal.is_gateway and not sender.named:
                commands = router.subscribe_gateway(receiver, principal)
            else:
                commands = router.subscribe(receiver, sender.device)
        except AddressError as error:
            raise DeviceError(503, str(error)) from None
        try:
            yield receiver, commands
        except BaseException:
            receiver.settle(DeliveryOutcome.UNANSWERED)
            commands.end()
            raise
        if not receiver.received.done():
            receiver.settle(DeliveryOutcome.UNANSWERED)
            commands.end()

    async def _next_command(
        self,
        request: Request,
        sender: RequestSender,
        receiver: SingleReceiver,
        commands: CommandSubscription,
        wait_s: int,
        ended: asyncio.Future[Ended],
    ) -> Response | None:
        """Return an answer with a command; None without a command in time."""

        def settle(outcome: DeliveryOutcome) -> None:
            receiver.settle(outcome)
            commands.end()

        gone = asyncio.ensure_future(until_gone(request))
        try:
            commands.pump()
            await asyncio.wait((receiver.received, gone, ended), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not receiver.received.done():
            return None
        if ended.done():  # the grant of the device has ended
            settle(DeliveryOutcome.UNANSWERED)
            return None
        try:
            command = read_command(receiver.take().stored.run, 0, self._service.addresses)
        except DeviceError:
            settle(DeliveryOutcome.REJECTED)
            return None
        self._service.router.figures.sent += 1
        return AcceptedOnReceipt(command.payload, self._headers(command, sender.principal), settle)

    def _headers(self, command: DeviceCommand, principal: DevicePrincipal | None) -> dict[str, str]:
        """Return the headers for a command, escaped so that none can end a header line."""
        headers = message_headers(command.content_type)
        headers["hono-command"] = quote(command.name, safe=" !$&'()*,-./:;=?@_~")
        if command.request is not None:
            headers["hono-cmd-req-id"] = self._service.requests.identifier(command.device, command.request)
        if principal is not None and principal.is_gateway:
            headers["hono-cmd-target-device"] = command.device
        return headers

    async def _respond(self, request: Request, principal: DevicePrincipal | None, body: bytes) -> Response:
        """Publish a response to a command."""
        levels = str(request.path_params["rest"]).split("/")
        if request.method == "POST":
            levels = ["", "", *levels]
        if len(levels) != 3 or not levels[2]:
            raise bad_request("POST /command/res/<request>, or PUT /command/res/<tenant>/<device>/<request>")
        device = self._service.tenant.device(principal, levels[0], levels[1])
        status = _field(request, "hono-cmd-status")
        if status is None:
            raise bad_request("hono-cmd-status is missing")
        run = self._service.response(
            device,
            levels[2],
            status=status_of(status),
            content_type=content_type_of(_field(request, "content-type")),
            body=body,
            qos=1,
        )
        await self.publish_run(run, 1)
        return Response(status_code=_PUBLISHED)


def _field(request: Request, name: str) -> str | None:
    """Return a header, or the query parameter of the same name."""
    value = fields_of(request).get(name)
    return request.query_params.get(name) if value is None else value
