"""Nodes of artefacts for devices that speak only AMQP 1.0: the exchange of `topics`, as requests and answers.

A device attaches two links to ``$artefacts/<device>``: it receives its answers on one, and sends requests on the other.
The subject of a request is the end of a topic, that of its answer likewise, with the identifier of the request:

``get/offer``                             what is offered: answered by ``offer``
``get/chunk/<sha256>/<offset>/<length>``  bytes: answered by ``chunk/<sha256>/<offset>``
``report``                                its progress: a message for the hub, accepted when it is on disk

Credit is the pace: a request waits for credit of the device's link, and the gateway gives credit for a few requests.
A request is accepted when its answer is sent, so one that is released, or lost with a connection, is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from bridge import sections as s
from bridge.amqp_values import DecodeError, Symbol, Ulong, encode
from bridge.engine import Condition, DeliveryState, Engine, Link, Transfers
from bridge.hidden import hides
from bridge.message import Run
from edge.appliance.artefacts.answering import JSON_TYPE, ArtefactAnswer, ArtefactAnswering, ReportRefused
from edge.appliance.artefacts.chunks import (
    PREFIX,
    AnswerBudget,
    ReportTopic,
    RequestedChunk,
    RequestedOffer,
    WaitingAnswer,
    read_topic,
)
from edge.appliance.artefacts.limits import ANSWERED_DEVICES_MAX, CONNECTION_REQUESTS_MAX, REQUEST_BYTES_MAX
from edge.broker.amqp.addressing import CONDITIONS, AttachRefused, local_address
from edge.broker.amqp.interception import InterceptedOrigin, LinkInterception, LinkInterceptor
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.scheduler import Flusher, Scheduler
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.message.translation import parse_message
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Refusal, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router

log = logging.getLogger(__name__)

_NOT_AUTHORIZED: Final = CONDITIONS[Refusal.NOT_AUTHORIZED]
_SETTLED_MODE: Final = 1
"""snd-settle-mode `settled` (AMQP 1.0 section 2.8.2): nothing would bound the answers that a device has not read."""
_MESSAGE_ID, _SUBJECT, _CORRELATION_ID = 0, 3, 5
"""Fields of the properties (section 3.2.4)."""
_LATER: Final = frozenset((Refusal.FULL, Refusal.STORE_FAILED, Refusal.NO_CONSUMER, Refusal.NO_CONSUMER_CONNECTED))
"""Refusals after which the same report may be sent again."""


class ArtefactNodes(LinkInterception):
    """Nodes of artefacts at one gateway."""

    def __init__(self, answering: ArtefactAnswering, router: Router) -> None:
        self._answering = answering
        self._router = router

    def links(self, grant: Grant | None) -> ArtefactLinks:
        return ArtefactLinks(self._answering, self._router, grant)


class ArtefactLinks(LinkInterceptor):
    """Links to these nodes of one connection."""

    def __init__(self, answering: ArtefactAnswering, router: Router, grant: Grant | None) -> None:
        self._answering = answering
        self._router = router
        self._grant = grant
        self._exchanges: dict[str, DeviceExchange] = {}

    def sender(self, engine: Engine, link: Link, driver: Scheduler, name: str) -> RequestLink:
        exchange = self._exchange(link.target.address)
        user = self._grant.user if self._grant is not None else ""
        return RequestLink(engine, link, self._router, driver, exchange, name=name, user=user)

    def receiver(
        self, engine: Engine, link: Link, driver: Scheduler, name: str, clock_ns: Callable[[], int]
    ) -> AnswerLink:
        exchange = self._exchange(link.source.address)
        if link.snd_settle_mode == _SETTLED_MODE:
            raise AttachRefused("amqp:not-implemented", "the device has to settle answers: snd-settle-mode is settled")
        return AnswerLink(engine, link, self._router, driver, name, clock_ns, exchange)

    def _exchange(self, address: str | None) -> DeviceExchange:
        """Return the exchange of the device of a node. Raises AttachRefused."""
        device = local_address(address or "").removeprefix(PREFIX)
        if self._answering.report_address(device, self._grant) is None:
            raise AttachRefused(_NOT_AUTHORIZED, f"no right to send reports of {device[:64]!r}")
        found = self._exchanges.get(device)
        if found is None:
            self._forget_ended()
            if len(self._exchanges) >= ANSWERED_DEVICES_MAX:
                text = f"a connection asks for {ANSWERED_DEVICES_MAX} devices at most"
                raise AttachRefused("amqp:resource-limit-exceeded", text)
            found = self._exchanges[device] = DeviceExchange(self._answering, device, self._grant)
        return found

    def _forget_ended(self) -> None:
        self._exchanges = {device: each for device, each in self._exchanges.items() if each.in_use}


@hides("body", "correlation")
class PendingRequest(NamedTuple):
    """Request that is not answered yet."""

    link: RequestLink
    delivery: int | None
    """Number to settle; None: the device has settled it."""
    request: RequestedOffer | RequestedChunk
    body: bytes
    correlation: Any

    def settle(self, state: DeliveryState, condition: Condition | None = None) -> None:
        """End the request with an outcome."""
        self.link.settle(self.delivery, state, condition)


class DeviceExchange:
    """Requests of one device over one connection, in order, and the link of their answers."""

    def __init__(self, answering: ArtefactAnswering, device: str, grant: Grant | None) -> None:
        self.answering: Final = answering
        self.device: Final = device
        self._grant = grant
        self._answers: AnswerLink | None = None
        """Newest link of answers."""
        self._senders = 0
        self._waiting: deque[PendingRequest] = deque()
        self._running: dict[asyncio.Task[None], WaitingAnswer] = {}
        """Requests in progress."""

    @property
    def in_use(self) -> bool:
        """False after the end of its links."""
        return self._answers is not None or self._senders > 0

    @property
    def idle(self) -> bool:
        """True when no answer is being made."""
        return not self._running

    @property
    def report_address(self) -> str | None:
        """Address of the device's reports; None: the rights of the client have changed."""
        return self.answering.report_address(self.device, self._grant)

    def open_sender(self) -> None:
        """Count a link of requests."""
        self._senders += 1

    def close_sender(self, link: RequestLink) -> None:
        """Drop the waiting requests of an ended link."""
        self._senders -= 1
        self._waiting = deque(each for each in self._waiting if each.link is not link)

    def open_answers(self, link: AnswerLink) -> None:
        """Answer over this link from now on."""
        if self._answers is not None:
            self._end_requests()
        self._answers = link

    def close_answers(self, link: AnswerLink) -> None:
        """End the requests with the link of their answers."""
        if self._answers is link:
            self._answers = None
            self._end_requests()

    def add(self, pending: PendingRequest) -> None:
        """Answer a request as soon as the device has room for it."""
        if self._answers is None:
            text = f"attach a receiver to {PREFIX}{self.device} before the first request"
            pending.settle(DeliveryState.REJECTED, Condition("amqp:precondition-failed", text))
        elif len(self._waiting) >= CONNECTION_REQUESTS_MAX:
            pending.settle(DeliveryState.RELEASED)  # of several links of requests
        else:
            self._waiting.append(pending)
            self.pump()

    def pump(self) -> None:
        """Begin the requests for which there is credit."""
        while (answers := self._answers) is not None and self._waiting and answers.credit > len(self._running):
            pending = self._waiting[0]
            held = self.answering.budget.take(self.device, pending.request.size, answers.abort_soon)
            if held is None and (self._running or answers.unsettled):
                return  # goes on when one of its own answers is settled
            self._waiting.popleft()
            if held is None:
                pending.settle(DeliveryState.RELEASED)
                continue
            task = asyncio.get_running_loop().create_task(self._answer(answers, pending, held))
            self._running[task] = held
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if self._answers is not None:
            self._answers.flow()

    def _end_requests(self) -> None:
        """Give back what the device has sent and got no answer to."""
        for task, held in self._running.items():
            task.cancel()
            self.answering.budget.release(held)
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            each.settle(DeliveryState.RELEASED)

    async def _answer(self, answers: AnswerLink, pending: PendingRequest, held: WaitingAnswer) -> None:
        try:
            found = await self.answering.answer(pending.request, pending.body)
            state, condition = answers.send_answer(_message(found, pending.correlation), held)
        except asyncio.CancelledError:
            pending.settle(DeliveryState.RELEASED)
            raise
        except Exception:  # the connection must not end
            log.exception("device %s: unexpected error", self.device)
            self.answering.budget.release(held)
            state, condition = DeliveryState.REJECTED, Condition("amqp:internal-error", "the gateway's log has more")
        pending.settle(state, condition)


class AnswerDeliveries(Subscription):
    """Answers of one link that the device has not settled."""

    def __init__(self, budget: AnswerBudget, pump: Callable[[], None]) -> None:
        """`pump` begins waiting requests."""
        self.attempts = 0
        self._budget = budget
        self._pump = pump
        self._waiting: dict[int, WaitingAnswer] = {}
        self._sent = 0

    @property
    def idle_now(self) -> bool:
        return not self._waiting

    def add(self, held: WaitingAnswer) -> int:
        """Add an answer that is sent now; return its position."""
        position, self._sent = self._sent, self._sent + 1
        self._waiting[position] = held
        return position

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        for position in range(first, last + 1):
            if (held := self._waiting.pop(position, None)) is not None:
                self._budget.release(held)
        self._pump()

    def pump(self) -> None:
        self._pump()

    def end(self) -> None:
        """Forget all answers, with the end of the link."""
        for held in self._waiting.values():
            self._budget.release(held)
        self._waiting.clear()


class AnswerLink(OutgoingLink):
    """Link on which a device receives answers."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        router: Router,
        driver: Scheduler,
        name: str,
        clock_ns: Callable[[], int],
        exchange: DeviceExchange,
    ) -> None:
        super().__init__(engine, link, router, driver, name, durable=False, clock_ns=clock_ns)
        self._exchange = exchange
        self._deliveries = AnswerDeliveries(exchange.answering.budget, exchange.pump)
        exchange.open_answers(self)

    def send_answer(self, message: bytes, held: WaitingAnswer) -> tuple[DeliveryState, Condition | None]:
        """Send an answer, if the device takes it. Return the outcome of its request."""
        if self.credit <= 0:  # returned by a drain, or the device does not read
            self._exchange.answering.budget.release(held)
            return DeliveryState.RELEASED, None
        if not self._fits([message]):
            self._exchange.answering.budget.release(held)
            text = f"the answer has {len(message)} bytes; the max-message-size of its link is smaller"
            return DeliveryState.REJECTED, Condition("amqp:link:message-size-exceeded", text)
        self._send(self._deliveries, self._deliveries.add(held), [message], settled=False)
        self._driver.flush_soon()
        return DeliveryState.ACCEPTED, None

    def flow(self) -> None:
        if self._link.closed or self._ending:
            return
        self._exchange.pump()
        if self._link.draining and not self._driver.congested and (self._link.credit <= 0 or self._exchange.idle):
            self._engine.drained(self._link)
            self._driver.flush_soon()

    def ended(self, *, closed: bool, lost: bool = False) -> None:
        self._ending = True
        self._outstanding.clear()
        self._exchange.close_answers(self)
        self._deliveries.end()

    def abort_soon(self) -> None:
        """End the connection in the next turn of the loop, as another one may call this."""
        asyncio.get_running_loop().call_soon(self._driver.abort)


class RequestLink(InterceptedOrigin):
    """Link on which a device sends requests and reports."""

    message_bytes_max = REQUEST_BYTES_MAX

    def __init__(
        self,
        engine: Engine,
        link: Link,
        router: Router,
        driver: Flusher,
        exchange: DeviceExchange,
        *,
        name: str,
        user: str,
    ) -> None:
        self.name = name
        self.user = user
        self.delivered = 0
        self._engine = engine
        self._link = link
        self._router = router
        self._driver = driver
        self._exchange = exchange
        self._open = 0
        """Unsettled messages."""
        exchange.open_sender()

    @property
    def unsettled(self) -> int:
        return self._open

    def received(self, event: Transfers) -> None:
        self.delivered += len(event.messages)
        for place, message in enumerate(event.messages):
            delivery = None if event.settled else event.deliveries[place]
            self._open += 1
            if event.transaction is not None:
                refused = Condition("amqp:not-implemented", "requests for artefacts are no part of transactions")
                self.settle(delivery, DeliveryState.REJECTED, refused)
                continue
            try:
                self._take(message, delivery)
            except DecodeError as error:
                self.settle(delivery, DeliveryState.REJECTED, Condition("amqp:decode-error", str(error)))

    def top_up(self) -> None:
        link, window = self._link, CONNECTION_REQUESTS_MAX - self._open
        if not link.closed and link.credit < window:
            self._engine.grant(link, window - link.credit)
            self._driver.flush_soon()

    def settle(self, delivery: int | None, state: DeliveryState, condition: Condition | None = None) -> None:
        """End a request or report with an outcome."""
        self._open -= 1
        if self._link.closed:
            return
        if delivery is not None:
            self._engine.settle(self._link, (delivery,), state, condition)
        self.top_up()
        self._driver.flush_soon()

    def ended(self) -> None:
        self._exchange.close_sender(self)
        self._router.forget_origin(self)

    # --- answers to reports -----------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.settle(token, DeliveryState.ACCEPTED)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for token in tokens:
            self._refuse(token, why)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _take(self, message: bytes, delivery: int | None) -> None:
        """Take a request or report. Raises DecodeError."""
        _, start = s.bare_message(message)
        found = parse_message(message[start:])
        fields = [*found.properties, *[None] * (_CORRELATION_ID + 1)]
        exchange = self._exchange
        request = read_topic(f"{PREFIX}{exchange.device}/{fields[_SUBJECT]}")
        address = exchange.report_address
        if request is None:
            text = f"unknown subject {str(fields[_SUBJECT])[:64]!r}: get/offer, get/chunk/… or report"
            self.settle(delivery, DeliveryState.REJECTED, Condition("amqp:not-found", text))
        elif address is None:
            self._refuse(delivery, Refusal.NOT_AUTHORIZED)
        elif isinstance(request, ReportTopic):
            self._report(address, found.body, delivery)
        else:
            wanted = fields[_MESSAGE_ID] if fields[_CORRELATION_ID] is None else fields[_CORRELATION_ID]
            exchange.add(PendingRequest(self, delivery, request, found.body, wanted))

    def _report(self, address: str, body: bytes, delivery: int | None) -> None:
        """Publish a report as a message of the client, which is accepted when it is on disk."""
        try:
            message = self._exchange.answering.report(self._exchange.device, body)
        except ReportRefused as refused:
            self._refuse(delivery, refused.refusal)
            return
        qos = 0 if delivery is None else 1
        run = Run(address, self.name, qos, encode_run(Properties(content_type=JSON_TYPE)), [message])
        self._router.publish(Publication(self, run, () if delivery is None else (delivery,)))
        if delivery is None:
            self.settle(None, DeliveryState.ACCEPTED)

    def _refuse(self, delivery: int | None, why: Refusal) -> None:
        if why in _LATER:
            self.settle(delivery, DeliveryState.RELEASED)
        else:
            self.settle(delivery, DeliveryState.REJECTED, Condition(CONDITIONS[why], why.value))


def _message(answer: ArtefactAnswer, correlation: Any) -> bytes:
    """Return an answer as a message."""
    if type(correlation) is int:
        correlation = Ulong(correlation)  # section 3.2.11
    content_type = None if answer.content_type is None else Symbol(answer.content_type)
    properties = [None, None, None, answer.path, None, correlation, content_type]
    return _section(s.PROPERTIES, properties) + _section(s.DATA, answer.content)


def _section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)
