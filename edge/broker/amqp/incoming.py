"""Link on which a device sends: an origin of the router, with credit and settlement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bridge.amqp_values import DecodeError
from bridge.engine import Condition, DeliveryState, Detail, Engine, Link, Transfers
from bridge.hidden import hides
from bridge.message import AMQP, DURABLE, GROUPED, RETAIN, Run
from bridge.publisher import device_of
from bridge.sections import bare_message
from edge.broker.amqp.addressing import CONDITIONS, AttachRefused, check_to
from edge.broker.amqp.scheduler import Flusher
from edge.broker.limits import ADDRESSED_AT_ONCE, HEADER_USUAL_BYTES_MAX, SENDER_CREDIT
from edge.broker.message.delivery_time import DeliveryTime, delivery_time_of, without_delay
from edge.broker.message.translation import (
    GROUP_FIELD,
    address_of,
    creation_ms_of,
    expiry_ms_of,
    flags_of,
    properties_of,
    read_header,
    with_ttl,
)
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Explanation, Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from edge.broker.router.schedule_admission import ScheduleFault, ScheduleRefused

if TYPE_CHECKING:
    from edge.broker.router.transactions.changes import Posting
    from edge.broker.router.transactions.transaction import Transaction

_NS_IN_MS = 1_000_000
_NO_CONSUMER = (Refusal.NO_CONSUMER, Refusal.NO_CONSUMER_CONNECTED, Refusal.RELEASED)
_PASSING = (Refusal.FULL, Refusal.NAMES, Refusal.STORE_FAILED)
"""Temporary refusals of any message."""
_DIRECT = (AddressType.ANYCAST, AddressType.MULTICAST)
_NOT_AUTHORIZED = CONDITIONS[Refusal.NOT_AUTHORIZED]
_DECODE_ERROR = "amqp:decode-error"
_UNEXPLAINED = Explanation()
_OUTCOMES = {
    DeliveryState.REJECTED: "amqp:rejected:list",
    DeliveryState.RELEASED: "amqp:released:list",
    DeliveryState.MODIFIED: "amqp:modified:list",
    DeliveryState.MODIFIED_FAILED: "amqp:modified:list",
    DeliveryState.MODIFIED_UNDELIVERABLE: "amqp:modified:list",
}
"""Symbolic descriptors of outcomes (section 3.4), as a source lists them."""
_UNSCHEDULED = {
    ScheduleFault.UNSUPPORTED: "amqp:not-implemented",
    ScheduleFault.ADDRESS: "amqp:not-implemented",
    ScheduleFault.CLOCK: "amqp:precondition-failed",
    ScheduleFault.EXPIRED: "amqp:precondition-failed",
    ScheduleFault.TOO_FAR: "amqp:precondition-failed",
    ScheduleFault.NO_ROOM: CONDITIONS[Refusal.FULL],
}
"""Conditions for messages that cannot be scheduled."""
_MODIFIED = {
    Refusal.RELEASED: DeliveryState.MODIFIED,
    Refusal.DELIVERY_FAILED: DeliveryState.MODIFIED_FAILED,
    Refusal.UNDELIVERABLE: DeliveryState.MODIFIED_UNDELIVERABLE,
    Refusal.PATH_LOST: DeliveryState.MODIFIED_FAILED,
}
"""Refusals that a consumer may annotate."""


@hides("header", "body")
class TranslatedMessage(NamedTuple):
    """A translated message: address, device, header section and bare message.

    Without a device it is published as the sender's own, and its rights are checked.
    """

    address: str
    device: str
    header: bytes
    body: bytes


class MessageRelay(Protocol):
    """Translates the messages of a link (`edge.broker.hono.amqp`)."""

    def translated(self, header: bytes, body: bytes, *, settled: bool) -> TranslatedMessage | None:
        """Return the translation; None for a message to publish unchanged. Raises `AttachRefused` or `DecodeError`."""
        ...


class _PendingRun:
    """Collects messages that differ only in their body, for one run."""

    __slots__ = ("address", "bodies", "device", "flags", "header", "tokens")

    def __init__(self, address: str, header: bytes, flags: int, device: str) -> None:
        self.address = address
        self.device = device
        self.header = header
        self.flags = flags
        self.bodies: list[bytes] = []
        self.tokens: list[int] = []

    def is_for(self, address: str, header: bytes, flags: int, device: str) -> bool:
        """Return True if a message with these properties belongs to the run."""
        same = self.address == address and self.header == header
        return same and self.flags == flags and self.device == device


class IncomingLink(Origin):
    """Origin of the messages of one link. Its tokens are the delivery numbers of the engine."""

    user: str
    """Declared for the type checker."""

    __slots__ = (
        "_direct", "_draining", "_driver", "_engine", "_explanations", "_forbidden", "_grant", "_held", "_in_flight",
        "_link", "_relay", "_router", "_transactions", "_window", "address", "delivered", "header_usual", "name",
        "user",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        link: Link,
        router: Router,
        driver: Flusher,
        name: str,
        address: str | None,
        grant: Grant | None = None,
        relay: MessageRelay | None = None,
        user: str = "",
        *,
        forbidden: Callable[[str], None],
        transactions: Mapping[bytes, Transaction],
    ) -> None:
        """`address` None: the anonymous relay, where each message has an address that is checked against `grant`;
        `forbidden` is called with one that is not allowed. With an address the attach was checked. With `relay` the
        link is always an anonymous relay. `transactions`: those of the connection, by txn-id."""
        self.name = name
        self.user = user
        self.address = address = address if relay is None else None
        self._relay = relay
        self._engine = engine
        self._link = link
        self._router = router
        self._driver = driver
        self._grant = grant if address is None else None
        self._forbidden = forbidden
        self._transactions = transactions
        self._direct = address is not None and router.addresses.type_of(address) in _DIRECT
        self._in_flight = 0
        """Messages that are published and not answered."""
        self.delivered = 0
        """Messages received since the attach."""
        self._window = SENDER_CREDIT
        """Messages in flight that the address allows; for a direct address, its credit."""
        self.header_usual = b""
        """Header section of the last messages; most messages have the same."""
        self._explanations: dict[int, Explanation] | None = None
        """Explanations of consumers for messages that will be refused."""
        self._held = False
        """Grant no credit until a subscriber has caught up."""
        self._draining = False
        """True while the peer is requested to return its credit, because no consumer is left."""
        if self._direct and address is not None:
            router.credit.follow_consumers(self, address, self._consumers_left)
        if address is None:
            link.bound_transfers(ADDRESSED_AT_ONCE)

    # --- from the session ---------------------------------------------------------------------------------------

    def received(self, event: Transfers) -> None:
        """Publish the messages of one read in as few runs as possible."""
        settled = event.settled
        self.delivered += len(event.messages)
        if event.transaction is not None:
            self._post(event, event.transaction)
            return
        run = self._alike(event.messages)
        if run is not None:
            header, bodies = run
            flags = AMQP | (0 if settled else 1)
            self._publish(self.address or "", header, flags, bodies, () if settled else event.deliveries)
        else:
            self._publish_each(event)
        self.top_up()

    def count_taken(self) -> None:
        """Count an unsettled message that a lane publishes."""
        self.delivered += 1
        self._in_flight += 1

    def accept_one(self, number: int, deliveries: list[int]) -> None:
        """Accept one message. Append its delivery to `deliveries`, which the caller settles at once."""
        self._in_flight -= 1
        link = self._link
        delivery = self._engine.take_unsettled(link, number)
        if delivery:
            if not self._direct and link.credit * 2 <= self._window - self._in_flight:
                self.top_up()
            deliveries.append(delivery)
            self._driver.flush_soon()

    @property
    def unsettled(self) -> int:
        """Number of unanswered messages."""
        return self._in_flight

    @property
    def wants_credit(self) -> bool:
        """True if `top_up` would grant credit."""
        return self._link.credit * 2 <= self._window - (0 if self._direct else self._in_flight)

    def top_up(self) -> None:
        """Grant credit once half of what the address allows is used up."""
        link, in_flight = self._link, 0 if self._direct else self._in_flight
        if link.credit * 2 > self._window - in_flight or link.closed or self._held:
            return
        if self.address is not None:
            self._window = self._router.credit.of(self, self.address)
        window = self._window - in_flight
        if window > 0 and link.credit * 2 <= window:
            self._engine.grant(link, window - link.credit)
            self._driver.flush_soon()

    def ended(self) -> None:
        """Forget the ended link; further answers are dropped."""
        self._router.forget_origin(self)

    # --- from the router ----------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        self._settle(tokens, DeliveryState.ACCEPTED, None)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        if self._driver.trace is not None:
            self._driver.trace.refused(self.address or "", tokens, why)
        if self._explanations is not None:
            tokens = self._refuse_explained(tokens, why, self._explanations)
        if not tokens:
            return
        if why is Refusal.UNDELIVERABLE or why is Refusal.DELIVERY_FAILED or why is Refusal.PATH_LOST:
            self._settle(tokens, _MODIFIED[why], None)
        elif why in _NO_CONSUMER or (why in _PASSING and (self._direct or self._relay is not None)):
            self._settle(tokens, DeliveryState.RELEASED, None)  # temporary: the message may be sent again
        else:
            self._settle(tokens, DeliveryState.REJECTED, Condition(CONDITIONS[why], why.value))

    def explained(self, tokens: Sequence[int], explanation: Explanation) -> None:
        if self._explanations is None:
            self._explanations = {}
        self._explanations.update(dict.fromkeys(tokens, explanation))

    def pause_publishing(self) -> None:
        """Grant no credit until a subscriber has caught up."""
        self._held = True

    def resume_publishing(self) -> None:
        """Grant credit again."""
        self._held = False
        self.top_up()

    def credit_changed(self, address: str) -> None:
        """Grant credit after a change of the address."""
        self._window = SENDER_CREDIT
        if self._draining and self._router.credit.of(self, address):
            self._draining = False
            self._engine.grant(self._link, 1)  # ends the drain of a peer that returns no credit
            self._driver.flush_soon()
        self.top_up()

    def credit_returned(self) -> None:
        """Grant credit again when the address has some: the peer has answered a drain, maybe one that had ended."""
        self._draining = False
        self.top_up()

    def abort(self) -> None:
        self._driver.abort()

    # --- inside -------------------------------------------------------------------------------------------------

    def _consumers_left(self) -> None:
        """Request the credit back once no consumer is left: messages would be released. A drain does that without a
        race (section 2.6.7); a peer that does not answer it keeps its credit."""
        link, address = self._link, self.address
        if address is None or link.closed or link.credit <= 0 or self._draining:
            return
        if self._router.credit.has_consumers(address):
            return
        self._draining = True
        self._engine.grant(link, 0, drain=True)
        self._router.credit.of(self, address)  # notifies of the next consumer
        self._driver.flush_soon()

    def _refuse_explained(
        self, tokens: Sequence[int], why: Refusal, explanations: dict[int, Explanation]
    ) -> Sequence[int]:
        """Settle messages with the explanations of consumers. Return the others."""
        others: list[int] = []
        for token in tokens:
            condition, description, annotations = explanations.pop(token, _UNEXPLAINED)
            if annotations and why in _MODIFIED:
                self._settle((token,), _MODIFIED[why], annotations)
            elif why is Refusal.REJECTED and condition:
                self._settle((token,), DeliveryState.REJECTED, Condition(condition, description))
            else:
                others.append(token)
        if not explanations:
            self._explanations = None
        return others

    def _settle(self, tokens: Sequence[int], state: DeliveryState, detail: Detail) -> None:
        self._in_flight -= len(tokens)
        if self._link.closed:
            return
        self._settle_link(tokens, state, detail)
        if not self._direct:
            self.top_up()
        self._driver.flush_soon()

    def _settle_link(self, tokens: Sequence[int], state: DeliveryState, detail: Detail) -> None:
        """Settle deliveries. Without the outcome if the sender's source does not list it: then its default outcome
        applies (section 3.5.3). A source without a list accepts any outcome, as most clients intend."""
        listed = self._link.source.outcomes
        if listed and state is not DeliveryState.ACCEPTED and _OUTCOMES[state] not in listed:
            state, detail = DeliveryState.NONE, None
        self._engine.settle(self._link, tokens, state, detail)

    def _alike(self, messages: list[bytes]) -> tuple[bytes, list[bytes]] | None:
        """Return (header, bodies) if the messages differ only in their body; None: process each message."""
        header = self.header_usual
        if self.address is None:
            return None
        bodies = self._engine.strip_header(messages, header)
        if bodies is not None:
            return header, bodies
        try:
            self._engine.check_message(messages[0])
            end, start = bare_message(messages[0])
        except DecodeError:
            return None
        found = messages[0][:end]
        if start != end or found == header:
            return None
        bodies = self._engine.strip_header(messages, found)
        if bodies is None:
            return None
        if end <= HEADER_USUAL_BYTES_MAX:
            self.header_usual = found
        return found, bodies

    def _publish(
        self, address: str, header: bytes, flags: int, bodies: list[bytes], tokens: Sequence[int], device: str = ""
    ) -> None:
        self._in_flight += len(tokens)
        publication = Publication(self, self._run(address, header, flags, bodies, device), tokens)
        trace = self._driver.trace
        if trace is None:
            self._router.publish(publication)
        else:
            trace.publish(self._router, publication)

    def _run(self, address: str, header: bytes, flags: int, bodies: list[bytes], device: str) -> Run:
        """Return messages as a run. `device`: empty for the sender's own."""
        if header and read_header(header).durable:
            flags |= DURABLE
        return Run(address, device or self.name, flags, header, bodies)

    def _post(self, event: Transfers, name: bytes) -> None:
        """Hold messages in the transaction of this txn-id (part 4, section 4.4.1)."""
        from edge.broker.amqp.transactional import hold_message  # noqa: PLC0415 - few clients have transactions

        now_s = self._router.now_s()
        for place, message in enumerate(event.messages):
            answer = hold_message(self._transactions.get(name), name, partial(self._posting, message), now_s)
            if not event.settled:
                self._engine.settle(self._link, (event.deliveries[place],), *answer)
        self._driver.flush_soon()
        self.top_up()

    def _posting(self, message: bytes) -> Posting:
        """Return a message for a transaction. Raises `DecodeError` or `AttachRefused`."""
        from edge.broker.router.transactions.changes import Posting  # noqa: PLC0415 - as above

        if self._relay is not None:
            raise AttachRefused("amqp:not-implemented", "the device API takes no messages of transactions")
        properties, (address, _, header, body), later = self._read(message, settled=False)
        if later is not None:
            raise AttachRefused("amqp:not-implemented", f"{later.annotation}: a transaction schedules nothing")
        flags = AMQP | flags_of(body, settled=False)
        if isinstance(properties[GROUP_FIELD], str):
            flags |= GROUPED
        return Posting(self, self._run(address, header, flags, [body], ""))

    def _publish_each(self, event: Transfers) -> None:
        settled = event.settled
        pending: _PendingRun | None = None
        for i, message in enumerate(event.messages):
            token = None if settled else event.deliveries[i]
            try:
                properties, translated, later = self._read(message, settled=settled)
                address, device, header, body = translated
                flags = AMQP | flags_of(body, settled=settled)
                if device:
                    flags &= ~RETAIN  # else one message of all devices of a tenant would be retained
                if isinstance(properties[GROUP_FIELD], str):
                    flags |= GROUPED
                if later is not None:
                    self._schedule(translated, flags, later, token)
                    continue
            except (DecodeError, AttachRefused) as error:
                self._reject(token, error)
                continue
            if pending is None or not pending.is_for(address, header, flags, device):
                self._publish_pending(pending)
                pending = _PendingRun(address, header, flags, device)
            pending.bodies.append(body)
            if token is not None:
                pending.tokens.append(token)
        self._publish_pending(pending)

    def _read(self, message: bytes, *, settled: bool) -> tuple[Sequence[Any], TranslatedMessage, DeliveryTime | None]:
        """Return the properties and the translation of one message, and the delivery time that it requests.

        Raises `DecodeError` or `AttachRefused`.
        """
        self._engine.check_message(message)
        end, start = bare_message(message)
        header, body = message[:end], message[start:]
        properties = properties_of(body)
        later = delivery_time_of(body, self._router.time_of_day_ms, creation_ms_of(properties))
        header = self._header(header, expiry_ms_of(properties))
        if self._relay is not None:
            found = self._relay.translated(header, body, settled=settled)
            if found is not None:
                if not found.device:
                    self._permit(found.address)
                if later is not None:
                    raise AttachRefused("amqp:not-implemented", f"{later.annotation}: the device API schedules nothing")
                return properties, found, None
        address = self.address if self.address is not None else check_to(address_of(properties))
        self._permit(address)
        return properties, TranslatedMessage(address, "", header, body), later

    def _schedule(self, message: TranslatedMessage, flags: int, wanted: DeliveryTime, token: int | None) -> None:
        """Have a message published at its delivery time. Raises `AttachRefused` or `DecodeError`."""
        address, device, header, body = message
        run = self._run(address, header, flags, [without_delay(body)], device)
        tokens = () if token is None else (token,)
        self._in_flight += len(tokens)
        try:
            self._router.scheduled.add(self, run, tokens, wanted)
        except ScheduleRefused as refused:
            self._in_flight -= len(tokens)
            when = "at a time of day" if wanted.wait_ms is None else f"in {wanted.wait_ms} ms"
            text = f"{wanted.annotation} requests delivery {when}: {refused}"
            raise AttachRefused(_UNSCHEDULED[refused.fault], text) from None

    def _header(self, header: bytes, expiry_ms: int | None) -> bytes:
        """Return the header with a time to live for the absolute-expiry-time, if that is sooner.

        So the header alone determines the lifetime, and the bare message is not changed.
        """
        if expiry_ms is None:
            return header
        return with_ttl(header, max(0, expiry_ms - self._router.now_ns() // _NS_IN_MS))

    def _publish_pending(self, pending: _PendingRun | None) -> None:
        if pending is not None:
            p = pending
            self._publish(p.address, p.header, p.flags, p.bodies, p.tokens, p.device)

    def _permit(self, address: str) -> None:
        """Raise `AttachRefused` if the sender of a message on the anonymous relay has no right to send it."""
        if self._grant is not None and not self._grant.may_send(address):
            self._forbidden(address)
            raise AttachRefused(_NOT_AUTHORIZED, f"{device_of(self.name)} must not send to {address!r}")

    def _reject(self, token: int | None, error: Exception) -> None:
        self._router.figures.refused += 1
        if token is not None:
            name = error.condition.name if isinstance(error, AttachRefused) else _DECODE_ERROR
            self._settle_link((token,), DeliveryState.REJECTED, Condition(name, str(error)))
