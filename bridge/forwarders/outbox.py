"""Outbox of one connector: its outgoing forwarders, from the router's deliveries to their outcomes.

An `Outlet` is one forwarder: it decides for each run what leaves, to which address, and with which options. Its `flow`
is the router's consumer (`bridge.flow`). The `ForwarderOutbox` holds the outlets of one connector: the connector takes
the next messages in order and settles each by its ticket. Messages are settled with the router only by `settle`, or
because the forwarder leaves them out (which is counted). Sans-I/O.
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
    """A forwarder's options for its messages; None: as each message says."""

    qos: int | None = None
    """0: without acknowledgement, at most once; 1 or more: until the peer has acknowledged."""
    ttl_s: float | None = None
    """Longest time from arrival at this gateway to sending; older messages expire, and are not sent."""
    priority: int | None = None
    """Priority from 0 to 9 (AMQP 1.0 section 3.2.1)."""


class Outgoing(NamedTuple):
    """Messages of one run for one address of the peer; `ForwarderOutbox.settle` ends it by its ticket."""

    ticket: int
    address: str
    """The peer's address for all of them."""
    stored: Stored
    """The run, in its original encoding, with the first message's sequence; its address is this gateway's."""
    hop: Hop
    """Gateway and epoch: with address and sequence the name of each message, to detect duplicates."""
    sending: SendOptions

    def __len__(self) -> int:
        return len(self.stored.run.bodies)


class ForwardRule(NamedTuple):
    """Rule of an outgoing forwarder; frozen, so that a changed rule becomes another outlet."""

    name: str
    mapping: Mapping
    sending: SendOptions = SendOptions()
    priority: int = 0
    """Higher goes first where several forwarders of a connector have something to send."""
    wanted: Callable[[Run], Sequence[bool] | None] = lambda _run: None
    """Returns for each message of a run whether it is sent; None: all are."""


class OutletFigures(msgspec.Struct):
    """Counts of one forwarder's messages since its creation."""

    accepted: int = 0
    rejected: int = 0
    filtered: int = 0
    """Left out by its filter: settled, not a loss."""
    expired: int = 0
    """Older than the time to live when they could be sent."""
    looped: int = 0
    """Passed too many gateways."""
    resent: int = 0
    """Sent again, because the connection ended before they were answered."""
    unnamed: int = 0
    """Not stored (of an address that stores nothing), so not forwarded."""


class Outlet:
    """One outgoing forwarder: chooses the messages that its flow takes, and counts their outcomes."""

    def __init__(self, rule: ForwardRule, path: SendPath, outcomes: Outcomes, window_bytes: Callable[[], int]) -> None:
        self.rule = rule
        self.name = f"forwarder {rule.name}"
        self.flow = SendFlow(self.name, path, window_bytes=window_bytes, choose=self._choose)
        self.figures = OutletFigures()
        self._outcomes = outcomes

    def take(self, messages_max: int, bytes_max: int, now_ns: int) -> tuple[str, Piece] | None:
        """Take the next piece to send; return it with its address at the peer. None when nothing is left."""
        while (piece := self.flow.take(messages_max, bytes_max)) is not None:
            run = piece.stored.run
            if self._too_old(run, now_ns):
                self.figures.expired += len(run)
                self.flow.finish((piece,), self._outcomes.expired)
                continue
            address = self.rule.mapping(run.address, device_of(run.device))
            if address is not None:
                return address, piece
            self.figures.rejected += len(run)
            log.error("%s: %d messages have no address at the peer: its filter was changed", self.name, len(run))
            self.flow.finish((piece,), self._outcomes.rejected)
        return None

    def settle(self, piece: Piece, outcome: ForwardOutcome, why: str) -> None:
        """Settle a whole piece as accepted or rejected by the peer, or as expired."""
        if outcome is ForwardOutcome.EXPIRED:
            self.figures.expired += piece.messages
            self.flow.finish((piece,), self._outcomes.expired)
        elif outcome is ForwardOutcome.REJECTED:
            self.figures.rejected += piece.messages
            log.error("%s: the peer rejected %d messages: %s", self.name, piece.messages, why)
            self.flow.finish((piece,), self._outcomes.rejected)
        else:
            self.figures.accepted += piece.messages
            self.flow.finish((piece,), self._outcomes.accepted)

    def requeue(self, piece: Piece) -> None:
        """Return a piece to the front: the connection ended before it was answered."""
        self.figures.resent += piece.messages
        self.flow.take_back((piece,))

    # --- inside -----------------------------------------------------------------------------------------------

    def _choose(self, subscription: SendSubscription, stored: Stored) -> Iterator[Stored]:
        """Yield the wanted parts and settle the others."""
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
    """Outgoing forwarders of one connector, and the messages its connection has taken. Outlives connections."""

    def __init__(
        self,
        gateway: str,
        outcomes: Outcomes,
        *,
        epoch_of: Callable[[str, int], str],
        now_ns: Callable[[], int],
        window_bytes: int = OUTBOX_WINDOW_BYTES,
    ) -> None:
        """`epoch_of` returns the epoch of the message with this address and sequence."""
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
        """The forwarders, by descending priority."""
        return self._outlets

    @property
    def window_bytes(self) -> int:
        """Unsettled bytes that one forwarder may take from the router."""
        return max(OUTLET_WINDOW_BYTES_MIN, self._all_bytes // max(1, len(self._outlets)))

    def add(self, rule: ForwardRule) -> Outlet:
        """Add a forwarder; the caller adds its subscriptions to the outlet's flow."""
        outlet = Outlet(rule, self._path, self._outcomes, lambda: self.window_bytes)
        self._outlets.append(outlet)
        self._outlets.sort(key=lambda each: -each.rule.priority)
        return outlet

    def remove(self, outlet: Outlet) -> None:
        """Remove a forwarder; its subscriptions were removed before. Later outcomes of its messages are ignored."""
        self._outlets.remove(outlet)

    # --- towards the connector --------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Messages taken and not settled."""
        return sum(piece.messages for _, piece in self._taken.values())

    @property
    def waiting(self) -> bool:
        """True when `take` would return messages, unless all of them are too old."""
        return any(outlet.flow.pending for outlet in self._outlets)

    @property
    def open(self) -> bool:
        """True while a connection takes messages."""
        return self._path.up

    def disconnect(self, reason: str) -> None:
        """End the connection; the dialer reconnects after its backoff."""
        self._path.disconnect(reason)

    def attached(self, wake: Callable[[], None], disconnect: Callable[[str], None]) -> None:
        """Start with a connection. `wake` is called when there may be something to take; `disconnect` is called with a
        reason when the connection has to be replaced. Within `take` and `settle` only `disconnect` may be called."""
        self._path.set_wake(wake)
        self._path.opened(disconnect)
        self._pump()

    def detached(self) -> None:
        """Handle the end of the connection: unsettled messages return to the front, in the order taken."""
        self._path.closed()
        for outlet, piece in reversed(self._taken.values()):
            outlet.requeue(piece)
        self._taken.clear()

    def take(self, messages_max: int, bytes_max: int) -> Outgoing | None:
        """Take the next messages of the forwarder with the highest priority that has some: at least one, at most
        `messages_max`, and beyond the first at most `bytes_max`. None when there are none."""
        if messages_max <= 0:
            return None
        for i, outlet in enumerate(self._outlets):
            taken = outlet.take(messages_max, bytes_max, self._now_ns())
            if taken is None:
                continue
            address, piece = taken
            self._rotate(i)
            ticket = next(self._tickets)
            self._taken[ticket] = (outlet, piece)
            run = piece.stored.run
            hop = Hop(self._gateway, self._epoch_of(run.address, piece.stored.sequence))
            return Outgoing(ticket, address, piece.stored, hop, outlet.rule.sending)
        return None

    def elapsed_ms(self, run: Run) -> int:
        """Return the milliseconds since a run arrived at this gateway."""
        return max(0, (self._now_ns() - run.received_at) // 1_000_000) if run.received_at else 0

    def settle(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None:
        """Settle the messages of a ticket; with `count` only the first ones, and the rest later by the same ticket. A
        ticket that is settled, or of an earlier connection, is ignored.

        RELEASED ends the connection: unsettled messages are sent again, in order, over the next one.
        """
        if outcome is ForwardOutcome.RELEASED:
            if ticket in self._taken:
                self.disconnect(f"the peer released a message: {why}" if why else "the peer released a message")
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
        """Settle several tickets."""
        for ticket in tickets:
            self.settle(ticket, outcome, why)

    # --- inside -----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        for outlet in list(self._outlets):
            outlet.flow.pump()

    def _rotate(self, i: int) -> None:
        """Move an outlet behind the others of its priority, so that they take turns."""
        outlet = self._outlets.pop(i)
        priority = outlet.rule.priority
        behind = sum(1 for each in self._outlets if each.rule.priority >= priority)
        self._outlets.insert(behind, outlet)
