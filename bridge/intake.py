"""The hub's end of the crossing: takes what gateways send, hands it to the hub's service, settles at its word.

`accepted` means durable at the hub, so nothing is settled here before the service says so, and the credit given to a
gateway bounds what may wait for that. Sans-I/O: obeys `driver.Owner` over a server engine. One a connection.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from bridge import plain
from bridge.batch import CAPABILITY, Batch, BatchError, cost, decode
from bridge.clock_offset import CAPABILITY as CLOCK_OFFSETS
from bridge.downlink import Downlink
from bridge.engine import (
    Attached,
    Closed,
    Condition,
    DeliveryState,
    Detached,
    Dispositions,
    Engine,
    Link,
    LinkFlow,
    PeerOpened,
    Transfers,
)
from bridge.hidden import hides
from bridge.hub_addresses import DESIRED, INSTANCE, LEDGER, MANIFESTS, STATUS, TELEMETRY
from bridge.lane import BatchLane
from bridge.limits import (
    DESIRED_REPORT_BYTES_MAX,
    HELD_MESSAGE_BYTES,
    INSTANCE_CHARACTERS_MAX,
    LEDGER_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    STATUS_BYTES_MAX,
)
from bridge.plain import Arrival, MessageError
from bridge.sasl import ANONYMOUS

log = logging.getLogger(__name__)

STATUS_CREDIT: Final = 16
"""Status documents a gateway may have on the way; they are settled already, this only paces them."""
LEDGER_CREDIT: Final = 64
"""Ledger documents of a gateway that may wait to be durable."""

MANIFESTS_CREDIT: Final = 8
"""Manifest documents of a gateway that may wait to be durable."""


DESIRED_CREDIT: Final = 4
"""Reports of its configuration a gateway may have on the way: it sends the next one when something has changed."""


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """What one gateway's connection may make the hub hold."""

    batches_unsettled: int = 64
    """Batches that may wait to be durable: with the gateway's 256 KiB each, 16 MiB."""
    messages_unsettled: int = 4096
    """The same for a peer that sends plain messages."""
    bytes_unsettled: int = 32 << 20
    """Decoded bytes waiting to be durable above which no more credit is given, and what is there already waits as it
    came until there is room. A delivery larger than this is decoded when nothing else is."""
    bytes_unread: int = 32 << 20
    """Bytes that wait as they came above which the connection is not read; credit already given may be for more."""
    bytes_a_turn: int = 4 << 20
    """Decoded bytes in one turn of the loop, or one delivery: some 10 ms of it, so that others have theirs."""


NO_ROOM: Final = "what it has sent waits to be landed"
HELD_BACK: Final = "what others have sent is landed first"
"""Why a connection is not read."""


class IntakeShell(Protocol):
    """What the intake needs of its connection's driver (`bridge.transport.driver.ConnectionDriver`)."""

    def flush_soon(self) -> None:
        """There is something to send."""
        ...

    def soon(self, callback: Callable[[], None]) -> None:
        """Call this in the next turn of the loop."""
        ...

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    def identified(self, user: str) -> bool:
        """The peer has said who it is; False when there is no room for another connection of it."""
        ...


@hides("content")
class UnreadDelivery(NamedTuple):
    """A delivery that cannot be read."""

    link: str
    """Address of the link it came on."""
    delivery: int | None
    """Its number; None when it was sent settled."""
    content: bytes
    """The message as it came."""
    why: str


class IntakeService(Protocol):
    """What the hub does with what arrives. No method blocks; all run on the loop's thread.

    Tokens name what must be settled: through `Intake.accept` once durable, else `reject` or `release`, in any grouping,
    at any later time. After `gateway_disconnected` the tokens of that intake are void, and settling them does nothing.
    """

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        """A gateway opened its connection. May answer with `Intake.close`."""
        ...

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, ends: Mapping[int, int], gateway: str) -> None:
        """`ends`: by log of the gateway's store, where the messages of the batch end, as far as the gateway says so."""
        ...

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, Arrival]], gateway: str) -> None:
        """Plain AMQP messages, (token, message); what a message says of its gateway is the peer's word, not ours."""
        ...

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None: ...

    def ledger_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None: ...

    def manifests_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None: ...

    def desired_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        """A report of how the gateway is configured (`bridge.desired.Report`)."""
        ...

    def unreadable_arrived(self, intake: Intake, token: int, unread: UnreadDelivery, gateway: str) -> None:
        """Telemetry, ledger or manifest nobody can read: it is kept as it came, and accepted once that is durable."""
        ...

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        """Exactly once for each `gateway_connected`."""
        ...

    def has_room(self, intake: Intake) -> bool:
        """More of this connection may be decoded. When it turns true again the service calls `Intake.go_on`."""
        ...

    def unread_changed(self, intake: Intake, by: int) -> None:
        """So many bytes more, or less, of this connection wait as they came."""
        ...


class _IntakeDelivery(NamedTuple):
    """A delivery that waits for the service's word."""

    link: Link
    delivery: int
    size: int
    lane: BatchLane | None
    """Of a batch."""


@hides("message")
class _Arrived(NamedTuple):
    """A delivery as it came."""

    link: Link
    delivery: int | None
    message: bytes


class _ReceiverState:
    """What a link of the peer's is for: kept as the link's context."""

    __slots__ = ("batching", "credit_max", "plainly", "target", "unread", "unsettled")

    def __init__(self, target: str, credit_max: int, *, batching: bool) -> None:
        self.target = target
        self.credit_max = credit_max
        self.batching = batching
        self.plainly = target == TELEMETRY and not batching
        """It brings telemetry, one message a delivery."""
        self.unread = 0
        """Deliveries that wait as they came."""
        self.unsettled = 0


class Intake:
    """One gateway's connection at the hub."""

    def __init__(
        self,
        engine: Engine,
        service: IntakeService,
        shell: IntakeShell,
        *,
        gateway: str | None = None,
        limits: IntakeLimits | None = None,
        downlink: Downlink | None = None,
    ) -> None:
        """`gateway`: its name, where it is known, and has a place, before the connection opens; None: it is who SASL
        says, or else its container-id. `downlink`: what goes down to it; None: nothing does."""
        self._engine = engine
        self._service = service
        self._shell = shell
        self._limits = limits or IntakeLimits()
        self._admitted = gateway
        self._downlink = downlink or Downlink(("", ""), {})
        self._gateway: str | None = None
        self._held: dict[int, _IntakeDelivery] = {}
        self._held_bytes = 0
        self._held_of_backlog = 0
        self._batches_max = self._limits.batches_unsettled
        self._arrived: deque[_Arrived] = deque()
        self._unread_bytes = 0
        self._busy = False
        """What has arrived is being read, or will be in the next turn of the loop."""
        self._tokens = count()
        self._receivers: list[Link] = []
        self._over = False
        self.instance = ""
        """Name of this run of the gateway (`bridge.hub_addresses.INSTANCE`); empty where the gateway gives none."""
        self.malformed = 0
        """Deliveries that could not be read."""

    @property
    def gateway(self) -> str | None:
        """Who the peer is; None while not open."""
        return self._gateway

    @property
    def unsettled(self) -> tuple[int, int]:
        """(deliveries, decoded bytes) that wait for the service's word."""
        return len(self._held), self._held_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of this connection that wait, as they came or for the service's word."""
        return self._held_bytes + self._unread_bytes

    @property
    def has_backlog(self) -> bool:
        """A batch of its backlog waits for the service's word."""
        return self._held_of_backlog > 0

    # --- Owner ------------------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Closed):
                self._on_closed()
            elif self._over:
                continue  # what comes after a release must not be taken before what was released
            elif isinstance(event, Transfers):
                self._on_transfers(event)
            elif isinstance(event, PeerOpened):
                self._on_opened(event)
            elif isinstance(event, Attached):
                self._on_attached(event.link)
            elif isinstance(event, Detached):
                self._on_detached(event.link)
            elif isinstance(event, LinkFlow):
                self._downlink.flow(event.link)
            elif isinstance(event, Dispositions):
                self._downlink.settled(self._engine, event)

    def writable(self) -> None:
        """Little is sent: settlements, credit, and what `bridge.downlink` bounds."""

    # --- for the service --------------------------------------------------------------------------------------

    def accept(self, tokens: Iterable[int]) -> None:
        """These are durable. Tokens that are void are passed over."""
        self._settle(tokens, DeliveryState.ACCEPTED, None)

    def reject(self, token: int, condition: str, description: str) -> None:
        """This can never be taken; the gateway gives it up, loudly."""
        self._settle((token,), DeliveryState.REJECTED, Condition(condition, description))

    def release(self, tokens: Iterable[int], reason: str = "not now") -> None:
        """These cannot be taken now. Everything that came after them on their links goes back with them, and the
        connection ends: the gateway sends again from there, later and in order (decision 0003).

        A service that only needs time should rather not answer: the credit stops the gateway.
        """
        links = {id(held.link): token for token in sorted(tokens, reverse=True) if (held := self._held.get(token))}
        back = [token for token, held in self._held.items() if token >= links.get(id(held.link), token + 1)]
        if back:
            self._settle(back, DeliveryState.RELEASED, None)
            self.close("amqp:resource-limit-exceeded", reason)

    def close(self, condition: str, description: str) -> None:
        """End the connection, e.g. of a gateway that is not admitted."""
        self._over = True
        self._downlink.end()
        self._forget_unread(None)
        self._engine.close(Condition(condition, description))
        self._shell.flush_soon()

    def go_on(self) -> None:
        """The service has room again: take what waits."""
        if self._arrived and not self._busy:
            self._take()

    def share(self, batches: int) -> None:
        """The peer may have so many batches on their way, and no more than the limits say; what it has is not taken
        back."""
        more, self._batches_max = batches > self._batches_max, batches
        if more and self._receivers:
            self._replenish()
            self._shell.flush_soon()

    def hold_back(self, reason: str = HELD_BACK) -> None:
        """Read nothing more of the peer until `read_on` for the same reason; idempotent, as that is."""
        self._shell.pause_reading(reason)

    def read_on(self, reason: str = HELD_BACK) -> None:
        """The service takes back `hold_back`."""
        self._shell.resume_reading(reason)

    # --- inside -----------------------------------------------------------------------------------------------

    def _on_opened(self, event: PeerOpened) -> None:
        gateway = self._admitted or self._named(event)
        if gateway is None:
            return
        self._gateway = gateway
        self.instance = str(event.properties.get(INSTANCE, ""))[:INSTANCE_CHARACTERS_MAX]
        self._engine.open()
        self._service.gateway_connected(gateway, self)

    def _named(self, event: PeerOpened) -> str | None:
        """Who a peer is that nobody knows yet; None, and the connection ends, when it cannot stay."""
        gateway = event.container_id if event.identity in (None, ANONYMOUS) else event.identity
        if not gateway:
            self.close("amqp:invalid-field", "a gateway needs a container-id")
        elif not self._shell.identified(gateway):
            self.close("amqp:resource-limit-exceeded", "there is no room for another connection")
        else:
            return gateway
        return None

    def _on_attached(self, link: Link) -> None:
        address = link.target.address
        if link.is_sender and self._downlink.attach(self._engine, link, self._shell.flush_soon):
            return
        if link.is_sender or address is None or not self._takes(address):
            name = link.source.address if link.is_sender else address
            self._engine.refuse(link, Condition("amqp:not-found", f"nothing is here under {name!r}"))
            return
        batching = address == TELEMETRY and CAPABILITY in link.desired_capabilities
        credit = {
            TELEMETRY: self._limits.batches_unsettled if batching else self._limits.messages_unsettled,
            STATUS: STATUS_CREDIT,
            LEDGER: LEDGER_CREDIT,
            MANIFESTS: MANIFESTS_CREDIT,
            DESIRED: DESIRED_CREDIT,
        }
        link.bind(_ReceiverState(address, credit[address], batching=batching))
        self._receivers.append(link)
        offered = CAPABILITY if batching else CLOCK_OFFSETS
        known = batching or (address == MANIFESTS and offered in link.desired_capabilities)
        self._engine.accept(link, offered_capabilities=(offered,) if known else ())
        self._replenish()

    def _takes(self, address: str) -> bool:
        """Gateways may send there. How one is configured is heard where somebody decides about it: a report that is
        accepted confirms what it says."""
        return address in (TELEMETRY, STATUS, LEDGER, MANIFESTS) or (
            address == DESIRED and self._downlink.serves(DESIRED)
        )

    def _on_transfers(self, event: Transfers) -> None:
        deliveries: Sequence[int | None] = [None] * len(event.messages) if event.settled else event.deliveries
        self._arrived.extend(map(_Arrived, repeat(event.link), deliveries, event.messages))
        event.link.context.unread += len(event.messages)
        self._count_unread(sum(map(len, event.messages)))
        if not self._busy:
            self._take()

    def _take(self) -> None:
        """Read what has arrived, in order, as far as this turn and the room allow."""
        self._busy = True
        gateway, left = self._gateway or "", self._limits.bytes_a_turn
        plainly: list[tuple[int, Arrival]] = []
        while self._arrived and left > 0:
            link, delivery, message = self._arrived[0]
            size = _cost(link.context, message)
            if not self._has_room(size):
                break
            self._arrived.popleft()
            link.context.unread -= 1
            self._count_unread(-len(message))
            left -= size
            try:
                if link.context.plainly:
                    arrival = plain.parse(message)
                    plainly.append((self._hold(link, delivery, size), arrival))
                else:
                    self._on_message(link, delivery, message, gateway)
            except (BatchError, MessageError) as error:
                self._on_unreadable(link, delivery, message, error, gateway)
        if plainly and not self._over:
            self._service.messages_arrived(self, plainly, gateway)
        self._busy = bool(self._arrived) and left <= 0
        if self._busy:
            self._shell.soon(self._take)
        self._replenish()

    def _has_room(self, size: int) -> bool:
        """So much more may be held, or nothing is."""
        if not self._held_bytes:
            return self._service.has_room(self)
        return self._held_bytes + size <= self._limits.bytes_unsettled and self._service.has_room(self)

    def _count_unread(self, by: int) -> None:
        self._unread_bytes += by
        self._service.unread_changed(self, by)
        if self._unread_bytes > self._limits.bytes_unread:
            self._shell.pause_reading(NO_ROOM)
        elif self._unread_bytes <= self._limits.bytes_unread // 2:
            self._shell.resume_reading(NO_ROOM)

    def _forget_unread(self, link: Link | None) -> None:
        """What has not been read of a link, or of all, will come again."""
        kept = [arrived for arrived in self._arrived if link is not None and arrived.link is not link]
        self._arrived = deque(kept)
        self._count_unread(sum(len(arrived.message) for arrived in kept) - self._unread_bytes)

    def _on_status(self, link: Link, delivery: int | None, document: dict[str, Any], gateway: str) -> None:
        self._service.status_arrived(self, document, gateway)
        if delivery is not None:
            self._engine.settle(link, (delivery,), DeliveryState.ACCEPTED)

    def _on_message(self, link: Link, delivery: int | None, message: bytes, gateway: str) -> None:
        """A batch or a document. Raises `BatchError` or `MessageError` when it cannot be read."""
        target = link.context.target
        if target == TELEMETRY:
            content, ends = plain.batch_in(message)
            batch = decode(content)
            token = self._hold(link, delivery, max(batch.size, batch.expanded), batch.lane)
            self._service.batch_arrived(self, token, batch, ends, gateway)
            return
        body = plain.body_of(message)
        if target == STATUS:
            self._on_status(link, delivery, _document(body, STATUS_BYTES_MAX), gateway)
        elif target == MANIFESTS:
            document = _document(body, MANIFEST_BYTES_MAX)
            self._service.manifests_arrived(self, self._hold(link, delivery, len(body)), document, gateway)
        elif target == DESIRED:
            document = _document(body, DESIRED_REPORT_BYTES_MAX)
            self._service.desired_arrived(self, self._hold(link, delivery, len(body)), document, gateway)
        else:
            document = _document(body, LEDGER_BYTES_MAX)
            self._service.ledger_arrived(self, self._hold(link, delivery, len(body)), document, gateway)

    def _on_unreadable(
        self, link: Link, delivery: int | None, message: bytes, error: BatchError | MessageError, gateway: str
    ) -> None:
        self.malformed += 1
        target = link.context.target
        if target not in (STATUS, DESIRED):
            token = self._hold(link, delivery, len(message))
            self._service.unreadable_arrived(
                self, token, UnreadDelivery(target, delivery, message, str(error)), gateway
            )
            return
        log.warning("gateway %s: a document on %s cannot be read: %s", gateway, target, error)
        if delivery is not None:
            self._engine.settle(link, (delivery,), DeliveryState.REJECTED, Condition(error.condition, str(error)))

    def _on_detached(self, link: Link) -> None:
        if link not in self._receivers:
            self._downlink.detached(link)
            return
        self._receivers.remove(link)
        self._forget_unread(link)
        for token in [token for token, held in self._held.items() if held.link is link]:
            self._let_go(token)

    def _on_closed(self) -> None:
        self._over = True
        self._downlink.end()
        self._forget_unread(None)
        self._held.clear()
        self._held_bytes = self._held_of_backlog = 0
        self._receivers.clear()
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            self._service.gateway_disconnected(gateway, self)

    def _hold(self, link: Link, delivery: int | None, size: int, lane: BatchLane | None = None) -> int:
        """A token for a delivery; one that was sent settled has a token that settles nothing."""
        token = next(self._tokens)
        if delivery is not None:
            self._held[token] = _IntakeDelivery(link, delivery, size, lane)
            self._held_bytes += size
            self._held_of_backlog += lane is BatchLane.BACKLOG
            link.context.unsettled += 1
        return token

    def _let_go(self, token: int) -> _IntakeDelivery | None:
        """What the token names, if it is not void; it is from now on."""
        held = self._held.pop(token, None)
        if held is not None:
            self._held_bytes -= held.size
            self._held_of_backlog -= held.lane is BatchLane.BACKLOG
        return held

    def _settle(self, tokens: Iterable[int], state: DeliveryState, condition: Condition | None) -> None:
        by_link: dict[Link, list[int]] = {}
        for token in tokens:
            held = self._let_go(token)
            if held is not None:
                by_link.setdefault(held.link, []).append(held.delivery)
                held.link.context.unsettled -= 1
        for link, deliveries in by_link.items():
            self._engine.settle(link, deliveries, state, condition)
        if by_link:
            self.go_on()
            self._replenish()
            self._shell.flush_soon()

    def _replenish(self) -> None:
        """Give back credit, a quarter at a time at least: a flow frame for each batch would be a third more frames."""
        if self._over:
            return
        for link in self._receivers:
            receiver: _ReceiverState = link.context
            most = min(receiver.credit_max, self._batches_max) if receiver.batching else receiver.credit_max
            missing = most - receiver.unsettled - receiver.unread - link.credit
            enough = (
                self._held_bytes + self._unread_bytes < self._limits.bytes_unsettled or receiver.target != TELEMETRY
            )
            if enough and (missing * 4 >= most or (missing > 0 and link.credit <= 0)):
                self._engine.grant(link, missing)


def _cost(receiver: _ReceiverState, message: bytes) -> int:
    """What a delivery will take once it is decoded, by what it says of itself."""
    own = len(message) + HELD_MESSAGE_BYTES
    return max(own, cost(plain.body_start(message))) if receiver.batching else own


def _document(body: bytes, bytes_max: int) -> dict[str, Any]:
    """A JSON object. Raises `MessageError`."""
    if len(body) > bytes_max:
        raise MessageError(f"a document of {len(body)} bytes, more than {bytes_max}")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a JSON object: {error}") from None
