"""What waits for a peer: the outgoing forwarders of one connector, from the router's deliveries to their outcomes.

An `Outlet` is one forwarder: a consumer of the router that decides by run what leaves, where to, and as what. The
`Outbox` has the outlets of one connector and is all a connector needs to know: it takes what is next, in order, and
settles each by its ticket. Nothing is settled with the router but by `settle`, or because the forwarder leaves it out
(which is counted).

While no connector is attached `credit` is 0: a backlog belongs in the store, not in memory. Sans-I/O.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec

from bridge.forwarders.mapping import Mapping
from bridge.forwarders.outcome import Outcome
from bridge.limits import MESSAGE_OVERHEAD_BYTES, OUTBOX_WINDOW_BYTES, OUTLET_WINDOW_BYTES_MIN
from bridge.message import Run, Stored
from bridge.plain import Hop
from bridge.publisher import device_of

log = logging.getLogger(__name__)


class Subscription(Protocol):
    """A consumer group's place at the router, as far as an outlet needs it (`edge.broker.model.interfaces`)."""

    def settle(self, consumer: Any, first: int, last: int, outcome: Any) -> None:
        """The outcome of positions ``first <= p <= last``."""
        ...

    def pump(self) -> None:
        """There is credit: deliver what is waiting."""
        ...


class Words(NamedTuple):
    """The router's words for outcomes; the bridge imports nothing of the edge."""

    accepted: Any
    rejected: Any


class Sending(NamedTuple):
    """How a forwarder wants its messages sent; None: as each message says."""

    qos: int | None = None
    """0: without an answer, at most once; 1 or more: until the peer has said that it has them."""
    ttl_s: float | None = None
    """Longest time from their arrival here that they are of any use over there; what is older stays here."""
    priority: int | None = None
    """0 to 9, as AMQP 1.0 section 3.2.1 has it."""


class Outgoing(NamedTuple):
    """Messages of one run for one address of the peer; `Outbox.settle` ends it by its ticket."""

    ticket: int
    address: str
    """The peer's address for all of them."""
    stored: Stored
    """The run, in the encoding it came in, with the first message's sequence; its address is the one here."""
    hop: Hop
    """With address and sequence the name of each message: what a duplicate is found out by."""
    sending: Sending

    def __len__(self) -> int:
        return len(self.stored.run.bodies)


class Rule(NamedTuple):
    """What a forwarder does with what its address has; frozen, so that a changed one is another outlet."""

    name: str
    mapping: Mapping
    sending: Sending = Sending()
    priority: int = 0
    """Higher goes first where several forwarders of a connector have something to send."""
    wanted: Callable[[Run], Sequence[bool] | None] = lambda _run: None
    """One a message of a run: it goes over; None: all of them do."""


class OutletFigures(msgspec.Struct):
    """Messages of one forwarder since it was made."""

    accepted: int = 0
    rejected: int = 0
    filtered: int = 0
    """Left out by its filter: settled, and no loss."""
    expired: int = 0
    """Older than its time to live when their turn came."""
    looped: int = 0
    """They have passed too many gateways."""
    resent: int = 0
    """Taken by a connector before, and not answered when the connection ended."""
    unnamed: int = 0
    """Deliveries that nobody keeps (of an address that stores nothing), which are not forwarded."""


class _Piece(NamedTuple):
    subscription: Subscription
    stored: Stored
    address: str
    size: int


class Outlet:
    """One outgoing forwarder; a consumer of the router (`edge.broker.model.interfaces.Consumer`)."""

    user: str = ""
    """Nobody: what it holds is the configuration's."""
    selection: Any = None
    """Of a queue too it takes everything, and leaves out what its filter does not want."""
    overlaps: bool = False

    def __init__(self, outbox: Outbox, rule: Rule) -> None:
        self.name = f"forwarder {rule.name}"
        self.rule = rule
        self.figures = OutletFigures()
        self._outbox = outbox
        self._subscriptions: dict[int, Subscription] = {}
        self._pending: deque[_Piece] = deque()
        self._held_bytes = 0
        self._mean_bytes = 4096.0  # of a message; large ones count at once, small ones over some 32 runs

    # --- towards the router -----------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Messages it takes now, from the bytes left in its window and the mean size of late."""
        free = self._outbox.window_bytes - self._held_bytes
        if free <= 0 or not self._outbox.open:
            return 0
        return max(1, int(free / self._mean_bytes))

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        """Take runs; what is not left out waits for the connector."""
        for stored in batch:
            self._take(subscription, stored)

    def _take(self, subscription: Subscription, stored: Stored) -> None:
        if stored.position < 0 or stored.sequence < 0:
            self.figures.unnamed += len(stored.run)
            return
        self._subscriptions.setdefault(id(subscription), subscription)
        wanted = self.rule.wanted(stored.run)
        if wanted is None or all(wanted):
            self._keep(subscription, stored)
        else:
            self._sift(subscription, stored, wanted)
        self._outbox.wake()

    def exhausted(self) -> None:
        """Nobody waits for the end of what is stored."""

    def stolen(self) -> bool:
        """A forwarder's subscription stays its own."""
        return False

    def abort(self) -> None:
        """A call of the router raised: begin anew with another connection."""
        self._outbox.cut("internal error")

    def add(self, subscription: Subscription) -> None:
        """Part of what the forwarder is owed: from now on it is told when there is credit."""
        self._subscriptions[id(subscription)] = subscription
        if self.credit:
            subscription.pump()

    def remove(self, subscription: Subscription) -> None:
        """No part of it any more: nothing of it is sent or settled from now on."""
        if self._subscriptions.pop(id(subscription), None) is None:
            return
        kept = [piece for piece in self._pending if piece.subscription is not subscription]
        self._held_bytes -= sum(piece.size for piece in self._pending) - sum(piece.size for piece in kept)
        self._pending = deque(kept)

    # --- towards the outbox -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Something is there to be taken."""
        return bool(self._pending)

    @property
    def held_bytes(self) -> int:
        """Bytes of its window in use."""
        return self._held_bytes

    def pump(self) -> None:
        """Ask each subscription, each time another one first: none is starved by one with more to say."""
        for key, subscription in list(self._subscriptions.items()):
            if not self.credit:
                return
            if key in self._subscriptions:
                self._subscriptions[key] = self._subscriptions.pop(key)
                subscription.pump()

    def take(self, messages_max: int, bytes_max: int, now_ns: int) -> _Piece | None:
        """The next piece, at most so many messages and, but for the first, bytes; None when nothing is left."""
        while self._pending:
            piece = self._pending.popleft()
            if self._too_old(piece.stored.run, now_ns):
                self.figures.expired += len(piece.stored.run)
                self._done(piece, self._outbox.words.accepted)
                continue
            messages = len(piece.stored.run)
            fitting = min(messages, messages_max, max(1, bytes_max * messages // piece.size))
            if fitting < messages:
                self._pending.appendleft(_part(piece, fitting, messages))
                piece = _part(piece, 0, fitting)
            return piece
        return None

    def settle(self, piece: _Piece, outcome: Outcome, why: str) -> None:
        """The peer's answer for all of a piece: accepted or rejected."""
        if outcome is Outcome.REJECTED:
            self.figures.rejected += len(piece.stored.run)
            log.error("%s: the peer rejected %d messages: %s", self.name, len(piece.stored.run), why)
            self._done(piece, self._outbox.words.rejected)
        else:
            self.figures.accepted += len(piece.stored.run)
            self._done(piece, self._outbox.words.accepted)

    def again(self, piece: _Piece) -> None:
        """The connection ended before there was an answer: it is the next to be taken."""
        self.figures.resent += len(piece.stored.run)
        if id(piece.subscription) in self._subscriptions:
            self._pending.appendleft(piece)
        else:
            self._held_bytes -= piece.size

    # --- inside -----------------------------------------------------------------------------------------------

    def _keep(self, subscription: Subscription, stored: Stored) -> None:
        run = stored.run
        address = self.rule.mapping(run.address, device_of(run.device))
        if address is None:
            self.figures.rejected += len(run)
            log.error("%s: %d messages have no name there: its filter was changed", self.name, len(run))
            last = stored.position + len(run) - 1
            subscription.settle(self, stored.position, last, self._outbox.words.rejected)
            return
        size = run.size + MESSAGE_OVERHEAD_BYTES * len(run)
        self._pending.append(_Piece(subscription, stored, address, size))
        self._held_bytes += size
        mean = size / len(run)
        self._mean_bytes = max(mean, self._mean_bytes + (mean - self._mean_bytes) / 32)

    def _sift(self, subscription: Subscription, stored: Stored, wanted: Sequence[bool]) -> None:
        """Keep the stretches that are wanted, and be done with the others."""
        start = 0
        for end in range(1, len(wanted) + 1):
            if end < len(wanted) and wanted[end] == wanted[start]:
                continue
            part = _stretch(stored, start, end)
            if wanted[start]:
                self._keep(subscription, part)
            else:
                self.figures.filtered += end - start
                subscription.settle(self, part.position, part.position + end - start - 1, self._outbox.words.accepted)
            start = end

    def _too_old(self, run: Run, now_ns: int) -> bool:
        ttl_s = self.rule.sending.ttl_s
        return ttl_s is not None and now_ns - run.received_at > ttl_s * 1e9

    def _done(self, piece: _Piece, word: Any) -> None:
        self._held_bytes -= piece.size
        if id(piece.subscription) in self._subscriptions:
            first = piece.stored.position
            piece.subscription.settle(self, first, first + len(piece.stored.run) - 1, word)


def _stretch(stored: Stored, start: int, end: int) -> Stored:
    return Stored(stored.position + start, stored.sequence + start, stored.run.part(start, end))


def _part(piece: _Piece, start: int, end: int) -> _Piece:
    stored = _stretch(piece.stored, start, end)
    size = stored.run.size + MESSAGE_OVERHEAD_BYTES * len(stored.run)
    return _Piece(piece.subscription, stored, piece.address, size)


def _ignore(_: str = "") -> None:
    """There is no connection to be woken or cut."""


class Outbox:
    """The outgoing forwarders of one connector, and what a connection took of them; one for the connector's life."""

    def __init__(
        self,
        gateway: str,
        words: Words,
        *,
        epoch_of: Callable[[str, int], str],
        now_ns: Callable[[], int],
        window_bytes: int = OUTBOX_WINDOW_BYTES,
    ) -> None:
        """`epoch_of`: the epoch of the message with this address and sequence."""
        self.words = words
        self.open = False
        """A connection is there to take what is delivered."""
        self.wake: Callable[[], None] = _ignore
        """To be called when there is something to take."""
        self.cut: Callable[[str], None] = _ignore
        """Ends the connection, which begins anew after the backoff."""
        self._gateway = gateway
        self._epoch_of = epoch_of
        self._now_ns = now_ns
        self._all_bytes = window_bytes
        self._outlets: list[Outlet] = []
        self._taken: dict[int, tuple[Outlet, _Piece]] = {}
        self._tickets = count()

    # --- the forwarders ---------------------------------------------------------------------------------------

    @property
    def outlets(self) -> Sequence[Outlet]:
        """The forwarders, by name in any order."""
        return self._outlets

    @property
    def window_bytes(self) -> int:
        """What one forwarder may take from the router and not have settled."""
        return max(OUTLET_WINDOW_BYTES_MIN, self._all_bytes // max(1, len(self._outlets)))

    def add(self, rule: Rule) -> Outlet:
        """A forwarder begins; the caller adds its subscriptions to the outlet."""
        outlet = Outlet(self, rule)
        self._outlets.append(outlet)
        self._outlets.sort(key=lambda each: -each.rule.priority)
        return outlet

    def remove(self, outlet: Outlet) -> None:
        """A forwarder ends; its subscriptions were removed before. What comes back of it is of no interest."""
        self._outlets.remove(outlet)

    # --- towards the connector --------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Messages taken and not settled."""
        return sum(len(piece.stored.run) for _, piece in self._taken.values())

    @property
    def waiting(self) -> bool:
        """`take` would give something, unless all of it is too old."""
        return any(outlet.waiting for outlet in self._outlets)

    def attached(self, wake: Callable[[], None], cut: Callable[[str], None]) -> None:
        """A connection is up. `wake` is called when there may be something to take; `cut` with a reason when the
        connection has to end and be made anew. Neither is called from within `take` or `settle` but `cut`."""
        self.open, self.wake, self.cut = True, wake, cut
        self._pump()

    def detached(self) -> None:
        """It is over. Everything unsettled goes back to the front, in the order it was taken."""
        self.open, self.wake, self.cut = False, _ignore, _ignore
        for outlet, piece in reversed(self._taken.values()):
            outlet.again(piece)
        self._taken.clear()

    def take(self, messages_max: int, bytes_max: int) -> Outgoing | None:
        """What is next, of the forwarder with the highest priority that has something: at least one message, at most so
        many and, where it is more than one, bytes. None when there is nothing."""
        if messages_max <= 0:
            return None
        for i, outlet in enumerate(self._outlets):
            piece = outlet.take(messages_max, bytes_max, self._now_ns())
            if piece is None:
                continue
            self._turn(i)
            ticket = next(self._tickets)
            self._taken[ticket] = (outlet, piece)
            run = piece.stored.run
            hop = Hop(self._gateway, self._epoch_of(run.address, piece.stored.sequence))
            return Outgoing(ticket, piece.address, piece.stored, hop, outlet.rule.sending)
        return None

    def elapsed_ms(self, run: Run) -> int:
        """How long the messages of a run have been here, in milliseconds."""
        return max(0, (self._now_ns() - run.received_at) // 1_000_000) if run.received_at else 0

    def settle(self, ticket: int, outcome: Outcome, why: str = "", count: int | None = None) -> None:
        """The peer's answer for what was taken by this ticket; of its first `count` messages, the rest being answered
        later by the same ticket. A ticket that is over, or of an earlier connection, is of no interest.

        RELEASED ends the connection: what was taken goes again, in order, over the next one.
        """
        if outcome is Outcome.RELEASED:
            if ticket in self._taken:
                self.cut(f"the peer does not take a message now: {why}" if why else "the peer released a message")
            return
        found = self._taken.get(ticket)
        if found is None:
            return
        outlet, piece = found
        messages = len(piece.stored.run)
        if count is not None and count < messages:
            self._taken[ticket] = (outlet, _part(piece, count, messages))
            piece = _part(piece, 0, count)
        else:
            del self._taken[ticket]
        outlet.settle(piece, outcome, why)
        outlet.pump()

    def settle_all(self, tickets: Iterable[int], outcome: Outcome, why: str = "") -> None:
        """As `settle`, of several."""
        for ticket in tickets:
            self.settle(ticket, outcome, why)

    # --- inside -----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        for outlet in list(self._outlets):
            outlet.pump()

    def _turn(self, i: int) -> None:
        """Forwarders of one priority take turns."""
        outlet = self._outlets.pop(i)
        priority = outlet.rule.priority
        behind = sum(1 for each in self._outlets if each.rule.priority >= priority)
        self._outlets.insert(behind, outlet)
