"""What waits for a peer: the outgoing forwarders of one connector, from the router's deliveries to their outcomes.

An `Outlet` is one forwarder: it decides by run what leaves, where to, and as what. Its `flow` is the router's consumer
(`bridge.flow`). The `ForwarderOutbox` has the outlets of one connector and is all a connector needs to know: it takes
the next messages in order and settles each by its ticket. Messages are settled with the router only by
`settle`, or because the forwarder leaves them out (which is counted). Sans-I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from bridge.flow import Outcomes, Piece, SendFlow, SendPath, SendSubscription, part_of, split
from bridge.forwarders.mapping import Mapping
from bridge.forwarders.outcome import ForwardOutcome
from bridge.limits import OUTBOX_WINDOW_BYTES, OUTLET_WINDOW_BYTES_MIN
from bridge.message import Run, Stored
from bridge.plain import Hop
from bridge.publisher import device_of

log = logging.getLogger(__name__)


class SendOptions(NamedTuple):
    """How a forwarder wants its messages sent; None: as each message says."""

    qos: int | None = None
    """0: without an answer, at most once; 1 or more: until the peer has said that it has them."""
    ttl_s: float | None = None
    """Longest time from their arrival here that they are of any use over there; what is older stays here."""
    priority: int | None = None
    """0 to 9, as AMQP 1.0 section 3.2.1 has it."""


class Outgoing(NamedTuple):
    """Messages of one run for one address of the peer; `ForwarderOutbox.settle` ends it by its ticket."""

    ticket: int
    address: str
    """The peer's address for all of them."""
    stored: Stored
    """The run, in the encoding it came in, with the first message's sequence; its address is the one here."""
    hop: Hop
    """With address and sequence the name of each message: what a duplicate is found out by."""
    sending: SendOptions

    def __len__(self) -> int:
        return len(self.stored.run.bodies)


class ForwardRule(NamedTuple):
    """What a forwarder does with what its address has; frozen, so that a changed one is another outlet."""

    name: str
    mapping: Mapping
    sending: SendOptions = SendOptions()
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


class Outlet:
    """One outgoing forwarder: chooses what its flow takes, and counts what becomes of it."""

    def __init__(self, rule: ForwardRule, path: SendPath, outcomes: Outcomes, window_bytes: Callable[[], int]) -> None:
        self.rule = rule
        self.name = f"forwarder {rule.name}"
        self.flow = SendFlow(self.name, path, window_bytes=window_bytes, choose=self._choose)
        self.figures = OutletFigures()
        self._outcomes = outcomes

    def take(self, messages_max: int, bytes_max: int, now_ns: int) -> tuple[str, Piece] | None:
        """Take the next piece that can go, and return it with its address there; None when nothing is left."""
        while (piece := self.flow.take(messages_max, bytes_max)) is not None:
            run = piece.stored.run
            if self._too_old(run, now_ns):
                self.figures.expired += len(run)
                self.flow.finish((piece,), self._outcomes.accepted)
                continue
            address = self.rule.mapping(run.address, device_of(run.device))
            if address is not None:
                return address, piece
            self.figures.rejected += len(run)
            log.error("%s: %d messages have no name there: its filter was changed", self.name, len(run))
            self.flow.finish((piece,), self._outcomes.rejected)
        return None

    def settle(self, piece: Piece, outcome: ForwardOutcome, why: str) -> None:
        """The peer's answer for all of a piece: accepted or rejected."""
        if outcome is ForwardOutcome.REJECTED:
            self.figures.rejected += piece.messages
            log.error("%s: the peer rejected %d messages: %s", self.name, piece.messages, why)
            self.flow.finish((piece,), self._outcomes.rejected)
        else:
            self.figures.accepted += piece.messages
            self.flow.finish((piece,), self._outcomes.accepted)

    def again(self, piece: Piece) -> None:
        """The connection ended before there was an answer: it is the next to be taken."""
        self.figures.resent += piece.messages
        self.flow.take_back((piece,))

    # --- inside -----------------------------------------------------------------------------------------------

    def _choose(self, subscription: SendSubscription, stored: Stored) -> Iterator[Stored]:
        """Yield the parts that are wanted, and settle the others."""
        if stored.position < 0 or stored.sequence < 0:
            self.figures.unnamed += len(stored.run)
            return
        wanted = self.rule.wanted(stored.run)
        if wanted is None or all(wanted):
            yield stored
            return
        start = 0
        for end in range(1, len(wanted) + 1):
            if end < len(wanted) and wanted[end] == wanted[start]:
                continue
            if wanted[start]:
                yield part_of(stored, start, end)
            else:
                self.figures.filtered += end - start
                first, last = stored.position + start, stored.position + end - 1
                subscription.settle(self.flow, first, last, self._outcomes.accepted)
            start = end

    def _too_old(self, run: Run, now_ns: int) -> bool:
        ttl_s = self.rule.sending.ttl_s
        return ttl_s is not None and now_ns - run.received_at > ttl_s * 1e9


class ForwarderOutbox:
    """The outgoing forwarders of one connector, and what a connection took of them; one for the connector's life."""

    def __init__(
        self,
        gateway: str,
        outcomes: Outcomes,
        *,
        epoch_of: Callable[[str, int], str],
        now_ns: Callable[[], int],
        window_bytes: int = OUTBOX_WINDOW_BYTES,
    ) -> None:
        """`epoch_of`: the epoch of the message with this address and sequence."""
        self._outcomes = outcomes
        self._path = SendPath()
        self._gateway = gateway
        self._epoch_of = epoch_of
        self._now_ns = now_ns
        self._all_bytes = window_bytes
        self._outlets: list[Outlet] = []
        self._taken: dict[int, tuple[Outlet, Piece]] = {}
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

    def add(self, rule: ForwardRule) -> Outlet:
        """A forwarder begins; the caller adds its subscriptions to the outlet's flow."""
        outlet = Outlet(rule, self._path, self._outcomes, lambda: self.window_bytes)
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
        return sum(piece.messages for _, piece in self._taken.values())

    @property
    def waiting(self) -> bool:
        """`take` would give something, unless all of it is too old."""
        return any(outlet.flow.pending for outlet in self._outlets)

    @property
    def open(self) -> bool:
        """A connection is there to take what is delivered."""
        return self._path.up

    def cut(self, reason: str) -> None:
        """End the connection; the dialer makes another one after the backoff."""
        self._path.cut(reason)

    def attached(self, wake: Callable[[], None], cut: Callable[[str], None]) -> None:
        """A connection is up. `wake` is called when there may be something to take; `cut` with a reason when the
        connection has to end and be made anew. Neither is called from within `take` or `settle` but `cut`."""
        self._path.woken_by(wake)
        self._path.opened(cut)
        self._pump()

    def detached(self) -> None:
        """It is over. Everything unsettled goes back to the front, in the order it was taken."""
        self._path.closed()
        for outlet, piece in reversed(self._taken.values()):
            outlet.again(piece)
        self._taken.clear()

    def take(self, messages_max: int, bytes_max: int) -> Outgoing | None:
        """What is next, of the forwarder with the highest priority that has something: at least one message, at most so
        many and, where it is more than one, bytes. None when there is nothing."""
        if messages_max <= 0:
            return None
        for i, outlet in enumerate(self._outlets):
            taken = outlet.take(messages_max, bytes_max, self._now_ns())
            if taken is None:
                continue
            address, piece = taken
            self._turn(i)
            ticket = next(self._tickets)
            self._taken[ticket] = (outlet, piece)
            run = piece.stored.run
            hop = Hop(self._gateway, self._epoch_of(run.address, piece.stored.sequence))
            return Outgoing(ticket, address, piece.stored, hop, outlet.rule.sending)
        return None

    def elapsed_ms(self, run: Run) -> int:
        """How long the messages of a run have been here, in milliseconds."""
        return max(0, (self._now_ns() - run.received_at) // 1_000_000) if run.received_at else 0

    def settle(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None:
        """The peer's answer for what was taken by this ticket; of its first `count` messages, the rest being answered
        later by the same ticket. A ticket that is over, or of an earlier connection, is of no interest.

        RELEASED ends the connection: what was taken goes again, in order, over the next one.
        """
        if outcome is ForwardOutcome.RELEASED:
            if ticket in self._taken:
                self.cut(f"the peer does not take a message now: {why}" if why else "the peer released a message")
            return
        found = self._taken.get(ticket)
        if found is None:
            return
        outlet, piece = found
        if count is not None and count < piece.messages:
            piece, rest = split(piece, count)
            self._taken[ticket] = (outlet, rest)
        else:
            del self._taken[ticket]
        outlet.settle(piece, outcome, why)
        outlet.flow.pump()

    def settle_all(self, tickets: Iterable[int], outcome: ForwardOutcome, why: str = "") -> None:
        """As `settle`, of several."""
        for ticket in tickets:
            self.settle(ticket, outcome, why)

    # --- inside -----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        for outlet in list(self._outlets):
            outlet.flow.pump()

    def _turn(self, i: int) -> None:
        """Forwarders of one priority take turns."""
        outlet = self._outlets.pop(i)
        priority = outlet.rule.priority
        behind = sum(1 for each in self._outlets if each.rule.priority >= priority)
        self._outlets.insert(behind, outlet)
