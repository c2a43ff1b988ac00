"""Subscription to commands over MQTT: the consumer for one filter of one connection."""

from __future__ import annotations

import logging

from bridge.message import Stored
from edge.broker.hono import messages
from edge.broker.hono.commands import mqtt_run, read_command, topic_rest
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.service import DeviceService
from edge.broker.hono.tenant import DevicePrincipal
from edge.broker.hono.topics import DeviceFilter
from edge.broker.model.interfaces import DeliveryOutcome, Subscription
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.session import MqttSession, Subscriber

log = logging.getLogger(__name__)


class CommandSubscriber(Subscriber):
    """Consumer of commands. It notifies applications at subscribe and unsubscribe."""

    __slots__ = ("_commands", "_filter", "_own", "_service", "_source")

    def __init__(
        self,
        session: MqttSession,
        request: SubscriptionRequest,
        service: DeviceService,
        wanted: DeviceFilter,
        *,
        own: str,
        device: str,
        gateway: DevicePrincipal | None,
    ) -> None:
        """`own`: the connected device. `device`: receives commands for this device, or for all of `gateway`. Raises
        AddressError."""
        super().__init__(session, request, 0, kept=False)
        self.competes = True
        self._service = service
        self._filter = wanted
        self._own = own
        self._source = messages.MessageSource(device, messages.MQTT_ADAPTER, request.filter)
        router = service.commands
        self._commands = router.subscribe(self, device) if gateway is None else router.subscribe_gateway(self, gateway)
        service.notify(self._source, messages.UNTIL_FURTHER_NOTICE)

    def deliver_run(self, subscription: Subscription, stored: Stored) -> None:
        for i in range(len(stored.run.bodies)):
            position = stored.position + i
            try:
                command = read_command(stored.run, i, self._service.addresses)
            except DeviceError as error:
                log.warning("%s: command rejected: %s", stored.run.address, error)
                subscription.settle(self, position, position, DeliveryOutcome.REJECTED)
                continue
            topic = self._filter.topic(command.device, self._own, topic_rest(command, self._service.requests))
            run = mqtt_run(command, topic, stored.run.received_at, stored.run.flags)
            one = Stored(position, 0, run)
            self.send(subscription, one, qos_max=self.request.qos, identifiers=(), retain=False)

    def pump(self) -> None:
        self._commands.pump()

    def end(self) -> None:
        """End the subscription; unacknowledged commands return to their queue."""
        self._commands.end()
        self._service.notify(self._source, messages.GONE)
