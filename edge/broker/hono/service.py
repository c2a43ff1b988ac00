"""The device API of one broker: what its connections share, whatever protocol they speak."""

from __future__ import annotations

import secrets

from bridge.message import AMQP, DURABLE, Run
from edge.broker.configuration import DeviceApi
from edge.broker.hono import messages
from edge.broker.hono.addresses import Addresses
from edge.broker.hono.amqp import DeviceLinks, device_links
from edge.broker.hono.desk import Desk
from edge.broker.hono.mqtt import DeviceConnection, Session
from edge.broker.hono.requests import KEY_BYTES, Requests
from edge.broker.hono.tenant import Principal, Tenant
from edge.broker.hono.topics import Endpoint
from edge.broker.mqtt.client import Client
from edge.broker.router import Router
from edge.broker.store.contract import Store

_KIND, _NAME = "hono", "request key"


class DeviceService:
    """Tenant, addresses, requests and commands."""

    def __init__(self, configuration: DeviceApi, router: Router, store: Store) -> None:
        """The key of request identifiers is made once and kept in the store."""
        self.tenant = Tenant(configuration)
        self.addresses = Addresses(configuration.tenant)
        self.router = router
        self.desk = Desk(router, self.addresses)
        key = dict(store.items(_KIND)).get(_NAME)
        if key is None:
            key = secrets.token_bytes(KEY_BYTES)
            store.put(_KIND, _NAME, key)
        self.requests = Requests(key)

    def connection(self, session: Session, client: Client, principal: Principal | None) -> DeviceConnection:
        """The device API over one MQTT connection."""
        return DeviceConnection(self, session, client, principal)

    def links(self, identity: str | None) -> DeviceLinks:
        """The device API over one AMQP connection, for a user or (None) where nobody is asked. Raises Unacceptable."""
        return device_links(self, identity)

    def address(self, endpoint: Endpoint) -> str:
        """Where telemetry or events of the tenant go."""
        return self.addresses.telemetry if endpoint is Endpoint.TELEMETRY else self.addresses.event

    def notify(self, source: messages.Source, ttd: int) -> None:
        """Tell applications for how many seconds a device can be sent commands."""
        run = messages.empty_notification(self.addresses.event, source, ttd, self.router.now_ns())
        self.router.publish(Notifier(source.device), run, ())

    def response(
        self, device: str, identifier: str, *, status: int, content_type: str | None, body: bytes, qos: int
    ) -> Run:
        """A device's answer to the command with this request identifier. Raises DeviceError."""
        request = self.requests.read(device, identifier)
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
        flags = AMQP | (DURABLE | 1 if qos else 0)
        return Run(address, device, flags, messages.header(durable=qos > 0), [message])


class Notifier:
    """Origin of what the gateway itself says of a device: nobody waits for an answer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accepted(self, tokens: object) -> None:
        """Nobody to tell."""

    def refused(self, tokens: object, why: object) -> None:
        """Nobody to tell."""
