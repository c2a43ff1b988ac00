"""The forwarder's machine: takes deliveries of the gateway's router, sends them on, settles what the hub accepted.

The router sees a consumer. Nothing is settled but by the far side's word, so nothing leaves the gateway's store before
it is durable somewhere else. What is under way when a connection breaks is kept here and sent again, in order, before
anything new; the hub knows by sequence what it has already. Sans-I/O: `bridge.gateway_link` binds it to an engine.

Order is what the hub's high-water marks stand on: no message may be accepted before an earlier one of its address. So
a peer that releases anything makes this side cut the connection and begin again from there (decision 0003).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec

from bridge import plain
from bridge.batch import CAPABILITY, Lane, encode
from bridge.engine import Detail, Engine, Link, State
from bridge.limits import MESSAGE_OVERHEAD_BYTES, UPLINK_BATCH_BYTES, UPLINK_WINDOW_BYTES
from bridge.message import Stored
from bridge.plain import Hop

log = logging.getLogger(__name__)


class Subscription(Protocol):
    """A consumer group's place at the router, as far as the uplink needs it (`edge.broker.model.interfaces`)."""

    def settle(self, consumer: Any, first: int, last: int, outcome: Any) -> None:
        """The outcome of positions ``first <= p <= last``."""
        ...

    def pump(self) -> None:
        """There is credit: deliver what is waiting."""
        ...


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


class Outcomes(NamedTuple):
    """The two members of `edge.broker`'s `Outcome` that the uplink uses; the bridge imports nothing of the edge."""

    accepted: Any
    rejected: Any


@dataclass(frozen=True, slots=True)
class UplinkLimits:
    """What one uplink may hold and how it cuts batches."""

    window_bytes: int = UPLINK_WINDOW_BYTES
    """Taken from the router and not yet settled by the hub. Exceeded by at most the router's last delivery."""
    batch_bytes: int = UPLINK_BATCH_BYTES
    """A batch is cut at this size: of what it expands to, with the address and properties of each message."""
    batches_undelayed: int = 8
    """While fewer batches than this are unsettled whatever is there is sent at once; after that only full batches."""


class UplinkFigures(msgspec.Struct):
    """What an uplink has done since it was made; bytes are as sent, times seconds of the monotonic clock."""

    batches_sent: int = 0
    """Deliveries; to a peer without batches each is one message."""
    messages_sent: int = 0
    bytes_sent: int = 0
    batches_accepted: int = 0
    messages_accepted: int = 0
    bytes_accepted: int = 0
    messages_rejected: int = 0
    messages_resent: int = 0
    messages_unnamed: int = 0
    """Deliveries without a sequence, which no batch can carry: settled already, so at most once, and not sent."""
    last_accepted_at: float | None = None


class _Piece(NamedTuple):
    subscription: Subscription
    stored: Stored
    size: int


class _Delivery(NamedTuple):
    """One unsettled delivery: what it carries, and its bytes on the wire."""

    pieces: Sequence[_Piece]
    messages: int
    wire_bytes: int


def _piece(subscription: Subscription, stored: Stored) -> _Piece:
    return _Piece(subscription, stored, stored.run.size + MESSAGE_OVERHEAD_BYTES * len(stored.run))


def _ignore(_: str = "") -> None:
    """There is no connection to be woken or cut."""


class Uplink:
    """A consumer of the router (`edge.broker.model.interfaces.Consumer`) that several subscriptions may share. One
    object for the life of the connector.

    While there is no connection `credit` is 0: the store holds the backlog, not this machine's memory.
    """

    def __init__(
        self,
        name: str,
        hop: Hop,
        *,
        space: str,
        outcomes: Outcomes,
        bases: Mapping[str, int] | None = None,
        epochs: EpochNames | None = None,
        log_of: Callable[[Subscription], int | None] = lambda _subscription: None,
        reached: Callable[[], Mapping[int, int]] = dict,
        lane: Lane = Lane.LIVE,
        limits: UplinkLimits | None = None,
    ) -> None:
        """`bases`: first sequence owed for an address, 0 where it names none; read at each batch, so it may grow.
        `epochs`: of the store; without them everything is of the hop's. `log_of`: the log of the store that the
        positions of a subscription are in. `reached`: how far the store has come besides, told as the end of a log.
        """
        self.name = name
        self.figures = UplinkFigures()
        self._wake: Callable[[], None] = _ignore
        self._cut: Callable[[str], None] = _ignore
        self._hop = hop
        self._space = space
        self._outcomes = outcomes
        self._bases = bases if bases is not None else {}
        self._epochs = epochs
        self._log_of = log_of
        self._reached = reached
        self._lane = lane
        self._limits = limits or UplinkLimits()
        self._subscriptions: dict[int, Subscription] = {}
        self._pending: deque[_Piece] = deque()
        self._pending_bytes = 0
        self._held_bytes = 0
        self._mean_bytes = 4096.0  # of a message; large ones count at once, small ones over some 32 runs
        self._unsettled: dict[int, _Delivery] = {}
        self._tags = count()
        self._engine: Engine | None = None
        self._link: Link | None = None

    # --- towards the router -----------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Messages it takes now, from the bytes left in the window and the mean size of late."""
        free = self._limits.window_bytes - self._held_bytes
        if self._link is None or free <= 0:
            return 0
        return max(1, int(free / self._mean_bytes))

    def deliver(self, subscription: Subscription, stored: Stored) -> None:
        """Take a run; it is sent with the next `flush`, and settled when the hub has it."""
        if stored.sequence < 0:
            self.figures.messages_unnamed += len(stored.run)
            return
        piece = _piece(subscription, stored)
        self._subscriptions.setdefault(id(subscription), subscription)
        self._pending.append(piece)
        self._pending_bytes += piece.size
        self._held_bytes += piece.size
        mean = piece.size / len(stored.run)
        self._mean_bytes = max(mean, self._mean_bytes + (mean - self._mean_bytes) / 32)
        self._wake()

    user: str = ""
    """Nobody: what it holds is the configuration's."""
    selection: Any = None
    """It takes everything."""
    overlaps: bool = False

    def exhausted(self) -> None:
        """Nobody waits for the end of what is stored."""

    def stolen(self) -> bool:
        """A forwarder's subscription stays its own."""
        return False

    def abort(self) -> None:
        """A call of the router raised: begin anew with another connection."""
        self._cut("internal error")

    def add(self, subscription: Subscription) -> None:
        """A forwarder begins: from now on it is told when there is credit."""
        self._subscriptions[id(subscription)] = subscription
        if self.credit:
            subscription.pump()

    def remove(self, subscription: Subscription) -> None:
        """A forwarder ends: nothing more of it is sent or settled."""
        if self._subscriptions.pop(id(subscription), None) is None:
            return
        kept = [piece for piece in self._pending if piece.subscription is not subscription]
        self._pending = deque(kept)
        before, self._pending_bytes = self._pending_bytes, sum(piece.size for piece in kept)
        self._held_bytes -= before - self._pending_bytes

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
        """Bytes of the window in use."""
        return self._held_bytes

    def woken_by(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there may be something to send; a new connection brings another one."""
        self._wake = wake

    def attached(self, engine: Engine, link: Link, cut: Callable[[str], None]) -> None:
        """The peer took the link. `cut` is called with a reason when the connection must end and be made anew."""
        self._engine, self._link, self._cut = engine, link, cut
        self._pump()

    def detached(self) -> None:
        """The link is over. Everything unsettled goes back before what waits, in the order it was sent."""
        self._engine = self._link = None
        self._cut = _ignore
        for delivery in reversed(self._unsettled.values()):
            self.figures.messages_resent += delivery.messages
            for piece in reversed(delivery.pieces):
                if id(piece.subscription) in self._subscriptions:
                    self._pending.appendleft(piece)
                    self._pending_bytes += piece.size
                else:
                    self._held_bytes -= piece.size
        self._unsettled.clear()

    def flush(self) -> None:
        """Send what is due. Called before the engine is asked for its bytes."""
        engine, link = self._engine, self._link
        if engine is None or link is None:
            return
        if self.batching:
            while link.credit > 0 and self._due():
                self._send_batch(engine, link, self._gather())
        else:
            while link.credit > 0 and self._pending:
                self._send_plain(engine, link)
        if link.draining and not self._pending:
            engine.drained(link)

    def settled(self, items: Iterable[tuple[int, State, bool, Detail]], now: float) -> None:
        """The peer's dispositions, as the engine tells them."""
        finished: list[tuple[_Delivery, Any]] = []
        refused: str | None = None
        for tag, state, remotely_settled, condition in items:
            if not remotely_settled and self._engine is not None and self._link is not None:
                self._engine.settle_sent(self._link, tag)
            delivery = self._unsettled.get(tag)
            if delivery is None:
                continue
            if state is State.ACCEPTED:
                finished.append((self._unsettled.pop(tag), self._outcomes.accepted))
                self._count_accepted(delivery, now)
            elif state in (State.REJECTED, State.MODIFIED_UNDELIVERABLE):
                log.error("%s: the peer rejected %d messages: %s", self.name, delivery.messages, condition)
                finished.append((self._unsettled.pop(tag), self._outcomes.rejected))
                self.figures.messages_rejected += delivery.messages
            else:
                refused = f"the peer gave back {delivery.messages} messages ({state.name.lower()})"
        for delivery, outcome in finished:
            self._finish(delivery.pieces, outcome)
        if refused is not None:
            self._cut(refused)
        elif finished:
            self._pump()
            self._wake()

    # --- inside -----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Ask every subscription, each time another one first: none is starved by one with more to say."""
        subscriptions = list(self._subscriptions.items())
        for key, subscription in subscriptions:
            if not self.credit:
                return
            if key in self._subscriptions:
                self._subscriptions[key] = self._subscriptions.pop(key)
                subscription.pump()

    def _due(self) -> bool:
        if len(self._unsettled) < self._limits.batches_undelayed:
            return bool(self._pending)
        return self._pending_bytes >= self._limits.batch_bytes

    def _send_batch(self, engine: Engine, link: Link, pieces: list[_Piece]) -> None:
        stored = [piece.stored for piece in pieces]
        epoch, bases = self._hop.epoch, self._bases
        if self._epochs is not None and not self._epochs.single:
            epoch = self._epoch(pieces[0])
            addresses = {piece.stored.run.address for piece in pieces}
            bases = {name: max(bases.get(name, 0), self._epochs.start(name)) for name in addresses}
        try:
            data = encode(stored, space=self._space, epoch=epoch, lane=self._lane, bases=bases)
            message = plain.batch_message(data, self._ends(pieces))
            self._send(engine, link, pieces, message)
        except ValueError as error:
            if len(pieces) == len(pieces[0].stored.run) == 1:
                self._give_up(pieces, str(error))
                return
            for half in self._halves(pieces):  # one message too large must not take the others with it
                self._send_batch(engine, link, half)

    def _ends(self, pieces: Iterable[_Piece]) -> dict[int, int]:
        """By log of the store, where these messages end: so far the hub may know the store to reach."""
        ends = dict(self._reached())
        for subscription, (position, _, run), _ in pieces:
            log = self._log_of(subscription)
            if log is not None and position >= 0:
                ends[log] = max(ends.get(log, 0), position + len(run))
        return ends

    def _gather(self) -> list[_Piece]:
        """The next batch's worth of what waits: at least one message, at most `batch_bytes` when there are more, and
        of one epoch."""
        room = self._limits.batch_bytes
        several = self._epochs is not None and not self._epochs.single
        pieces: list[_Piece] = []
        while self._pending:
            if several and pieces and self._epoch(self._pending[0]) != self._epoch(pieces[0]):
                break
            piece = self._pending.popleft()
            if piece.size > room:
                messages = len(piece.stored.run)
                fitting = max(room * messages // piece.size, 0 if pieces else 1)
                if fitting < messages:
                    self._pending_bytes -= piece.size
                    head, tail = self._split(piece, fitting)
                    self._pending.appendleft(tail)
                    self._pending_bytes += tail.size
                    if head is not None:
                        pieces.append(head)
                    break
            self._pending_bytes -= piece.size
            pieces.append(piece)
            room -= piece.size
        return pieces

    def _epoch(self, piece: _Piece) -> str:
        """The epoch a piece belongs to."""
        if self._epochs is None or self._epochs.single:
            return self._hop.epoch
        return self._epochs.of(piece.stored.run.address, piece.stored.sequence)

    def _halves(self, pieces: list[_Piece]) -> tuple[list[_Piece], list[_Piece]]:
        if len(pieces) == 1:
            head, tail = self._split(pieces[0], len(pieces[0].stored.run) // 2)
            return [head] if head is not None else [], [tail]
        middle = len(pieces) // 2
        return pieces[:middle], pieces[middle:]

    @staticmethod
    def _split(piece: _Piece, at: int) -> tuple[_Piece | None, _Piece]:
        subscription, (position, sequence, run), _ = piece
        if at == 0:
            return None, piece
        after = position + at if position >= 0 else position
        head = Stored(position, sequence, run.part(0, at))
        tail = Stored(after, sequence + at, run.part(at, len(run)))
        return _piece(subscription, head), _piece(subscription, tail)

    def _send_plain(self, engine: Engine, link: Link) -> None:
        """The first run that waits, as far as credit goes, each message a delivery of its own."""
        whole = self._pending.popleft()
        self._pending_bytes -= whole.size
        if len(whole.stored.run) > link.credit:
            head, tail = self._split(whole, link.credit)
            self._pending.appendleft(tail)
            self._pending_bytes += tail.size
            whole = head or whole
        subscription, (position, sequence, run), _ = whole
        hop = self._hop._replace(epoch=self._epoch(whole))
        for i, message in enumerate(plain.messages(hop, sequence, run)):
            single = Stored(position + i if position >= 0 else position, sequence + i, run.part(i, i + 1))
            pieces = (_piece(subscription, single),)
            try:
                self._send(engine, link, pieces, message)
            except ValueError as error:
                self._give_up(pieces, str(error))

    def _send(self, engine: Engine, link: Link, pieces: Sequence[_Piece], message: bytes) -> None:
        """Raises `ValueError` when the peer does not take a message of this size."""
        if 0 < link.max_message_size < len(message):
            raise ValueError(f"{len(message)} bytes, and the peer takes {link.max_message_size}")
        tag = next(self._tags)
        delivery = _Delivery(pieces, sum(len(piece.stored.run) for piece in pieces), len(message))
        self._unsettled[tag] = delivery
        self.figures.batches_sent += 1
        self.figures.messages_sent += delivery.messages
        self.figures.bytes_sent += delivery.wire_bytes
        engine.send(link, tag, message)

    def _give_up(self, pieces: Sequence[_Piece], why: str) -> None:
        """These can never be sent: a message that blocks all others for ever is worse than one in the dead letters."""
        messages = sum(len(piece.stored.run) for piece in pieces)
        log.error("%s: cannot send %d messages of %s: %s", self.name, messages, pieces[0].stored.run.address, why)
        self.figures.messages_rejected += messages
        self._finish(pieces, self._outcomes.rejected)

    def _count_accepted(self, delivery: _Delivery, now: float) -> None:
        figures = self.figures
        figures.batches_accepted += 1
        figures.messages_accepted += delivery.messages
        figures.bytes_accepted += delivery.wire_bytes
        figures.last_accepted_at = now

    def _finish(self, pieces: Sequence[_Piece], outcome: Any) -> None:
        """Settle with the router, contiguous positions in one call."""
        self._held_bytes -= sum(piece.size for piece in pieces)
        whose: Subscription | None = None
        first = following = 0
        for subscription, (position, _, run), _ in pieces:
            if position < 0 or id(subscription) not in self._subscriptions:
                continue
            if subscription is not whose or position != following:
                if whose is not None:
                    whose.settle(self, first, following - 1, outcome)
                whose, first = subscription, position
            following = position + len(run)
        if whose is not None:
            whose.settle(self, first, following - 1, outcome)
