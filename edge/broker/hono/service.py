"""The device API of one broker: what its connections share. It knows no protocol; `mqtt`, `amqp` and `http` know it."""

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
"""Status of the message that stands for a response: the device would not have the command, or never got it."""
_KIND, _NAME = "hono", "request key"


class DeviceService:
    """Tenant, addresses, requests and commands."""

    def __init__(self, configuration: DeviceApiConfiguration, router: Router, state: SmallState) -> None:
        """The key of request identifiers is made once and kept in the store."""
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
        router.deadletters.listeners.append(self._given_up)

    def update(self, configuration: DeviceApiConfiguration) -> None:
        """Follow a new configuration of the same tenant."""
        self.tenant.update(configuration)
        self.cors_origins = configuration.cors_origins

    def address(self, endpoint: DeviceEndpoint) -> str:
        """Where telemetry or events of the tenant go."""
        return self.addresses.telemetry if endpoint is DeviceEndpoint.TELEMETRY else self.addresses.event

    def notify(self, source: messages.MessageSource, ttd: int) -> None:
        """Tell applications for how many seconds a device can be sent commands."""
        run = messages.empty_notification(self.addresses.event, source, ttd, self.router.now_ns())
        self.router.publish(Publication(GatewayNotifier(source.device), run, ()))

    def response(
        self, device: str, identifier: str, *, status: int, content_type: str | None, body: bytes, qos: int
    ) -> Run:
        """A device's answer to the command with this request identifier. Raises DeviceError."""
        request = self.requests.read(device, identifier)
        return self._answer(device, request, status, content_type, body, durable=qos > 0)

    def _given_up(self, run: Run, reason: LossReason) -> None:
        """Tell the application that waits for a response why none comes; of a one-way command only the ledger tells."""
        if not matches(self.addresses.commands, run.address):
            return
        for i in range(len(run.bodies)):
            try:
                command = read_command(run, i, self.addresses)
            except DeviceError:
                continue
            if command.request is not None:
                self._tell(command.device, command.request, reason)

    def _tell(self, device: str, request: CommandRequest, reason: LossReason) -> None:
        status = _REJECTED if reason is LossReason.REJECTED else _UNDELIVERED
        body = json.dumps({"error": reason.value}).encode()
        run = self._answer(device, request, status, messages.FAILURE_NOTIFICATION, body, durable=True)
        self.router.publish(Publication(GatewayNotifier(device), run, ()))

    def _answer(
        self, device: str, request: CommandRequest, status: int, content_type: str | None, body: bytes, *, durable: bool
    ) -> Run:
        """What the application that made the request is sent."""
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
    """Origin of what the gateway itself says of a device: nobody waits for an answer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accepted(self, tokens: object) -> None:
        """Nobody to tell."""

    def refused(self, tokens: object, why: object) -> None:
        """Nobody to tell."""
