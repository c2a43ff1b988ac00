"""The forwarder's machine: takes deliveries of the gateway's router, sends them on, settles what the hub accepted.

The router sees two consumers, one a lane (`bridge.flow`). Nothing is settled but by the far side's word, so nothing
leaves the gateway's store before it is durable somewhere else. What is under way when a connection breaks is kept here
and sent again, in the order of its lane, before anything new; the hub knows by sequence what it has already. Sans-I/O:
`bridge.hub_links` binds it to an engine.

The live lane goes first. Of the backlog no more is handed to the socket than leaves it in a moment
(`bridge.socket_room`): a live batch waits behind one of the backlog, not behind a window of them. And of the peer's
credit some is always left to the live lane.

Each lane is accepted in its order. So a peer that releases anything makes this side cut the connection and begin again
from there (decision 0003).
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
from bridge.flow import Outcomes, Piece, Pump, SendFlow, SendPath, SendSubscription, halves, part_of, piece_of
from bridge.lane import BatchLane
from bridge.limits import (
    BACKLOG_LOOK_S,
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
    """Which epoch of the gateway's store a message belongs to (`edge.broker.store.epochs.Epochs`)."""

    @property
    def single(self) -> bool:
        """There never was another one than the hop's."""
        ...

    def of(self, address: str, sequence: int) -> str:
        """The epoch of one message; runs lie in one."""
        ...

    def start(self, address: str) -> int:
        """The first sequence of an address in the current epoch."""
        ...


@dataclass(frozen=True, slots=True)
class UplinkLimits:
    """What one uplink may hold and how it cuts batches."""

    window_bytes: int = UPLINK_WINDOW_BYTES
    """Of the backlog: taken from the router and not yet settled. Exceeded by at most the router's last delivery."""
    live_window_bytes: int = UPLINK_LIVE_WINDOW_BYTES
    """The same of the live lane."""
    batch_bytes: int = UPLINK_BATCH_BYTES
    """A batch is cut at this size: of what it expands to, with the address and properties of each message."""
    batches_undelayed: int = 8
    """While fewer batches of a lane than this are unsettled whatever is there may go; after that only full ones."""
    gather_s: float = 0.0
    """Between two batches of the live lane that are not full: a reading waits that long for company at most."""
    gather_last_s: float = 0.0
    """The same where this is the last batch that the peer has given credit for, and it owes answers."""


class UplinkFigures(msgspec.Struct):
    """What an uplink has done since it was made; bytes are as sent, times seconds of the monotonic clock."""

    batches_sent: int = 0
    """Deliveries; to a peer without batches each is one message."""
    messages_sent: int = 0
    bytes_sent: int = 0
    wire_bytes: int = 0
    """Both ways, with what the protocol adds."""
    batches_accepted: int = 0
    messages_accepted: int = 0
    bytes_accepted: int = 0
    expanded_bytes_accepted: int = 0
    """Of the same messages: with their addresses and properties, as `UplinkLimits.batch_bytes` counts."""
    messages_rejected: int = 0
    messages_resent: int = 0
    last_accepted_at: float | None = None


class _SentDelivery(NamedTuple):
    """One unsettled delivery: what it carries, and its bytes on the wire."""

    flow: SendFlow
    pieces: Sequence[Piece]
    messages: int
    wire_bytes: int
    sent: Sent


def _no_lanes() -> None:
    """Do nothing: an uplink without lanes."""


class UplinkShell(Protocol):
    """What the uplink needs of its connection's driver (`bridge.transport.driver.ConnectionDriver`)."""

    @property
    def path(self) -> TcpPath:
        """What has not arrived at the peer's kernel, and what is known of the way there."""
        ...

    def flush_soon(self) -> None:
        """There may be something to send."""
        ...


class Uplink:
    """Two consumers of the router that several subscriptions may share, and the link they send over. One object for the
    life of the connector."""

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
        """`bases`: first sequence owed for an address, 0 where it names none; read at each batch, so it may grow.
        `epochs`: of the store; without them everything is of the hop's. `log_of`: the log of the store that the
        positions of a subscription are in. `reached`: how far the store has come besides, told as the end of a log.
        `clock`: seconds that do not go back. `pacer`: what it may send, and when; None: as the link allows. `begin` is
        called when a link is up, before anything is taken from the router.
        """
        self.name = name
        self.figures = UplinkFigures()
        self.limits = limits or UplinkLimits()
        self.unnamed = 0
        """Messages without a sequence, which no batch can carry: settled already, so at most once, and not sent."""
        self._path = SendPath()
        live_bytes, backlog_bytes = self.limits.live_window_bytes, self.limits.window_bytes
        self.live = SendFlow(name, self._path, window_bytes=lambda: live_bytes, choose=self._choose)
        self.backlog = SendFlow(f"{name}, backlog", self._path, window_bytes=lambda: backlog_bytes, choose=self._choose)
        self.rate = LinkRate()
        self.pacer = pacer
        self._live_share = 1.0
        """Of the link, where both lanes have more than it carries; 1: the live lane goes first always."""
        self._shared = 0.0
        """By so many bytes the live lane has had more than its share; less than 0: the backlog has."""
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
        """When the last batch of the live lane left."""
        self._due_at: float | None = None
        self._handed = False
        """Something was given to the engine in this flush."""
        self._looked = False
        """The kernel was asked in this flush."""

    def remove(self, subscription: Pump) -> None:
        """A forwarder ends: nothing more of it is sent or settled, in either lane."""
        self.live.remove(subscription)
        self.backlog.remove(subscription)

    # --- towards the link -------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def batching(self) -> bool:
        """The peer takes batches."""
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
        """When `flush` has something to send that it has not now; None: when somebody says so."""
        return self._due_at if self._link is not None else None

    def set_live_share(self, share: float) -> None:
        """Give the live lane this share of the link while both lanes have more than it carries; 1: it always goes
        first."""
        self._live_share = share

    def carried_by(self, shell: UplinkShell) -> None:
        """A new connection is driven by `shell`."""
        self._path.woken_by(shell.flush_soon)
        self._shell = shell

    def carried(self, size: int) -> None:
        """So many bytes crossed the connection, one way or the other."""
        self.figures.wire_bytes += size
        if self.pacer is not None:
            self.pacer.carried(size)

    def attached(self, engine: Engine, link: Link, cut: Callable[[str], None]) -> None:
        """The peer took the link. `cut` is called with a reason when the connection must end and be made anew."""
        self._engine, self._link = engine, link
        self._live_at = float("-inf")
        self.rate.begin()
        if self.pacer is not None:
            self.pacer.begin(self._clock())
        self._room = SocketRoom()
        self._path.opened(cut)
        self._begin()
        self._pump()

    def detached(self) -> None:
        """The link is over. Everything unsettled goes back before what waits, in the order it was sent."""
        self._engine = self._link = None
        self._path.closed()
        for delivery in reversed(self._unsettled.values()):
            self.figures.messages_resent += delivery.messages
            delivery.flow.take_back(delivery.pieces)
        self._unsettled.clear()
        self._unsettled_of = {BatchLane.LIVE: 0, BatchLane.BACKLOG: 0}

    def flush(self) -> None:
        """Send what is due. Called before the engine is asked for its bytes."""
        engine, link = self._engine, self._link
        if engine is None or link is None:
            return
        now = self._clock()
        self._due_at, self._handed, self._looked = None, False, False
        while link.credit > 0 and (flow := self._next(link, now)) is not None:
            if self.batching:
                self._send_batch(engine, link, flow, flow.gather(self._batch_bytes(flow), self._epoch_of))
            else:
                self._send_plain(engine, link, flow)
        if link.draining and not (self.live.pending or self.backlog.pending):
            engine.drained(link)

    def settled(self, items: Iterable[tuple[int, DeliveryState, bool, Detail]], now: float) -> None:
        """The peer's dispositions, as the engine tells them."""
        finished: list[tuple[_SentDelivery, Any]] = []
        refused: str | None = None
        for tag, state, remotely_settled, condition in items:
            if not remotely_settled and self._engine is not None and self._link is not None:
                self._engine.settle_sent(self._link, tag)
            delivery = self._unsettled.get(tag)
            if delivery is None:
                continue
            if state is DeliveryState.ACCEPTED:
                finished.append((self._over(tag), self._outcomes.accepted))
                self._count_accepted(delivery, now)
            elif state in (DeliveryState.REJECTED, DeliveryState.MODIFIED_UNDELIVERABLE):
                log.error("%s: the peer rejected %d messages: %s", self.name, delivery.messages, condition)
                finished.append((self._over(tag), self._outcomes.rejected))
                self.figures.messages_rejected += delivery.messages
            else:
                refused = f"the peer gave back {delivery.messages} messages ({state.name.lower()})"
        for delivery, outcome in finished:
            delivery.flow.finish(delivery.pieces, outcome)
        if refused is not None:
            self._path.cut(refused)
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

    def _over(self, tag: int) -> _SentDelivery:
        delivery = self._unsettled.pop(tag)
        self._unsettled_of[self._lane(delivery.flow)] -= 1
        return delivery

    def _next(self, link: Link, now: float) -> SendFlow | None:
        """The lane that sends next; None when nothing is due, and then `due_at` says when it will be."""
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
        return self._come(self._live_at + (self.limits.gather_last_s if is_last else self.limits.gather_s), now)

    def _backlog_due(self, link: Link, now: float) -> bool:
        """There is credit that the live lane does not need, little waits in the socket, and a batch is full."""
        window = link.credit + len(self._unsettled)
        if link.credit <= min(LIVE_CREDIT_KEPT, max(window // 4, min(window - 1, 1))):
            return False
        if not (self._paced(BatchLane.BACKLOG, now) and self._socket_takes(now)):
            return False
        if not self.batching or self._unsettled_of[BatchLane.BACKLOG] < self.limits.batches_undelayed:
            return True
        return self.backlog.pending_bytes >= self._batch_bytes(self.backlog)

    def _socket_takes(self, now: float) -> bool:
        """Little enough waits in it that a live batch would not wait long behind it."""
        if not self._looked and self._shell is not None:
            self._looked = True
            self._room.look(self._shell.path, now)
        if not self._room.is_full:
            return True
        if self._handed:
            self._path.wake()  # the socket may have taken all of it in the next turn
            return False
        return self._come(now + BACKLOG_LOOK_S, now)

    def _paced(self, lane: BatchLane, now: float) -> bool:
        """The connector may send something of this lane now."""
        until = None if self.pacer is None else self.pacer.waits_until(lane, self._room.bytes, now)
        return until is None or self._come(until, now)

    def _come(self, at: float, now: float) -> bool:
        """The time has come; else it is when to look again."""
        if at <= now:
            return True
        self._due_at = at if self._due_at is None else min(self._due_at, at)
        return False

    def _batch_bytes(self, flow: SendFlow) -> int:
        """Bytes before compression of one batch: of the backlog no more than the link carries in a moment."""
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
                self._give_up(flow, pieces, str(error))
                return
            for half in halves(pieces):  # one message too large must not take the others with it
                self._send_batch(engine, link, flow, half)

    def _ends(self, pieces: Iterable[Piece]) -> dict[int, int]:
        """By log of the store, where these messages end: so far the hub may know the store to reach."""
        ends = dict(self._reached())
        for subscription, (position, _, run), _ in pieces:
            log = self._log_of(subscription)
            if log is not None and position >= 0:
                ends[log] = max(ends.get(log, 0), position + len(run))
        return ends

    @property
    def _epoch_of(self) -> Callable[[Piece], str] | None:
        """None while there never was another epoch."""
        return None if self._epochs is None or self._epochs.single else self._epoch

    def _epoch(self, piece: Piece) -> str:
        """The epoch a piece belongs to."""
        if self._epochs is None or self._epochs.single:
            return self._hop.epoch
        return self._epochs.of(piece.stored.run.address, piece.stored.sequence)

    def _send_plain(self, engine: Engine, link: Link, flow: SendFlow) -> None:
        """The first run that waits, as far as credit goes, each message a delivery of its own."""
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
                self._give_up(flow, pieces, str(error))

    def _send(self, engine: Engine, link: Link, flow: SendFlow, pieces: Sequence[Piece], message: bytes) -> None:
        """Raises `ValueError` when the peer does not take a message of this size."""
        if 0 < link.max_message_size < len(message):
            raise ValueError(f"{len(message)} bytes, and the peer takes {link.max_message_size}")
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
        self._handed = True
        self._room.handed(len(message), now)
        engine.send(link, tag, message)

    def _give_up(self, flow: SendFlow, pieces: Sequence[Piece], why: str) -> None:
        """These can never be sent: a message that blocks all others for ever is worse than one in the dead letters."""
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
