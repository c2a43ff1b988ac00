"""One MQTT connection's part of a session: turns the machine's events into calls of the router, and answers.

It is the driver's owner and the router's origin. It holds no protocol rule (the machine does) and no subscription
(the client does); it ends with its connection.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from bridge.driver import Driver
from bridge.message import Run
from edge.broker.contract import Refusal
from edge.broker.limits import SUBSCRIPTIONS_PER_SESSION_MAX
from edge.broker.mqtt.clients import NEVER_EXPIRES, Client, Clients
from edge.broker.mqtt.connection import Connection
from edge.broker.mqtt.events import (
    Acknowledged,
    Connect,
    Disconnected,
    Published,
    Released,
    Subscribe,
    Unsubscribe,
    Will,
)
from edge.broker.mqtt.reason_codes import ReasonCode
from edge.broker.router import AddressError, Router

log = logging.getLogger(__name__)

QOS2_TOKEN = 1 << 16
"""Tokens are packet ids; those of QoS 2 messages carry this bit as well."""

REASONS = {
    Refusal.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
    Refusal.NO_CONSUMER: ReasonCode.NO_MATCHING_SUBSCRIBERS,
    Refusal.FULL: ReasonCode.QUOTA_EXCEEDED,
    Refusal.STORE_FAILED: ReasonCode.UNSPECIFIED_ERROR,
    Refusal.ADDRESS_INVALID: ReasonCode.TOPIC_NAME_INVALID,
    Refusal.TOO_LARGE: ReasonCode.PACKET_TOO_LARGE,
    Refusal.REJECTED: ReasonCode.UNSPECIFIED_ERROR,
}


class WillOrigin:
    """The origin of a Will Message: nobody waits for an answer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accepted(self, tokens: Sequence[int]) -> None:
        """Nobody to tell."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Nobody to tell."""


def publish_will(router: Router, client_id: str, will: Will) -> None:
    """Publish a Will Message on behalf of a client that is gone."""
    run = will.run
    copy = Run(run.address, client_id, run.flags, run.properties, list(run.bodies))
    router.publish(WillOrigin(client_id), copy, ())


class MqttSession:
    """Owner of one driver over one MQTT connection."""

    def __init__(
        self, driver: Driver, connection: Connection, router: Router, clients: Clients, clock: Callable[[], float]
    ) -> None:
        self.name = ""
        self.connection = connection
        self._driver = driver
        self._router = router
        self._clients = clients
        self._clock = clock
        self._client: Client | None = None
        """Set by CONNECT for good; `_left` says whether it is still ours."""
        self._left = False
        self._connect: Connect | None = None

    # --- driver's owner ---------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Any]) -> None:
        router = self._router
        for event in events:
            kind = type(event)
            if kind is Published:
                packet_ids = event.packet_ids
                if event.run.qos == 2:
                    self._clients.save_incoming(self._attached)
                    packet_ids = [packet_id | QOS2_TOKEN for packet_id in packet_ids]
                router.publish(self, event.run, packet_ids)
            elif kind is Acknowledged:
                self._attached.acknowledged(event.messages)
            else:
                self._control(event)

    def writable(self) -> None:
        if self._client is not None and not self._left:
            self._client.pump()

    # --- attachment of a client -------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return self._driver.congested

    def flush_soon(self) -> None:
        self._driver.flush_soon()

    def taken_over(self) -> None:
        """Another connection came with our client id."""
        self.connection.disconnect(ReasonCode.SESSION_TAKEN_OVER)
        self._driver.flush_soon()
        self._leave(Disconnected(publish_will=True, reason="session taken over"))

    # --- origin -----------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        if tokens[0] < QOS2_TOKEN:
            self.connection.acknowledge(1, tokens)
        else:
            self.connection.acknowledge(2, [token - QOS2_TOKEN for token in tokens])
        self._driver.flush_soon()

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        reason = REASONS[why]
        if tokens[0] < QOS2_TOKEN:
            self.connection.acknowledge(1, tokens, reason)
        else:  # frees the packet identifiers, which were kept with the messages that could not be
            self.connection.acknowledge(2, [token - QOS2_TOKEN for token in tokens], reason)
            self._clients.save_incoming(self._attached)
        # Before MQTT 5 nothing says no: the client hears nothing, and sends again on its next connection. Nobody there
        # to take an anycast message is no reason to close; a store that cannot write is.
        if self._connect is not None and self._connect.version < 5 and why is not Refusal.NO_CONSUMER:
            log.warning("%s: closing, messages cannot be taken: %s", self.name, why.value)
            self.connection.disconnect(reason)
        self._driver.flush_soon()

    # --- control packets --------------------------------------------------------------------------------------

    @property
    def _attached(self) -> Client:
        if self._client is None:
            raise LookupError("the machine gave an event before CONNECT was accepted")
        return self._client

    def _control(self, event: Any) -> None:
        match event:
            case Connect():
                self._open(event)
            case Subscribe():
                self._subscribe(event)
            case Unsubscribe():
                codes = [
                    ReasonCode.SUCCESS
                    if self._clients.unsubscribe(self._attached, pattern)
                    else ReasonCode.NO_SUBSCRIPTION_EXISTED
                    for pattern in event.filters
                ]
                self.connection.unsubscribed(event.packet_id, codes)
            case Released():
                self._clients.save_incoming(self._attached)
            case Disconnected():
                self._leave(event)
            case _:
                raise TypeError(f"unknown event {event!r}")

    def _open(self, connect: Connect) -> None:
        if self._clients.full:
            self.connection.refuse(ReasonCode.SERVER_BUSY)
            return
        assigned = None if connect.client_id else f"auto-{uuid.uuid4().hex}"
        self.name = assigned or connect.client_id
        self._connect = connect
        self._client, present = self._clients.attach(
            self.name, self, clean_start=connect.clean_start, expiry_s=connect.session_expiry_s
        )
        events = self.connection.accept(self._client.state, present, assigned_client_id=assigned)
        self._client.pump()
        self.handle(events)

    def _subscribe(self, event: Subscribe) -> None:
        client = self._attached
        codes: list[ReasonCode] = []
        feeds = []
        for request in event.requests:
            if len(client.subscribers) >= SUBSCRIPTIONS_PER_SESSION_MAX and request.filter not in client.subscribers:
                codes.append(ReasonCode.QUOTA_EXCEEDED)
                continue
            try:
                subscriber, new = self._clients.subscribe(client, request, event.identifier)
            except AddressError as error:
                log.info("%s: subscription to %s refused: %s", self.name, request.filter, error)
                codes.append(REASONS[error.refusal])
                continue
            codes.append(ReasonCode(request.qos))
            shared = request.filter.startswith("$share/")
            wanted = request.retain_handling == 0 or (request.retain_handling == 1 and new)
            if wanted and not shared:
                feeds.append((subscriber, subscriber.live or subscriber.durable))
        self.connection.subscribed(event.packet_id, codes)
        for subscriber, subscription in feeds:
            if subscription is not None:
                client.feed_retained(
                    subscriber, subscription, self._router.retained.matching(subscriber.request.filter)
                )
        client.pump()

    def _leave(self, event: Disconnected) -> None:
        client = self._client
        self._router.forget_origin(self)
        if client is None or self._left:
            return
        self._left = True
        log.debug("%s: %s", self.name, event.reason)
        if event.session_expiry_s is not None:
            client.expiry_s = event.session_expiry_s
        now = self._clock()
        will = self._connect.will if self._connect is not None and event.publish_will else None
        self._clients.detach(client, now)
        if will is None:
            return
        if will.delay_s and client.durable:
            delay = will.delay_s if client.expiry_s == NEVER_EXPIRES else min(will.delay_s, client.expiry_s)
            client.will_due = (now + delay, will)
        else:
            publish_will(self._router, client.client_id, will)
