"""Hub's receiver: passes the deliveries of a gateway to the hub's service, and settles them when the service decides.

`accepted` means on disk at the hub, so nothing is settled before the service reports that. The credit of a gateway
bounds the data that may wait. Sans-I/O: implements `driver.ConnectionOwner` over a server engine, one per connection.
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
from bridge.device_reports import DEVICE_REPORT_BYTES_MAX, REPORTS_MAX
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
from bridge.hub_addresses import (
    DESIRED,
    DEVICES,
    INSTANCE,
    LEDGER,
    MANIFESTS,
    RECEIPTS,
    RECONNECT_AFTER_MS,
    STATUS,
    TELEMETRY,
)
from bridge.lane import BatchLane
from bridge.limits import (
    DESIRED_REPORT_BYTES_MAX,
    HELD_MESSAGE_BYTES,
    INSTANCE_CHARACTERS_MAX,
    LEDGER_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    RECEIPT_DOCUMENT_BYTES_MAX,
    RECEIPT_REQUESTS_UNSETTLED_MAX,
    STATUS_BYTES_MAX,
)
from bridge.plain import Arrival, MessageError
from bridge.sasl import ANONYMOUS

log = logging.getLogger(__name__)

STATUS_CREDIT: Final = 16
"""Status documents that a gateway may have in flight; they are pre-settled, so this only paces them."""
LEDGER_CREDIT: Final = 64
"""Ledger documents of a gateway that may wait to be on disk."""

MANIFESTS_CREDIT: Final = 8
"""Manifest documents of a gateway that may wait to be on disk."""


DESIRED_CREDIT: Final = 4
"""Configuration reports that a gateway may have in flight; it sends one after each change."""


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Limits on the data that the hub holds for one gateway's connection."""

    batches_unsettled: int = 64
    """Batches that may wait to be on disk: with 256 KiB each, 16 MiB."""
    messages_unsettled: int = 4096
    """Messages that may wait to be on disk, of a peer that sends plain messages."""
    bytes_unsettled: int = 32 << 20
    """Decoded bytes waiting to be on disk. Above this no further credit is given, and deliveries that have arrived
    wait undecoded. A larger delivery is decoded when no other one is."""
    bytes_unread: int = 32 << 20
    """Undecoded bytes above which the connection is not read; credit already given may be for more."""
    bytes_a_turn: int = 4 << 20
    """Decoded bytes in one turn of the loop, or one delivery: about 10 ms, so that other connections get their turn."""


NO_ROOM: Final = "messages of this connection are not yet in the lake"
EARLIER_FIRST: Final = "messages of other connections are written to the lake first"
"""Reasons to pause reading a connection."""


class IntakeShell(Protocol):
    """Methods of the connection's driver that the intake uses (`bridge.transport.driver.ConnectionDriver`)."""

    def flush_soon(self) -> None:
        """Request a flush: there is something to send."""
        ...

    def soon(self, callback: Callable[[], None]) -> None:
        """Call this in the next turn of the loop."""
        ...

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    def identified(self, user: str) -> bool:
        """Record the user of the connection; return False when it has reached its connection limit."""
        ...


@hides("content")
class UnreadDelivery(NamedTuple):
    """A delivery that cannot be decoded."""

    link: str
    """Address of its link."""
    delivery: int | None
    """Delivery number; None when it was sent settled."""
    content: bytes
    """The message as received."""
    why: str


class IntakeService(Protocol):
    """Hub service that handles deliveries. No method blocks; all run on the loop's thread.

    A token names a delivery to settle: `Intake.accept` once it is on disk, else `reject` or `release`, in any grouping,
    at any later time. After `gateway_disconnected` the tokens of that intake are void, and settling them does nothing.
    """

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        """Handle a gateway that opened its connection. May answer with `Intake.close`."""
        ...

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, ends: Mapping[int, int], gateway: str) -> None:
        """Handle a batch. `ends`: end of its messages by log of the gateway's store, where the gateway gives it."""
        ...

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, Arrival]], gateway: str) -> None:
        """Handle plain AMQP messages, (token, message); the gateway that a message names is not verified."""
        ...

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None: ...

    def ledger_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None: ...

    def manifests_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None: ...

    def device_reported(self, intake: Intake, token: int, body: bytes, gateway: str) -> None:
        """Handle a report about a device: the JSON text of a `bridge.device_reports.DeviceReport`. `intake.accept` it
        once the registry has the device."""
        ...

    def desired_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        """Handle a report of the gateway's configuration (`bridge.desired.DesiredReport`)."""
        ...

    def receipts_requested(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        """Handle a request for statements (`bridge.landing_receipt.ReceiptRequest`): accept it after the answer."""
        ...

    def unreadable_arrived(self, intake: Intake, token: int, unread: UnreadDelivery, gateway: str) -> None:
        """Handle telemetry, ledger or manifest that cannot be decoded: keep it as received, accept it once on disk."""
        ...

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        """Handle the end of a connection: exactly once for each `gateway_connected`."""
        ...

    def has_room(self, intake: Intake) -> bool:
        """Return True when more of this connection may be decoded. After False, the service calls
        `Intake.resume_decoding` once there is room."""
        ...

    def unread_changed(self, intake: Intake, by: int) -> None:
        """Add this many bytes (negative: fewer) to the undecoded bytes of this connection."""
        ...


class _IntakeDelivery(NamedTuple):
    """A decoded delivery that the service has not settled."""

    link: Link
    delivery: int
    size: int
    lane: BatchLane | None
    """Lane of a batch; None for other deliveries."""


@hides("message")
class _Arrived(NamedTuple):
    """A received, undecoded delivery."""

    link: Link
    delivery: int | None
    message: bytes


class _ReceiverState:
    """State of one incoming link, stored as the link's context."""

    __slots__ = ("batching", "credit_max", "plainly", "target", "unread", "unsettled")

    def __init__(self, target: str, credit_max: int, *, batching: bool) -> None:
        self.target = target
        self.credit_max = credit_max
        self.batching = batching
        self.plainly = target == TELEMETRY and not batching
        """True for telemetry with one message per delivery."""
        self.unread = 0
        """Undecoded deliveries."""
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
        """`gateway`: its name, where it is authenticated and counted before the connection opens; None: the identity
        from SASL, else its container-id. `downlink`: links down to the gateway; None: there are none."""
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
        """True when deliveries are being decoded, or will be in the next turn of the loop."""
        self._tokens = count()
        self._receivers: list[Link] = []
        self._over = False
        self.instance = ""
        """Name of this run of the gateway (`bridge.hub_addresses.INSTANCE`); empty where the gateway gives none."""
        self.malformed = 0
        """Deliveries that could not be decoded."""

    @property
    def gateway(self) -> str | None:
        """Name of the peer; None while the connection is not open."""
        return self._gateway

    @property
    def unsettled(self) -> tuple[int, int]:
        """(deliveries, decoded bytes) that the service has not settled."""
        return len(self._held), self._held_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of this connection that wait, undecoded or unsettled."""
        return self._held_bytes + self._unread_bytes

    @property
    def has_backlog(self) -> bool:
        """True when a batch of its backlog is unsettled."""
        return self._held_of_backlog > 0

    # --- ConnectionOwner --------------------------------------------------------------------------------------

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Closed):
                self._on_closed()
            elif self._over:
                continue  # deliveries after a released one must not be accepted before it
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
        """Do nothing: little is sent (settlements, credit, and the bounded downlink)."""

    # --- for the service --------------------------------------------------------------------------------------

    def accept(self, tokens: Iterable[int]) -> None:
        """Accept deliveries that are on disk. Void tokens are ignored."""
        self._settle(tokens, DeliveryState.ACCEPTED, None)

    def reject(self, token: int, condition: str, description: str) -> None:
        """Reject a delivery. The gateway drops it and records the loss."""
        self._settle((token,), DeliveryState.REJECTED, Condition(condition, description))

    def release(self, tokens: Iterable[int], reason: str = "not now") -> None:
        """Release deliveries that cannot be accepted now, with all later ones on their links, and close the connection.
        The gateway sends them again later, in order (decision 0003).

        A service that only needs time should not settle at all: credit then stops the gateway.
        """
        links = {id(held.link): token for token in sorted(tokens, reverse=True) if (held := self._held.get(token))}
        back = [token for token, held in self._held.items() if token >= links.get(id(held.link), token + 1)]
        if back:
            self._settle(back, DeliveryState.RELEASED, None)
            self.close("amqp:resource-limit-exceeded", reason)

    def close(self, condition: str, description: str, reconnect_after_s: float = 0.0) -> None:
        """Close the connection, for example of a gateway that is not admitted. `reconnect_after_s`: hint for the
        gateway when to connect again."""
        self._over = True
        self._downlink.end()
        self._forget_unread(None)
        info = ((RECONNECT_AFTER_MS, str(round(reconnect_after_s * 1_000))),) if reconnect_after_s > 0 else ()
        self._engine.close(Condition(condition, description, info))
        self._shell.flush_soon()

    def resume_decoding(self) -> None:
        """Decode waiting deliveries: the service has room again."""
        if self._arrived and not self._busy:
            self._take()

    def share(self, batches: int) -> None:
        """Set the number of batches that the peer may have in flight, within the limits. Credit is not revoked."""
        more, self._batches_max = batches > self._batches_max, batches
        if more and self._receivers:
            self._replenish()
            self._shell.flush_soon()

    def pause_reading(self, reason: str = EARLIER_FIRST) -> None:
        """Stop reading from the peer until `resume_reading` with the same reason. Both are idempotent."""
        self._shell.pause_reading(reason)

    def resume_reading(self, reason: str = EARLIER_FIRST) -> None:
        """Read from the peer again."""
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
        """Return the name of a peer that was not identified before. If it is not admitted, close and return None."""
        gateway = event.container_id if event.identity in (None, ANONYMOUS) else event.identity
        if not gateway:
            self.close("amqp:invalid-field", "a gateway needs a container-id")
        elif not self._shell.identified(gateway):
            self.close("amqp:resource-limit-exceeded", "connection limit reached")
        else:
            return gateway
        return None

    def _on_attached(self, link: Link) -> None:
        address = link.target.address
        if link.is_sender and self._downlink.attach(self._engine, link, self._shell.flush_soon):
            return
        if link.is_sender or address is None or not self._takes(address):
            name = link.source.address if link.is_sender else address
            self._engine.refuse(link, Condition("amqp:not-found", f"this hub has no address {name!r}"))
            return
        batching = address == TELEMETRY and CAPABILITY in link.desired_capabilities
        credit = {
            TELEMETRY: self._limits.batches_unsettled if batching else self._limits.messages_unsettled,
            STATUS: STATUS_CREDIT,
            LEDGER: LEDGER_CREDIT,
            MANIFESTS: MANIFESTS_CREDIT,
            DESIRED: DESIRED_CREDIT,
            RECEIPTS: RECEIPT_REQUESTS_UNSETTLED_MAX,
            DEVICES: REPORTS_MAX,
        }
        link.bind(_ReceiverState(address, credit[address], batching=batching))
        self._receivers.append(link)
        offered = CAPABILITY if batching else CLOCK_OFFSETS
        known = batching or (address == MANIFESTS and offered in link.desired_capabilities)
        self._engine.accept(link, offered_capabilities=(offered,) if known else ())
        self._replenish()

    def _takes(self, address: str) -> bool:
        """Return True when gateways may send to this address. Configuration reports are taken only where a source
        decides about configurations, as accepting a report confirms it; requests for receipts where a source answers
        them, and reports of devices where a source sends some."""
        return address in (TELEMETRY, STATUS, LEDGER, MANIFESTS) or (
            address in (DESIRED, RECEIPTS, DEVICES) and self._downlink.serves(address)
        )

    def _on_transfers(self, event: Transfers) -> None:
        deliveries: Sequence[int | None] = [None] * len(event.messages) if event.settled else event.deliveries
        self._arrived.extend(map(_Arrived, repeat(event.link), deliveries, event.messages))
        event.link.context.unread += len(event.messages)
        self._count_unread(sum(map(len, event.messages)))
        if not self._busy:
            self._take()

    def _take(self) -> None:
        """Decode received deliveries in order, as far as this turn and the room allow."""
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
        """Return True when this many more bytes may be held, or none are held."""
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
        """Drop undecoded deliveries of a link, or of all (None): the peer sends them again."""
        kept = [arrived for arrived in self._arrived if link is not None and arrived.link is not link]
        self._arrived = deque(kept)
        self._count_unread(sum(len(arrived.message) for arrived in kept) - self._unread_bytes)

    def _on_status(self, link: Link, delivery: int | None, document: dict[str, Any], gateway: str) -> None:
        self._service.status_arrived(self, document, gateway)
        if delivery is not None:
            self._engine.settle(link, (delivery,), DeliveryState.ACCEPTED)

    def _on_message(self, link: Link, delivery: int | None, message: bytes, gateway: str) -> None:
        """Handle a batch or a document. Raises `BatchError` or `MessageError` when it cannot be decoded."""
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
        elif target == RECEIPTS:
            document = _document(body, RECEIPT_DOCUMENT_BYTES_MAX)
            self._service.receipts_requested(self, self._hold(link, delivery, len(body)), document, gateway)
        elif target == DEVICES:
            if len(body) > DEVICE_REPORT_BYTES_MAX:
                raise MessageError(f"a report of a device has more than {DEVICE_REPORT_BYTES_MAX} bytes")
            self._service.device_reported(self, self._hold(link, delivery, len(body)), body, gateway)
        else:
            document = _document(body, LEDGER_BYTES_MAX)
            self._service.ledger_arrived(self, self._hold(link, delivery, len(body)), document, gateway)

    def _on_unreadable(
        self, link: Link, delivery: int | None, message: bytes, error: BatchError | MessageError, gateway: str
    ) -> None:
        self.malformed += 1
        target = link.context.target
        if target not in (STATUS, DESIRED, RECEIPTS, DEVICES):
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
            self._take_held(token)

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
        """Return a token for a delivery; settling does nothing for one that was sent settled."""
        token = next(self._tokens)
        if delivery is not None:
            self._held[token] = _IntakeDelivery(link, delivery, size, lane)
            self._held_bytes += size
            self._held_of_backlog += lane is BatchLane.BACKLOG
            link.context.unsettled += 1
        return token

    def _take_held(self, token: int) -> _IntakeDelivery | None:
        """Return the delivery of a token and make the token void; None when it already is."""
        held = self._held.pop(token, None)
        if held is not None:
            self._held_bytes -= held.size
            self._held_of_backlog -= held.lane is BatchLane.BACKLOG
        return held

    def _settle(self, tokens: Iterable[int], state: DeliveryState, condition: Condition | None) -> None:
        by_link: dict[Link, list[int]] = {}
        for token in tokens:
            held = self._take_held(token)
            if held is not None:
                by_link.setdefault(held.link, []).append(held.delivery)
                held.link.context.unsettled -= 1
        for link, deliveries in by_link.items():
            self._engine.settle(link, deliveries, state, condition)
        if by_link:
            self.resume_decoding()
            self._replenish()
            self._shell.flush_soon()

    def _replenish(self) -> None:
        """Grant credit again, at least a quarter at a time: a flow frame per batch would be a third more frames."""
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
    """Return the memory a delivery needs once decoded, from the sizes that it declares."""
    own = len(message) + HELD_MESSAGE_BYTES
    return max(own, cost(plain.body_start(message))) if receiver.batching else own


def _document(body: bytes, bytes_max: int) -> dict[str, Any]:
    """Decode a JSON object. Raises `MessageError`."""
    if len(body) > bytes_max:
        raise MessageError(f"a document of {len(body)} bytes, more than {bytes_max}")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a JSON object: {error}") from None
