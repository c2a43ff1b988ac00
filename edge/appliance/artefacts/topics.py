"""Topics of artefacts for devices that speak only MQTT (3.1.1 or 5): what is offered, chunks of images, and reports.

A device subscribes to its answers after each connect, then publishes its requests:

``$artefacts/<device>/answer/#``                              filter of its subscription, with QoS 1
``$artefacts/<device>/get/offer``                             what is offered: answered at ``answer/offer``
``$artefacts/<device>/get/chunk/<sha256>/<offset>/<length>``  bytes: answered at ``answer/chunk/<sha256>/<offset>``
``$artefacts/<device>/report``                                its progress: a message for the hub, with QoS 1

An answer is a message of QoS 1 for this connection only. It is never stored: after a break the device requests it
again. Requests are ignored while the device does not read, and beyond the limits; the device repeats a request that is
not answered. A refusal is answered at ``answer/refused/<request>``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from bridge.message import Run, Stored
from edge.appliance.artefacts.answering import JSON_TYPE, ArtefactAnswering, ReportRefused
from edge.appliance.artefacts.chunks import (
    PREFIX,
    AnswerBudget,
    ReportTopic,
    RequestedChunk,
    RequestedOffer,
    WaitingAnswer,
    device_of_answers,
    read_topic,
)
from edge.appliance.artefacts.limits import ANSWERED_DEVICES_MAX, CONNECTION_REQUESTS_MAX
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Origin
from edge.broker.mqtt.events import PublishEvent, SubscriptionRequest
from edge.broker.mqtt.interception import InterceptedPublisher, Interceptor
from edge.broker.mqtt.session import MqttSession, Subscriber
from edge.broker.router.router import Router

log = logging.getLogger(__name__)


class TopicPublisher(InterceptedPublisher, Origin, Protocol):
    """Handler of a connection."""


class ArtefactTopics:
    """Topics of artefacts at one gateway."""

    def __init__(self, answering: ArtefactAnswering, router: Router) -> None:
        self._answering = answering
        self._router = router

    def interceptor(self, publisher: TopicPublisher, session: MqttSession, grant: Grant | None) -> Interceptor:
        """Return the interceptor of a connection that uses these topics. `grant`: None without authentication."""
        return ArtefactConnection(self._answering, self._router, publisher, session, grant)


class AnswerSubscriber(Subscriber):
    """Subscription of one connection to the answers for one device, and the answers that it has not acknowledged."""

    def __init__(self, session: MqttSession, request: SubscriptionRequest, budget: AnswerBudget) -> None:
        super().__init__(session, request, 0, kept=False)
        self.competes = True  # so an answer ends with its connection, also in a session that stays
        self.attempts = 0
        self._budget = budget
        self._waiting: dict[int, WaitingAnswer] = {}
        self._sent = 0
        self.active = True
        """False after an UNSUBSCRIBE: answers in progress are dropped, and those that were sent still count."""

    @property
    def takes(self) -> bool:
        """True if the client reads and has room for an answer."""
        attachment = self.session.attachment
        return self.active and attachment is not None and not attachment.congested and attachment.connection.window > 0

    @property
    def idle_now(self) -> bool:
        """See `Subscription`."""
        return not self._waiting

    def answer(self, waiting: WaitingAnswer, run: Run) -> None:
        """Send an answer, or drop it if the client has no room now."""
        if not self.takes:
            self._budget.release(waiting)
            return
        position, self._sent = self._sent, self._sent + 1
        self._waiting[position] = waiting
        self.send(self, Stored(position, 0, run), qos_max=1, identifiers=(), retain=False)

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """See `Subscription`."""
        for position in range(first, last + 1):
            if (waiting := self._waiting.pop(position, None)) is not None:
                self._budget.release(waiting)

    def end(self) -> None:
        """Forget all answers, with the end of the connection."""
        self.active = False
        if self._waiting:
            self.settle(self, min(self._waiting), max(self._waiting), DeliveryOutcome.UNANSWERED)


class ArtefactConnection(Interceptor):
    """Topics of artefacts of one connection."""

    def __init__(
        self,
        answering: ArtefactAnswering,
        router: Router,
        publisher: TopicPublisher,
        session: MqttSession,
        grant: Grant | None,
    ) -> None:
        self._answering = answering
        self._router = router
        self._budget = answering.budget
        self._publisher = publisher
        self._session = session
        self._grant = grant
        self._subscribers: dict[str, AnswerSubscriber] = {}
        """Subscriptions to answers by device."""
        self._running: dict[asyncio.Task[None], WaitingAnswer] = {}
        """Requests in progress."""

    # --- subscribing ------------------------------------------------------------------------------------------------

    def subscribe(self, request: SubscriptionRequest) -> ReasonCode | None:
        """Subscribe to answers; None leaves other filters to the session."""
        device = device_of_answers(request.filter)
        if device is None:
            return None
        if self._answering.report_address(device, self._grant) is None:
            return ReasonCode.NOT_AUTHORIZED
        if request.qos == 0:
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # without acknowledgements nothing bounds the answers
        if len(self._subscribers) >= ANSWERED_DEVICES_MAX and device not in self._subscribers:
            return ReasonCode.QUOTA_EXCEEDED
        found = self._subscribers.get(device)
        if found is None:
            request = msgspec.structs.replace(request, qos=1)
            found = self._subscribers[device] = AnswerSubscriber(self._session, request, self._budget)
        found.active = True
        return ReasonCode.GRANTED_QOS_1

    def unsubscribe(self, pattern: str) -> bool:
        """End a subscription to answers. Return False without one."""
        found = self._subscribers.get(device_of_answers(pattern) or "")
        if found is None or not found.active:
            return False
        found.active = False
        return True

    def leave(self) -> None:
        """End all requests and answers with the connection."""
        for task, waiting in list(self._running.items()):
            task.cancel()
            self._budget.release(waiting)
        for subscriber in self._subscribers.values():
            subscriber.end()
        self._subscribers.clear()

    # --- publishing -------------------------------------------------------------------------------------------------

    def published(self, event: PublishEvent) -> bool:
        """Take requests and reports of devices. Return False for other topics."""
        run = event.run
        if not run.address.startswith(PREFIX) or run.qos > 1:
            return False
        request = read_topic(run.address)
        if request is None:
            return False
        address = self._answering.report_address(request.device, self._grant)
        if address is None:
            return False
        if isinstance(request, ReportTopic):
            self._report(request.device, address, event)
            return True
        subscriber = self._subscribers.get(request.device)
        if subscriber is None or not subscriber.active:
            return False
        for body in run.bodies:
            self._begin(subscriber, request, body, run)
        self._router.answers.accept(self._publisher, event.packet_ids)
        return True

    def _report(self, device: str, address: str, event: PublishEvent) -> None:
        """Publish reports as messages of the client, which are acknowledged when they are on disk."""
        run, properties = event.run, encode_run(Properties(content_type=JSON_TYPE))
        for place, body in enumerate(run.bodies):
            packet_ids = event.packet_ids[place : place + 1]
            try:
                message = self._answering.report(device, body)
            except ReportRefused as refused:
                self._router.answers.refuse(self._publisher, packet_ids, refused.refusal)
                continue
            sent = Run(address, run.device, run.qos, properties, [message])
            self._publisher.publish(sent, packet_ids)

    def _begin(
        self, subscriber: AnswerSubscriber, request: RequestedOffer | RequestedChunk, body: bytes, run: Run
    ) -> None:
        """Begin to answer a request, or ignore it."""
        if len(self._running) >= CONNECTION_REQUESTS_MAX or not subscriber.takes:
            return
        waiting = self._budget.take(request.device, request.size, self._abort_soon)
        if waiting is not None:
            task = asyncio.get_running_loop().create_task(
                self._answer(subscriber, request, waiting, body, run.properties)
            )
            self._running[task] = waiting
            task.add_done_callback(self._running.pop)

    def _abort_soon(self) -> None:
        """End the connection in the next turn of the loop, as this may be called by another one."""
        asyncio.get_running_loop().call_soon(self._publisher.abort)

    # --- answering --------------------------------------------------------------------------------------------------

    async def _answer(
        self,
        subscriber: AnswerSubscriber,
        request: RequestedOffer | RequestedChunk,
        waiting: WaitingAnswer,
        body: bytes,
        properties: bytes,
    ) -> None:
        try:
            correlation = decode_run(properties).correlation_data if properties else None
            path, content_type, content = await self._answering.answer(request, body)
            found = encode_run(Properties(content_type=content_type, correlation_data=correlation))
            subscriber.answer(waiting, Run(f"{PREFIX}{request.device}/answer/{path}", "", 1, found, [content]))
        except Exception:  # the connection must not end
            log.exception("device %s: unexpected error", request.device)
            self._budget.release(waiting)
