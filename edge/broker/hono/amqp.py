"""Device API over one AMQP connection, as an interceptor of its links.

Devices send over an anonymous link, with the type of the message in `to`, and receive from ``command``. Applications
send commands to ``command/<tenant>``, with the device in `to`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from bridge.amqp_values import DecodeError
from bridge.engine import Engine, Link
from bridge.message import Stored
from bridge.sections import bare_message
from edge.broker.amqp.addressing import CONDITIONS, AttachRefused
from edge.broker.amqp.incoming import TranslatedMessage
from edge.broker.amqp.interception import LinkInterception, LinkInterceptor
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.scheduler import Scheduler
from edge.broker.hono import messages
from edge.broker.hono.addresses import COMMAND, RESPONSE
from edge.broker.hono.command_router import CommandSubscription
from edge.broker.hono.commands import amqp_message, find_queue, read_command
from edge.broker.hono.errors import DeviceError, bad_request
from edge.broker.hono.service import DeviceService
from edge.broker.hono.tenant import DevicePrincipal
from edge.broker.hono.topics import DeviceEndpoint, Upload, read_upload
from edge.broker.message.translation import (
    address_of,
    amqp_messages,
    parse_message,
    properties_of,
    read_header,
    with_ttl,
)
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import DeliveryOutcome, Refusal, Subscription

log = logging.getLogger(__name__)

_SETTLED_MODE: Final = 1
"""snd-settle-mode `settled` (AMQP 1.0 section 2.8.2); it would lose the outcome of a command."""
_UNAUTHORIZED: Final = CONDITIONS[Refusal.NOT_AUTHORIZED]
_BAD_REQUEST: Final = "hono:bad-request"
_CONDITIONS: Final = {
    400: _BAD_REQUEST,
    401: _UNAUTHORIZED,
    403: _UNAUTHORIZED,
    404: "amqp:not-found",
    413: CONDITIONS[Refusal.TOO_LARGE],
}
_CONTENT_TYPE: Final = 6


def attach_refused(error: DeviceError) -> AttachRefused:
    """Return an AMQP error for a device error, with a condition of Hono if the standard has none."""
    return AttachRefused(_CONDITIONS.get(error.status, "amqp:precondition-failed"), str(error))


class CommandRelay:
    """Checks the commands that applications send to ``command/<tenant>``, and routes them to the device's queue."""

    def __init__(self, service: DeviceService) -> None:
        self._service = service

    def translated(self, header: bytes, body: bytes, *, settled: bool) -> TranslatedMessage | None:
        try:
            return TranslatedMessage(find_queue(body, self._service.addresses), "", header, body)
        except DeviceError as error:
            raise attach_refused(error) from None


class DeviceRelay:
    """Translates the messages that a device or gateway sends over an anonymous link."""

    def __init__(self, service: DeviceService, principal: DevicePrincipal | None) -> None:
        self._service = service
        self._principal = principal

    def translated(self, header: bytes, body: bytes, *, settled: bool) -> TranslatedMessage | None:
        """Return the translation; None for other messages. Raises AttachRefused or DecodeError."""
        to = address_of(properties_of(body))
        if to is None:
            return None
        try:
            upload = self._read(to)
            if upload is None:
                return None
            device = self._service.tenant.device(self._principal, upload.tenant, upload.device)
            if settled and upload.endpoint is not DeviceEndpoint.TELEMETRY:
                raise bad_request(f"{upload.endpoint.value}: a settled message could be lost")
            if upload.endpoint is DeviceEndpoint.RESPONSE:
                return self._response(upload, device, body)
            return self._upload(upload, device, to, header, body)
        except DeviceError as error:
            raise attach_refused(error) from None

    def _read(self, to: str) -> Upload | None:
        levels = to.split("/")
        if levels[0] == RESPONSE and len(levels) == 4:
            return Upload(DeviceEndpoint.RESPONSE, False, levels[1], levels[2], levels[3])
        try:
            upload = read_upload(to)
        except DeviceError:
            if self._principal is None:
                return None  # without authentication it may be an ordinary address
            raise
        if upload is not None and self._principal is None and upload.tenant not in ("", self._service.tenant.name):
            return None
        return upload

    def _upload(self, upload: Upload, device: str, to: str, header: bytes, body: bytes) -> TranslatedMessage:
        address = self._service.address(upload.endpoint)
        source = messages.MessageSource(device, messages.AMQP_ADAPTER, to)
        completed = messages.complete_message(body, address, source, self._service.router.now_ns())
        if upload.endpoint is DeviceEndpoint.EVENT and not read_header(header).durable:
            ttl_ms = read_header(header).ttl_ms
            header = messages.header(durable=True)
            header = header if ttl_ms is None else with_ttl(header, ttl_ms)
        return TranslatedMessage(address, device, header, completed)

    def _response(self, upload: Upload, device: str, body: bytes) -> TranslatedMessage:
        found = parse_message(body)
        status = upload.status or found.application.get(messages.STATUS)
        if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status < 600:
            raise bad_request("application property 'status' must be an int from 200 to 599")
        fields = [*found.properties, *[None] * (_CONTENT_TYPE + 1)]
        content_type = str(fields[_CONTENT_TYPE]) if fields[_CONTENT_TYPE] else None
        run = self._service.response(
            device, upload.request, status=status, content_type=content_type, body=found.body, qos=1
        )
        return TranslatedMessage(run.address, device, run.properties, run.bodies[0])


class CommandLink(OutgoingLink):
    """Link on which a device or gateway receives commands."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        driver: Scheduler,
        name: str,
        clock_ns: Callable[[], int],
        *,
        service: DeviceService,
        device: str,
        gateway: DevicePrincipal | None,
        everything: bool,
    ) -> None:
        """`device`: receives the commands. `gateway`: the peer acts for other devices, and each command names its
        device. `everything`: the link is for all its devices. Raises AddressError."""
        super().__init__(engine, link, service.router, driver, name, durable=False, clock_ns=clock_ns)
        self._service = service
        self._source = messages.MessageSource(device, messages.AMQP_ADAPTER, link.source.address or COMMAND)
        self._names_device = gateway is not None
        self._commands: CommandSubscription | None
        if everything and gateway is not None:
            self._commands = service.commands.subscribe_gateway(self, gateway)
        else:
            self._commands = service.commands.subscribe(self, device)
        service.notify(self._source, messages.UNTIL_FURTHER_NOTICE)

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        for stored in batch:
            self._deliver_commands(subscription, stored)
        self._driver.flush_soon()

    def _deliver_commands(self, subscription: Subscription, stored: Stored) -> None:
        run = stored.run
        whole = amqp_messages(run, now_ns=self._service.router.clock.now_for(run), attempts=subscription.attempts)
        for i, message in enumerate(whole):
            position = stored.position + i
            try:
                command = read_command(run, i, self._service.addresses)
                end, start = bare_message(message)
                reply_to, identifier = None, ""
                if command.request is not None:
                    identifier = self._service.requests.identifier(command.device, command.request)
                    reply_to = f"{RESPONSE}/{self._service.tenant.name}/{command.device}/{identifier}"
                body = amqp_message(command, message[start:], reply_to, identifier, names_device=self._names_device)
            except (DeviceError, DecodeError) as error:
                log.warning("%s: command rejected: %s", run.address, error)
                subscription.settle(self, position, position, DeliveryOutcome.REJECTED)
                continue
            self._send(subscription, position, [message[:end] + body], settled=False)

    def flow(self) -> None:
        if self._commands is None or self._link.closed:
            return
        if self._link.credit > 0:
            self._commands.pump()
        if self._link.draining:
            self._drain()

    def ended(self, *, closed: bool, lost: bool = False) -> None:
        """End the subscription: unsettled commands return to their queue."""
        self._ending = True
        if lost:
            self._settle_lost()
        self._outstanding.clear()
        commands, self._commands = self._commands, None
        if commands is not None:
            commands.end()
            self._service.notify(self._source, messages.GONE)

    def _drain(self) -> None:
        link = self._link
        if link.closed or not link.draining or self._commands is None or self._driver.congested:
            return
        if link.credit <= 0 or self._commands.idle_now:
            self._engine.drained(link)
            self._driver.flush_soon()


class DeviceLinks(LinkInterceptor):
    """Interceptor of the links of one connection."""

    def __init__(
        self, service: DeviceService, principal: DevicePrincipal | None, *, device: bool, application: bool
    ) -> None:
        """`device`, `application`: possible roles of the peer; both without authentication."""
        self._service = service
        self._principal = principal
        self._device = device
        self._application = application

    def relay(self, address: str | None) -> CommandRelay | DeviceRelay | None:
        if address is None and self._device:
            return DeviceRelay(self._service, self._principal)
        if address == self._service.addresses.command and self._application:
            return CommandRelay(self._service)
        return None

    def receiver(
        self, engine: Engine, link: Link, driver: Scheduler, name: str, clock_ns: Callable[[], int]
    ) -> CommandLink | None:
        """Return the consumer for a link with commands of a device; None for other links."""
        if not self._has_commands(link.source.address):
            return None
        if link.snd_settle_mode == _SETTLED_MODE:
            raise attach_refused(bad_request("a link for commands must not be settled"))
        service, principal = self._service, self._principal
        levels = [*(link.source.address or "").split("/"), "", ""]
        gateway = principal if principal is not None and principal.is_gateway else None
        try:
            device = service.tenant.device(principal, levels[1], levels[2])
        except DeviceError as error:
            raise attach_refused(error) from None
        return CommandLink(
            engine,
            link,
            driver,
            name,
            clock_ns,
            service=service,
            device=device,
            gateway=gateway,
            everything=gateway is not None and not levels[2],
        )

    def _has_commands(self, address: str | None) -> bool:
        if address is None or not self._device:
            return False
        levels = address.split("/")
        if levels[0] != COMMAND or len(levels) not in (1, 3):
            return False
        return self._principal is not None or levels[1:2] == [self._service.tenant.name]


class DeviceLinkInterception(LinkInterception):
    """Device API over AMQP."""

    def __init__(self, service: DeviceService) -> None:
        self._service = service

    def links(self, grant: Grant | None) -> DeviceLinks:
        user = grant.user if grant is not None else None
        try:
            principal = self._service.tenant.principal(user)
        except DeviceError as error:
            raise attach_refused(error) from None
        anybody = user is None
        return DeviceLinks(
            self._service, principal, device=anybody or principal is not None, application=anybody or principal is None
        )
