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
import base64
import logging
from typing import Final, NamedTuple, Protocol

import msgspec

from bridge.artefacts.report import UpdateMessage
from bridge.message import Run, Stored
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
from edge.appliance.artefacts.limits import (
    ANSWERED_DEVICES_MAX,
    CHUNK_BYTES_MAX,
    CONNECTION_REQUESTS_MAX,
    MANIFEST_BYTES_IN_OFFER,
)
from edge.appliance.artefacts.noting import ReportNotes
from edge.appliance.artefacts.reporting import ReportSink
from edge.appliance.artefacts.reports import UpdateReport
from edge.appliance.artefacts.routes import AvailableArtefact, available
from edge.appliance.artefacts.serving import ArtefactServing, envelope_digest
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.reporting import address_of_reports
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Origin, Refusal
from edge.broker.mqtt.events import PublishEvent, SubscriptionRequest
from edge.broker.mqtt.interception import InterceptedPublisher, Interceptor
from edge.broker.mqtt.session import MqttSession, Subscriber
from edge.broker.router.router import Router
from edge.configuration.resources import ArtefactName, ArtefactVersion

log = logging.getLogger(__name__)

_JSON: Final = "application/json"


class TopicPublisher(InterceptedPublisher, Origin, Protocol):
    """Handler of a connection."""


class OfferQuestion(msgspec.Struct, frozen=True):
    """Payload of a request for what is offered; it may be empty."""

    board: str = ""
    """Board of the device; empty: as it said before."""
    version: str = ""
    """Version that it runs; empty: as it said before."""


class TopicOffer(AvailableArtefact, frozen=True, kw_only=True):
    """Artefact that is offered to a device over MQTT."""

    manifest_size: int
    """Bytes of its signed manifest."""
    manifest_sha256: str
    """SHA-256 of its signed manifest, to fetch that in chunks."""
    manifest: str
    """Its signed manifest in Base64; empty for one of more than `MANIFEST_BYTES_IN_OFFER` bytes."""
    chunk_bytes_max: int = CHUNK_BYTES_MAX
    """Most bytes of an answer with a chunk."""


class TopicOffers(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a request for what is offered."""

    artefact: TopicOffer | None
    """None: there is nothing for the device."""


class TopicRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a request that is refused."""

    status: int
    """Status of HTTP: 404 for what is not here, 503 for later."""
    detail: str


class TopicReport(UpdateReport, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Report of a device over MQTT."""

    artefact: ArtefactName
    version: ArtefactVersion


class TopicParts(NamedTuple):
    """Parts that all connections of a gateway share."""

    serving: ArtefactServing
    sink: ReportSink
    router: Router
    budget: AnswerBudget
    notes: ReportNotes


class ArtefactTopics:
    """Topics of artefacts at one gateway."""

    def __init__(self, serving: ArtefactServing, sink: ReportSink, router: Router) -> None:
        """`sink` takes reports that the gateway makes itself."""
        self._serving = serving
        self._sink = sink
        self._router = router
        self._budget = AnswerBudget()
        self._notes = ReportNotes(serving)

    def interceptor(self, publisher: TopicPublisher, session: MqttSession, grant: Grant | None) -> Interceptor:
        """Return the interceptor of a connection that uses these topics. `grant`: None without authentication."""
        parts = TopicParts(self._serving, self._sink, self._router, self._budget, self._notes)
        return ArtefactConnection(parts, publisher, session, grant)

    async def close(self) -> None:
        """Note the reports that wait. Idempotent."""
        await self._notes.close()


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
        parts: TopicParts,
        publisher: TopicPublisher,
        session: MqttSession,
        grant: Grant | None,
    ) -> None:
        self._serving, self._sink, self._router, self._budget, self._notes = parts
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
        if self._address(device) is None:
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
        address = self._address(request.device)
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
        run, properties = event.run, encode_run(Properties(content_type=_JSON))
        for place, body in enumerate(run.bodies):
            packet_ids = event.packet_ids[place : place + 1]
            try:
                said = msgspec.json.decode(body, type=TopicReport)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                log.info("device %s: its report is not valid: %s", device, error)
                self._router.answers.refuse(self._publisher, packet_ids, Refusal.FORMAT_INVALID)
                continue
            if not self._notes.add(device, said.artefact, said.version, said):
                self._router.answers.refuse(self._publisher, packet_ids, Refusal.FULL)
                continue
            message = UpdateMessage(
                device=device, artefact=said.artefact, version=said.version, state=said.state, reason=said.reason
            )
            sent = Run(address, run.device, run.qos, properties, [msgspec.json.encode(message)])
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
            path, content_type, content = await self._content(request, body)
            found = encode_run(Properties(content_type=content_type, correlation_data=correlation))
            subscriber.answer(waiting, Run(f"{PREFIX}{request.device}/answer/{path}", "", 1, found, [content]))
        except Exception:  # the connection must not end
            log.exception("device %s: unexpected error", request.device)
            self._budget.release(waiting)

    async def _content(self, request: RequestedOffer | RequestedChunk, body: bytes) -> tuple[str, str | None, bytes]:
        """Return the end of the topic, the content type and the payload of an answer."""
        try:
            if isinstance(request, RequestedOffer):
                return request.path, _JSON, await self._offer(request, body)
            content = await self._serving.chunk(
                request.device, request.digest, request.offset, request.size, self._sink
            )
        except RequestRefused as refused:
            why = TopicRefusal(status=refused.status, detail=str(refused))
            return f"refused/{request.path}", _JSON, msgspec.json.encode(why)
        return request.path, None, content

    async def _offer(self, request: RequestedOffer, body: bytes) -> bytes:
        """Return the document of what is offered. Raises RequestRefused."""
        try:
            said = msgspec.json.decode(body, type=OfferQuestion) if body else OfferQuestion()
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise RequestRefused(400, f"the request is not valid: {error}") from None
        if said.board or said.version:
            known = await self._serving.reporting.known(request.device)
            now = said.board or known.board, said.version or known.version
            if now != (known.board, known.version):
                await self._serving.reporting.put_device(request.device, *now)
        artefact = (await self._serving.offered(request.device, self._sink)).artefact
        if artefact is None:
            return msgspec.json.encode(TopicOffers(artefact=None))
        envelope = artefact.envelope
        short = len(envelope) <= MANIFEST_BYTES_IN_OFFER
        offer = TopicOffer(
            **msgspec.structs.asdict(available(artefact)),
            manifest_size=len(envelope),
            manifest_sha256=envelope_digest(envelope),
            manifest=base64.b64encode(envelope).decode() if short else "",
        )
        return msgspec.json.encode(TopicOffers(artefact=offer))

    def _address(self, device: str) -> str | None:
        """Return the address of a device's reports, if the client may send to it: then it is that device."""
        try:
            address = address_of_reports(self._serving.reporting.address, device)
        except RequestRefused:
            return None
        return address if self._grant is None or self._grant.may_send(address) else None
