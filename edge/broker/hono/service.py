"""Shared parts of the device API of one broker, independent of protocols. `mqtt`, `amqp` and `http` use it."""

from __future__ import annotations

import json
import secrets

from bridge.message import AMQP, DURABLE, Run
from edge.broker.configuration import DeviceApiConfiguration
from edge.broker.delivery.dead_letters import LossReason
from edge.broker.hono import messages
from edge.broker.hono.addresses import HonoAddresses
from edge.broker.hono.command_router import CommandRouter
from edge.broker.hono.commands import read_command
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.requests import KEY_BYTES, CommandRequest, CommandRequests
from edge.broker.hono.tenant import DeviceTenant
from edge.broker.hono.topics import DeviceEndpoint
from edge.broker.model.interfaces import Origin
from edge.broker.model.topics import matches
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from edge.broker.store.contract import SmallState

_REJECTED, _UNDELIVERED = 400, 503
"""Status of a delivery failure notification: the device rejected the command, or never got it."""
_KIND, _NAME = "hono", "request key"


class DeviceService:
    """Tenant, addresses, requests and commands of the device API."""

    def __init__(self, configuration: DeviceApiConfiguration, router: Router, state: SmallState) -> None:
        """Load the key of request identifiers from the store, or create it."""
        self.tenant = DeviceTenant(configuration)
        self.cors_origins = configuration.cors_origins
        self.addresses = HonoAddresses(configuration.tenant)
        self.router = router
        self.commands = CommandRouter(router, self.addresses)
        key = dict(state.items(_KIND)).get(_NAME)
        if key is None:
            key = secrets.token_bytes(KEY_BYTES)
            state.put(_KIND, _NAME, key)
        self.requests = CommandRequests(key)
        router.deadletters.listeners.append(self._report_loss)

    def update(self, configuration: DeviceApiConfiguration) -> None:
        """Apply a new configuration of the same tenant."""
        self.tenant.update(configuration)
        self.cors_origins = configuration.cors_origins

    def address(self, endpoint: DeviceEndpoint) -> str:
        """Return the address for telemetry or events of the tenant."""
        return self.addresses.telemetry if endpoint is DeviceEndpoint.TELEMETRY else self.addresses.event

    def notify(self, source: messages.MessageSource, ttd: int) -> None:
        """Notify applications how many seconds a device accepts commands."""
        run = messages.empty_notification(self.addresses.event, source, ttd, self.router.now_ns())
        self.router.publish(Publication(GatewayNotifier(source.device), run, ()))

    def response(
        self, device: str, identifier: str, *, status: int, content_type: str | None, body: bytes, qos: int
    ) -> Run:
        """Return a device's response to the command with this request identifier. Raises DeviceError."""
        request = self.requests.read(device, identifier)
        return self._answer(device, request, status, content_type, body, durable=qos > 0)

    def _report_loss(self, run: Run, reason: LossReason) -> None:
        """Notify the application that waits for the response to a lost command; one-way ones are only in the ledger."""
        if not matches(self.addresses.commands, run.address):
            return
        for i in range(len(run.bodies)):
            try:
                command = read_command(run, i, self.addresses)
            except DeviceError:
                continue
            if command.request is not None:
                self._notify_failure(command.device, command.request, reason)

    def _notify_failure(self, device: str, request: CommandRequest, reason: LossReason) -> None:
        status = _REJECTED if reason is LossReason.REJECTED else _UNDELIVERED
        body = json.dumps({"error": reason.value}).encode()
        run = self._answer(device, request, status, messages.FAILURE_NOTIFICATION, body, durable=True)
        self.router.publish(Publication(GatewayNotifier(device), run, ()))

    def _answer(
        self, device: str, request: CommandRequest, status: int, content_type: str | None, body: bytes, *, durable: bool
    ) -> Run:
        """Return the message to the application of the request."""
        address = self.addresses.response(request.reply)
        message = messages.response(
            address,
            self.tenant.name,
            device,
            status=status,
            correlation=request.correlation,
            content_type=content_type,
            body=body,
            now_ns=self.router.now_ns(),
        )
        flags = AMQP | (DURABLE | 1 if durable else 0)
        return Run(address, device, flags, messages.header(durable=durable), [message])


class GatewayNotifier(Origin):
    """Origin of messages of the gateway itself about a device; answers are ignored."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accepted(self, tokens: object) -> None:
        """Do nothing."""

    def refused(self, tokens: object, why: object) -> None:
        """Do nothing."""
