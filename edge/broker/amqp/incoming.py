"""A link a device sends on: an origin of the router, with its credit and its settlement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from bridge.amqp_values import DecodeError
from bridge.engine import Condition, DeliveryState, Detail, Engine, Link, Transfers
from bridge.hidden import hides
from bridge.message import AMQP, DURABLE, GROUPED, RETAIN, Run
from bridge.publisher import device_of
from bridge.sections import bare_message
from edge.broker.amqp.addressing import CONDITIONS, AttachRefused, check_to
from edge.broker.amqp.scheduler import Flusher
from edge.broker.limits import ADDRESSED_AT_ONCE, HEADER_USUAL_BYTES_MAX, SENDER_CREDIT
from edge.broker.message.delivery_time import delivery_delay_of
from edge.broker.message.translation import (
    GROUP_FIELD,
    address_of,
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

_NS_IN_MS = 1_000_000
_NOBODY = (Refusal.NO_CONSUMER, Refusal.NO_CONSUMER_CONNECTED, Refusal.RELEASED)
_PASSING = (Refusal.FULL, Refusal.NAMES, Refusal.STORE_FAILED)
"""Refusals that say nothing about the message."""
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
"""Their symbolic descriptors (section 3.4), by which a source lists what may be chosen."""
_MODIFIED = {
    Refusal.RELEASED: DeliveryState.MODIFIED,
    Refusal.DELIVERY_FAILED: DeliveryState.MODIFIED_FAILED,
    Refusal.UNDELIVERABLE: DeliveryState.MODIFIED_UNDELIVERABLE,
}
"""Refusals that a consumer may send with annotations."""


@hides("header", "body")
class TranslatedMessage(NamedTuple):
    """A message as it is published: where, of which device (empty: the sender's own, and held against what that may
    do), with which header section and bare message."""

    address: str
    device: str
    header: bytes
    body: bytes


class MessageRelay(Protocol):
    """Reads messages of a link in another way than by their address."""

    def translated(self, header: bytes, body: bytes, *, settled: bool) -> TranslatedMessage | None:
        """None for a message that is what it says. Raises `AttachRefused` or `DecodeError`."""
        ...


class _PendingRun:
    """Messages alike in everything but their body, on their way to become a run."""

    __slots__ = ("address", "bodies", "device", "flags", "header", "tokens")

    def __init__(self, address: str, header: bytes, flags: int, device: str) -> None:
        self.address = address
        self.device = device
        self.header = header
        self.flags = flags
        self.bodies: list[bytes] = []
        self.tokens: list[int] = []

    def is_for(self, address: str, header: bytes, flags: int, device: str) -> bool:
        """A message like this belongs to it."""
        same = self.address == address and self.header == header
        return same and self.flags == flags and self.device == device


class IncomingLink(Origin):
    """Origin of what one link brings in; its tokens are the delivery numbers of the engine."""

    user: str
    """Declared here for the reason `ConnectionHandler.user` of MQTT is."""

    __slots__ = (
        "_direct", "_driver", "_engine", "_grant", "_held", "_link", "_relay", "_router", "_said", "_under_way",
        "_window", "address", "delivered", "header_usual", "name", "user",
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
    ) -> None:
        """`address` None: the anonymous relay, every message says its own, and is held against `grant` if there is
        one; where there is an address the attach was. With a relay it is the anonymous relay, whatever the address."""
        self.name = name
        self.user = user
        self.address = address = address if relay is None else None
        self._relay = relay
        self._engine = engine
        self._link = link
        self._router = router
        self._driver = driver
        self._grant = grant if address is None else None
        self._direct = address is not None and router.addresses.type_of(address) in _DIRECT
        self._under_way = 0
        """Messages published and not answered yet."""
        self.delivered = 0
        """Messages that came since the link was attached."""
        self._window = SENDER_CREDIT
        """Messages the address allowed under way when it was asked last; a direct one, to come."""
        self.header_usual = b""
        """The header section of the last messages: most often the next ones have the same."""
        self._said: dict[int, Explanation] | None = None
        """What consumers said of messages that are about to be refused."""
        self._held = False
        """No more credit for now: a subscriber of what comes in has to catch up."""
        if address is None:
            link.bound_transfers(ADDRESSED_AT_ONCE)

    # --- from the session -------------------------------------------------------------------------------------

    def received(self, event: Transfers) -> None:
        """Publish what one read brought, as few runs as it can be."""
        settled = event.settled
        self.delivered += len(event.messages)
        run = self._alike(event.messages)
        if run is not None:
            header, bodies = run
            flags = AMQP | (0 if settled else 1)
            self._publish(self.address or "", header, flags, bodies, () if settled else event.deliveries)
        else:
            self._publish_each(event)
        self.top_up()

    def took(self) -> None:
        """One message that was sent unsettled is published by somebody else."""
        self.delivered += 1
        self._under_way += 1

    def accept_one(self, number: int, deliveries: list[int]) -> None:
        """As `accepted`, of one message; its delivery goes to those that the caller settles before anything else is
        done."""
        self._under_way -= 1
        link = self._link
        delivery = self._engine.take_unsettled(link, number)
        if delivery:
            if not self._direct and link.credit * 2 <= self._window - self._under_way:
                self.top_up()
            deliveries.append(delivery)
            self._driver.flush_soon()

    @property
    def unsettled(self) -> int:
        """Messages that were not answered yet."""
        return self._under_way

    @property
    def wants_credit(self) -> bool:
        """It is time for `top_up`."""
        return self._link.credit * 2 <= self._window - (0 if self._direct else self._under_way)

    def top_up(self) -> None:
        """Grant credit when half of what the address allows has been used up; it is not asked for before."""
        link, under_way = self._link, 0 if self._direct else self._under_way
        if link.credit * 2 > self._window - under_way or link.closed or self._held:
            return
        if self.address is not None:
            self._window = self._router.credit.of(self, self.address)
        window = self._window - under_way
        if window > 0 and link.credit * 2 <= window:
            self._engine.grant(link, window - link.credit)
            self._driver.flush_soon()

    def ended(self) -> None:
        """The link is over; answers that still come are of no interest."""
        self._router.forget_origin(self)

    # --- from the router --------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        self._settle(tokens, DeliveryState.ACCEPTED, None)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        if self._driver.trace is not None:
            self._driver.trace.refused(self.address or "", tokens, why)
        if self._said is not None:
            tokens = self._refuse_explained(tokens, why, self._said)
        if not tokens:
            return
        if why is Refusal.UNDELIVERABLE or why is Refusal.DELIVERY_FAILED:
            self._settle(tokens, _MODIFIED[why], None)
        elif why in _NOBODY or (why in _PASSING and (self._direct or self._relay is not None)):
            self._settle(tokens, DeliveryState.RELEASED, None)  # not the message's fault: it may be sent again
        else:
            self._settle(tokens, DeliveryState.REJECTED, Condition(CONDITIONS[why], why.value))

    def explained(self, tokens: Sequence[int], said: Explanation) -> None:
        if self._said is None:
            self._said = {}
        self._said.update(dict.fromkeys(tokens, said))

    def hold_back(self) -> None:
        """A subscriber of what comes in is behind: grant nothing more for now."""
        self._held = True

    def go_on(self) -> None:
        """It has caught up, or is not waited for any more."""
        self._held = False
        self.top_up()

    def credit_changed(self, address: str) -> None:
        """It may allow something again."""
        self._window = SENDER_CREDIT
        self.top_up()

    def abort(self) -> None:
        self._driver.abort()

    # --- inside -----------------------------------------------------------------------------------------------

    def _refuse_explained(self, tokens: Sequence[int], why: Refusal, said: dict[int, Explanation]) -> Sequence[int]:
        """As consumers said it, who do so message by message. Returns those of which nothing was said."""
        others: list[int] = []
        for token in tokens:
            condition, description, annotations = said.pop(token, _UNEXPLAINED)
            if annotations and why in _MODIFIED:
                self._settle((token,), _MODIFIED[why], annotations)
            elif why is Refusal.REJECTED and condition:
                self._settle((token,), DeliveryState.REJECTED, Condition(condition, description))
            else:
                others.append(token)
        if not said:
            self._said = None
        return others

    def _settle(self, tokens: Sequence[int], state: DeliveryState, detail: Detail) -> None:
        self._under_way -= len(tokens)
        if self._link.closed:
            return
        self._tell(tokens, state, detail)
        if not self._direct:
            self.top_up()
        self._driver.flush_soon()

    def _tell(self, tokens: Sequence[int], state: DeliveryState, detail: Detail) -> None:
        """An outcome the sender's source does not list is not for it: settled without one, it takes its default outcome
        (section 3.5.3). Where it lists none, it takes any, as most clients mean it."""
        listed = self._link.source.outcomes
        if listed and state is not DeliveryState.ACCEPTED and _OUTCOMES[state] not in listed:
            state, detail = DeliveryState.NONE, None
        self._engine.settle(self._link, tokens, state, detail)

    def _alike(self, messages: list[bytes]) -> tuple[bytes, list[bytes]] | None:
        """(header, bodies) when all messages have one header and nothing else of interest; None: look at each."""
        header = self.header_usual
        if self.address is None:
            return None
        bodies = self._engine.usual_bodies(messages, header)
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
        bodies = self._engine.usual_bodies(messages, found)
        if bodies is None:
            return None
        if end <= HEADER_USUAL_BYTES_MAX:
            self.header_usual = found
        return found, bodies

    def _publish(
        self, address: str, header: bytes, flags: int, bodies: list[bytes], tokens: Sequence[int], device: str = ""
    ) -> None:
        if header and read_header(header).durable:
            flags |= DURABLE
        self._under_way += len(tokens)
        publication = Publication(self, Run(address, device or self.name, flags, header, bodies), tokens)
        trace = self._driver.trace
        if trace is None:
            self._router.publish(publication)
        else:
            trace.publish(self._router, publication)

    def _publish_each(self, event: Transfers) -> None:
        settled = event.settled
        gathering: _PendingRun | None = None
        for i, message in enumerate(event.messages):
            token = None if settled else event.deliveries[i]
            try:
                properties, (address, device, header, body) = self._read(message, settled=settled)
                flags = AMQP | flags_of(body, settled=settled)
                if device:
                    flags &= ~RETAIN  # of all devices of a tenant one message would be retained
                if isinstance(properties[GROUP_FIELD], str):
                    flags |= GROUPED
            except (DecodeError, AttachRefused) as error:
                self._reject(token, error)
                continue
            if gathering is None or not gathering.is_for(address, header, flags, device):
                self._publish_gathered(gathering)
                gathering = _PendingRun(address, header, flags, device)
            gathering.bodies.append(body)
            if token is not None:
                gathering.tokens.append(token)
        self._publish_gathered(gathering)

    def _read(self, message: bytes, *, settled: bool) -> tuple[Sequence[Any], TranslatedMessage]:
        """The properties of one message, and how it is published. Raises `DecodeError` or `AttachRefused`."""
        self._engine.check_message(message)
        end, start = bare_message(message)
        header, body = message[:end], message[start:]
        self._check_delivery_time(body)
        properties = properties_of(body)
        header = self._header(header, expiry_ms_of(properties))
        if self._relay is not None:
            found = self._relay.translated(header, body, settled=settled)
            if found is not None:
                if not found.device:
                    self._permit(found.address)
                return properties, found
        address = self.address if self.address is not None else check_to(address_of(properties))
        self._permit(address)
        return properties, TranslatedMessage(address, "", header, body)

    def _check_delivery_time(self, body: bytes) -> None:
        """Raises `AttachRefused` for a message that is to be delivered later: nothing here would wait for that."""
        asked = delivery_delay_of(body, self._router.now_ns() // _NS_IN_MS)
        if asked is not None:
            name, ahead_ms = asked
            text = f"{name} requests delivery in {ahead_ms} ms; scheduled delivery is unsupported: send it when due"
            raise AttachRefused("amqp:not-implemented", text)

    def _header(self, header: bytes, expiry_ms: int | None) -> bytes:
        """The header with the absolute-expiry-time of the bare message as a time to live, where that is sooner: one
        place says how long a message lives, and the bare message stays as it is."""
        if expiry_ms is None:
            return header
        return with_ttl(header, max(0, expiry_ms - self._router.now_ns() // _NS_IN_MS))

    def _publish_gathered(self, gathering: _PendingRun | None) -> None:
        if gathering is not None:
            g = gathering
            self._publish(g.address, g.header, g.flags, g.bodies, g.tokens, g.device)

    def _permit(self, address: str) -> None:
        """Raises `AttachRefused` for a message on the anonymous relay that must not be sent there."""
        if self._grant is not None and not self._grant.may_send(address):
            raise AttachRefused(_NOT_AUTHORIZED, f"{device_of(self.name)} must not send to {address!r}")

    def _reject(self, token: int | None, error: Exception) -> None:
        self._router.figures.refused += 1
        if token is not None:
            name = error.condition.name if isinstance(error, AttachRefused) else _DECODE_ERROR
            self._tell((token,), DeliveryState.REJECTED, Condition(name, str(error)))
