"""Uplink: sends the messages of a gateway's router to a hub, and settles those that the hub has accepted.

The router sees two consumers, one per lane (`bridge.flow`). Only the hub's answer settles a message, so no message
leaves the gateway's store before it is on the hub's disk. After a broken connection, unsettled messages are sent again
before new ones, in the order of their lane; the hub knows by sequence which ones it has. Sans-I/O: `bridge.hub_links`
connects it to an engine.

The live lane goes first. The backlog keeps the socket's send buffer short (`bridge.socket_room`), so a live batch waits
behind one batch of the backlog instead of a whole window. The backlog always leaves part of the peer's credit to the
live lane.

Each lane is accepted in order. So when a peer releases a message, this end disconnects and sends again from that
message (decision 0003).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec

from bridge import plain
from bridge.batch import CAPABILITY, encode
from bridge.columns import FAST, SMALL
from bridge.engine import DeliveryState, Detail, Engine, Link
from bridge.flow import Outcomes, Piece, Pump, SendFlow, SendPath, SendSubscription, part_of, piece_of, split_in_half
from bridge.lane import BatchLane
from bridge.limits import (
    BACKLOG_POLL_S,
    LIVE_CREDIT_KEPT,
    UPLINK_BATCH_BYTES,
    UPLINK_LIVE_WINDOW_BYTES,
    UPLINK_WINDOW_BYTES,
)
from bridge.link_rate import LinkRate, Sent
from bridge.message import Stored
from bridge.pace import Pacer
from bridge.plain import Hop
from bridge.socket_room import SocketRoom
from bridge.transport.tcp_path import TcpPath

log = logging.getLogger(__name__)


class EpochNames(Protocol):
    """Lookup of the store epoch of a message (`edge.broker.store.epochs.Epochs`)."""

    @property
    def single(self) -> bool:
        """True when the store has only ever had the hop's epoch."""
        ...

    def of(self, address: str, sequence: int) -> str:
        """Return the epoch of one message; a run is of one epoch."""
        ...

    def start(self, address: str) -> int:
        """Return the first sequence of an address in the current epoch."""
        ...


@dataclass(frozen=True, slots=True)
class UplinkLimits:
    """Windows of an uplink, and the size and pace of its batches."""

    window_bytes: int = UPLINK_WINDOW_BYTES
    """Window of the backlog: bytes taken from the router and not settled. Exceeded by at most the router's last
    delivery."""
    live_window_bytes: int = UPLINK_LIVE_WINDOW_BYTES
    """Window of the live lane."""
    batch_bytes: int = UPLINK_BATCH_BYTES
    """Expanded size at which a batch is split, with the address and properties of each message."""
    batches_undelayed: int = 8
    """Number of unsettled batches of a lane from which on only full batches are sent."""
    gather_s: float = 0.0
    """Shortest time between two batches of the live lane that are not full."""
    gather_last_s: float = 0.0
    """The same time for the last batch that the peer has given credit for, while others are unsettled."""


class UplinkFigures(msgspec.Struct):
    """Counters of an uplink since its creation; bytes are as sent, times are seconds of the monotonic clock."""

    batches_sent: int = 0
    """Deliveries; to a peer without batches each is one message."""
    messages_sent: int = 0
    bytes_sent: int = 0
    wire_bytes: int = 0
    """Bytes in both directions, with the overhead of AMQP."""
    batches_accepted: int = 0
    messages_accepted: int = 0
    bytes_accepted: int = 0
    expanded_bytes_accepted: int = 0
    """Expanded bytes of the same messages, as `UplinkLimits.batch_bytes` counts them."""
    messages_rejected: int = 0
    messages_resent: int = 0
    last_accepted_at: float | None = None


class _SentDelivery(NamedTuple):
    """One unsettled delivery: its messages, and its bytes on the wire."""

    flow: SendFlow
    pieces: Sequence[Piece]
    messages: int
    wire_bytes: int
    sent: Sent


def _no_lanes() -> None:
    """Do nothing: an uplink without lanes."""


def _ignore_landed(_pieces: Sequence[Piece]) -> None:
    """Do nothing: no device waits for a receipt."""


class UplinkShell(Protocol):
    """Methods of the connection's driver that the uplink uses (`bridge.transport.driver.ConnectionDriver`)."""

    @property
    def path(self) -> TcpPath:
        """Bytes that have not reached the peer's kernel, and the round trip to it."""
        ...

    def flush_soon(self) -> None:
        """Request a flush: there may be something to send."""
        ...


class Uplink:
    """Two consumers of the router, which several subscriptions may share, and the link they send over. It lives as long
    as the connector."""

    def __init__(
        self,
        name: str,
        hop: Hop,
        *,
        space: str,
        outcomes: Outcomes,
        bases: Mapping[str, int] | None = None,
        epochs: EpochNames | None = None,
        log_of: Callable[[SendSubscription], int | None] = lambda _subscription: None,
        reached: Callable[[], Mapping[int, int]] = dict,
        clock: Callable[[], float] = lambda: 0.0,
        limits: UplinkLimits | None = None,
        pacer: Pacer | None = None,
        begin: Callable[[], None] = _no_lanes,
    ) -> None:
        """`bases`: first sequence to send for an address, 0 where it is missing; read at each batch, so it may grow.
        `epochs`: epochs of the store; None: everything is of the hop's epoch. `log_of`: the log of the store that the
        positions of a subscription are in. `reached`: ends of other logs of the store, reported with each batch.
        `clock`: seconds, monotonic. `pacer`: limits on sending; None: none. `begin` is called when a link is up, before
        anything is taken from the router.
        """
        self.name = name
        self.figures = UplinkFigures()
        self.limits = limits or UplinkLimits()
        self.unnamed = 0
        """Messages without a sequence: they were pre-settled (at most once), cannot be in a batch, and are not sent."""
        self._path = SendPath()
        live_bytes, backlog_bytes = self.limits.live_window_bytes, self.limits.window_bytes
        self.live = SendFlow(name, self._path, window_bytes=lambda: live_bytes, choose=self._choose)
        self.backlog = SendFlow(f"{name}, backlog", self._path, window_bytes=lambda: backlog_bytes, choose=self._choose)
        self.rate = LinkRate()
        self.pacer = pacer
        self._landed: Callable[[Sequence[Piece]], None] = _ignore_landed
        self._live_share = 1.0
        """The live lane's share of a link that both lanes could fill; 1: the live lane always goes first."""
        self._shared = 0.0
        """Bytes that the live lane has sent beyond its share; negative: the backlog has."""
        self._begin = begin
        self._shell: UplinkShell | None = None
        self._room = SocketRoom()
        self._hop = hop
        self._space = space
        self._outcomes = outcomes
        self._bases = bases if bases is not None else {}
        self._epochs = epochs
        self._log_of = log_of
        self._reached = reached
        self._clock = clock
        self._unsettled: dict[int, _SentDelivery] = {}
        self._unsettled_of = {BatchLane.LIVE: 0, BatchLane.BACKLOG: 0}
        self._tags = count()
        self._engine: Engine | None = None
        self._link: Link | None = None
        self._live_at = float("-inf")
        """Time when the last batch of the live lane left."""
        self._due_at: float | None = None
        self._sent_now = False
        """True when a delivery was passed to the engine in this flush."""
        self._socket_checked = False
        """True when the kernel's count of unsent bytes was read in this flush."""

    def remove(self, subscription: Pump) -> None:
        """Remove a forwarder: nothing more of it is sent or settled, in either lane."""
        self.live.remove(subscription)
        self.backlog.remove(subscription)

    # --- towards the link -------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def batching(self) -> bool:
        """True when the peer takes batches."""
        return self._link is not None and CAPABILITY in self._link.offered_capabilities

    @property
    def in_flight(self) -> tuple[int, int]:
        """(deliveries, messages) sent and not settled."""
        return len(self._unsettled), sum(delivery.messages for delivery in self._unsettled.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of both windows in use."""
        return self.live.held_bytes + self.backlog.held_bytes

    @property
    def due_at(self) -> float | None:
        """Time of the next `flush` that is due by the clock; None: the next one follows from an event."""
        return self._due_at if self._link is not None else None

    def set_live_share(self, share: float) -> None:
        """Set the live lane's share of a link that both lanes could fill; 1: the live lane always goes first."""
        self._live_share = share

    def set_shell(self, shell: UplinkShell) -> None:
        """Set the driver of a new connection."""
        self._path.set_wake(shell.flush_soon)
        self._shell = shell

    def count_bytes(self, size: int) -> None:
        """Count bytes that crossed the connection in either direction."""
        self.figures.wire_bytes += size
        if self.pacer is not None:
            self.pacer.count_bytes(size)

    def attached(self, engine: Engine, link: Link, disconnect: Callable[[str], None]) -> None:
        """Use a link that the peer accepted. `disconnect` is called with a reason to replace the connection."""
        self._engine, self._link = engine, link
        self._live_at = float("-inf")
        self.rate.begin()
        if self.pacer is not None:
            self.pacer.begin(self._clock())
        self._room = SocketRoom()
        self._path.opened(disconnect)
        self._begin()
        self._pump()

    def watch_landed(self, call: Callable[[Sequence[Piece]], None]) -> None:
        """Call this with messages that the peer has accepted, once for each delivery and before they are settled."""
        self._landed = call

    def reconnect(self, reason: str) -> None:
        """End the connection, if there is one; the dialer connects again."""
        self._path.disconnect(reason)

    def detached(self) -> None:
        """Handle the end of the link: unsettled messages return to the front of their lanes, in the order sent."""
        self._engine = self._link = None
        self._path.closed()
        for delivery in reversed(self._unsettled.values()):
            self.figures.messages_resent += delivery.messages
            delivery.flow.take_back(delivery.pieces)
        self._unsettled.clear()
        self._unsettled_of = {BatchLane.LIVE: 0, BatchLane.BACKLOG: 0}

    def flush(self) -> None:
        """Send what is due. Called before the engine's bytes are taken."""
        engine, link = self._engine, self._link
        if engine is None or link is None:
            return
        now = self._clock()
        self._due_at, self._sent_now, self._socket_checked = None, False, False
        while link.credit > 0 and (flow := self._next(link, now)) is not None:
            if self.batching:
                self._send_batch(engine, link, flow, flow.gather(self._batch_bytes(flow), self._epoch_of))
            else:
                self._send_plain(engine, link, flow)
        if link.draining and not (self.live.pending or self.backlog.pending):
            engine.drained(link)

    def settled(self, items: Iterable[tuple[int, DeliveryState, bool, Detail]], now: float) -> None:
        """Handle the peer's dispositions, in the form of the engine's event."""
        finished: list[tuple[_SentDelivery, Any]] = []
        refused: str | None = None
        for tag, state, remotely_settled, condition in items:
            if not remotely_settled and self._engine is not None and self._link is not None:
                self._engine.settle_sent(self._link, tag)
            delivery = self._unsettled.get(tag)
            if delivery is None:
                continue
            if state is DeliveryState.ACCEPTED:
                finished.append((self._pop_sent(tag), self._outcomes.accepted))
                self._count_accepted(delivery, now)
            elif state in (DeliveryState.REJECTED, DeliveryState.MODIFIED_UNDELIVERABLE):
                log.error("%s: the peer rejected %d messages: %s", self.name, delivery.messages, condition)
                finished.append((self._pop_sent(tag), self._outcomes.rejected))
                self.figures.messages_rejected += delivery.messages
            else:
                refused = f"the peer released {delivery.messages} messages ({state.name.lower()})"
        for delivery, outcome in finished:
            if outcome is self._outcomes.accepted:
                self._landed(delivery.pieces)
            delivery.flow.finish(delivery.pieces, outcome)
        if refused is not None:
            self._path.disconnect(refused)
        elif finished:
            self._pump()
            self._path.wake()

    # --- inside -----------------------------------------------------------------------------------------------

    def _choose(self, _subscription: SendSubscription, stored: Stored) -> Iterable[Stored]:
        if stored.sequence < 0:
            self.unnamed += len(stored.run)
            return ()
        return (stored,)

    def _lane(self, flow: SendFlow) -> BatchLane:
        return BatchLane.LIVE if flow is self.live else BatchLane.BACKLOG

    def _pump(self) -> None:
        self.live.pump()
        self.backlog.pump()

    def _pop_sent(self, tag: int) -> _SentDelivery:
        delivery = self._unsettled.pop(tag)
        self._unsettled_of[self._lane(delivery.flow)] -= 1
        return delivery

    def _next(self, link: Link, now: float) -> SendFlow | None:
        """Return the lane that sends next; None when nothing is due before `due_at`."""
        live = bool(self.live.pending) and self._live_due(link, now)
        if not (live and self._live_share < 1.0):
            if live:
                return self.live
            return self.backlog if self.backlog.pending and self._backlog_due(link, now) else None
        if not self.backlog.pending:
            self._shared = 0.0
        return self.backlog if self._shared > 0 and self._backlog_due(link, now) else self.live

    def _live_due(self, link: Link, now: float) -> bool:
        if not self._paced(BatchLane.LIVE, now):
            return False
        if not self.batching or self.live.pending_bytes >= self.limits.batch_bytes:
            return True
        if self._unsettled_of[BatchLane.LIVE] >= self.limits.batches_undelayed:
            return False
        is_last = link.credit == 1 and bool(self._unsettled)
        return self._is_due(self._live_at + (self.limits.gather_last_s if is_last else self.limits.gather_s), now)

    def _backlog_due(self, link: Link, now: float) -> bool:
        """Return True when there is spare credit, few bytes wait in the socket, and a batch is full enough."""
        window = link.credit + len(self._unsettled)
        if link.credit <= min(LIVE_CREDIT_KEPT, max(window // 4, min(window - 1, 1))):
            return False
        if not (self._paced(BatchLane.BACKLOG, now) and self._socket_takes(now)):
            return False
        if not self.batching or self._unsettled_of[BatchLane.BACKLOG] < self.limits.batches_undelayed:
            return True
        return self.backlog.pending_bytes >= self._batch_bytes(self.backlog)

    def _socket_takes(self, now: float) -> bool:
        """Return True when so few bytes are unsent that a live batch would not wait long behind them."""
        if not self._socket_checked and self._shell is not None:
            self._socket_checked = True
            self._room.update(self._shell.path, now)
        if not self._room.is_full:
            return True
        if self._sent_now:
            self._path.wake()  # the socket may be empty in the next turn
            return False
        return self._is_due(now + BACKLOG_POLL_S, now)

    def _paced(self, lane: BatchLane, now: float) -> bool:
        """Return True when the pacer allows this lane to send now."""
        until = None if self.pacer is None else self.pacer.waits_until(lane, self._room.bytes, now)
        return until is None or self._is_due(until, now)

    def _is_due(self, at: float, now: float) -> bool:
        """Return True when the time `at` has come; otherwise note it in `due_at`."""
        if at <= now:
            return True
        self._due_at = at if self._due_at is None else min(self._due_at, at)
        return False

    def _batch_bytes(self, flow: SendFlow) -> int:
        """Return the size of a batch before compression; for the backlog at most what the link carries in a moment."""
        most, figures = self.limits.batch_bytes, self.figures
        if flow is self.live or not figures.bytes_accepted:
            return most
        packed = figures.expanded_bytes_accepted / figures.bytes_accepted
        return min(max(int(self._room.bytes * packed), most // 8), most)

    def _send_batch(self, engine: Engine, link: Link, flow: SendFlow, pieces: list[Piece]) -> None:
        stored = [piece.stored for piece in pieces]
        epoch, bases = self._hop.epoch, self._bases
        if self._epochs is not None and not self._epochs.single:
            epoch = self._epoch(pieces[0])
            addresses = {piece.stored.run.address for piece in pieces}
            bases = {name: max(bases.get(name, 0), self._epochs.start(name)) for name in addresses}
        try:
            level, lane = FAST if flow is self.live else SMALL, self._lane(flow)
            data = encode(stored, space=self._space, epoch=epoch, lane=lane, bases=bases, level=level)
            message = plain.batch_message(data, self._ends(pieces))
            self._send(engine, link, flow, pieces, message)
        except ValueError as error:
            if len(pieces) == len(pieces[0].stored.run) == 1:
                self._discard(flow, pieces, str(error))
                return
            for half in split_in_half(pieces):  # isolate the message that is too large, so that the others are sent
                self._send_batch(engine, link, flow, half)

    def _ends(self, pieces: Iterable[Piece]) -> dict[int, int]:
        """Return the end of these messages by log of the store: the hub then knows that the store reaches this far."""
        ends = dict(self._reached())
        for subscription, (position, _, run), _ in pieces:
            log = self._log_of(subscription)
            if log is not None and position >= 0:
                ends[log] = max(ends.get(log, 0), position + len(run))
        return ends

    @property
    def _epoch_of(self) -> Callable[[Piece], str] | None:
        """Epoch lookup for `SendFlow.gather`; None while the store has had only one epoch."""
        return None if self._epochs is None or self._epochs.single else self._epoch

    def _epoch(self, piece: Piece) -> str:
        """Return the epoch of a piece."""
        if self._epochs is None or self._epochs.single:
            return self._hop.epoch
        return self._epochs.of(piece.stored.run.address, piece.stored.sequence)

    def _send_plain(self, engine: Engine, link: Link, flow: SendFlow) -> None:
        """Send the first waiting run as far as credit goes, each message as a delivery."""
        piece = flow.take(link.credit, sys.maxsize)
        if piece is None:
            return
        subscription, stored, _ = piece
        hop = self._hop._replace(epoch=self._epoch(piece))
        for i, message in enumerate(plain.messages(hop, stored.sequence, stored.run, plain.KEPT)):
            pieces = (piece_of(subscription, part_of(stored, i, i + 1)),)
            try:
                self._send(engine, link, flow, pieces, message)
            except ValueError as error:
                self._discard(flow, pieces, str(error))

    def _send(self, engine: Engine, link: Link, flow: SendFlow, pieces: Sequence[Piece], message: bytes) -> None:
        """Send one delivery. Raises `ValueError` when the peer does not take a message of this size."""
        if 0 < link.max_message_size < len(message):
            raise ValueError(f"{len(message)} bytes; the peer accepts {link.max_message_size}")
        tag, now = next(self._tags), self._clock()
        messages = sum(len(piece.stored.run) for piece in pieces)
        sent = self.rate.sent(now, idle=not self._unsettled)
        self._unsettled[tag] = _SentDelivery(flow, pieces, messages, len(message), sent)
        self._unsettled_of[self._lane(flow)] += 1
        if flow is self.live:
            self._live_at = now
        self.figures.batches_sent += 1
        self.figures.messages_sent += messages
        self.figures.bytes_sent += len(message)
        if self._live_share < 1.0 and self.live.pending and self.backlog.pending:
            self._shared += len(message) * (1.0 - self._live_share if flow is self.live else -self._live_share)
        if self.pacer is not None:
            self.pacer.sent(len(message), now)
        self._sent_now = True
        self._room.record_sent(len(message), now)
        engine.send(link, tag, message)

    def _discard(self, flow: SendFlow, pieces: Sequence[Piece], why: str) -> None:
        """Reject messages that can never be sent, so that they do not block the others."""
        messages = sum(len(piece.stored.run) for piece in pieces)
        log.error("%s: cannot send %d messages of %s: %s", self.name, messages, pieces[0].stored.run.address, why)
        self.figures.messages_rejected += messages
        flow.finish(pieces, self._outcomes.rejected)

    def _count_accepted(self, delivery: _SentDelivery, now: float) -> None:
        figures = self.figures
        figures.batches_accepted += 1
        figures.messages_accepted += delivery.messages
        figures.bytes_accepted += delivery.wire_bytes
        figures.expanded_bytes_accepted += sum(piece.size for piece in delivery.pieces)
        figures.last_accepted_at = now
        self.rate.acknowledged(delivery.sent, delivery.wire_bytes, now)
