"""Incoming forwarders: publish messages of a connector, and answer the far side after the commit.

An `IncomingForwarder` is an origin of the router and the `ForwarderInbox` of one forwarder. It publishes the messages
it holds together, and waits until all of them are answered. So messages that a commit refused are published again
before later ones, and each sender's order is kept. Messages without room wait here in order, and the far side gets no
credit in the meantime.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

import msgspec

from bridge.amqp_values import DecodeError
from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.mapping import map_address
from bridge.forwarders.outcome import ForwardOutcome
from bridge.limits import INBOX_BYTES_MAX, INBOX_WINDOW, MESSAGE_OVERHEAD_BYTES
from bridge.message import AMQP, DURABLE, GROUPED, Run
from bridge.plain import HOPS_MAX
from bridge.publisher import client_of, device_of, publisher_name
from bridge.topic_filter import without_share
from edge.broker.configuration import Forwarder
from edge.broker.message.translation import flags_of, group_of
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.topics import is_filter, matches
from edge.broker.router.batch import Publication
from edge.broker.router.inbound_losses import InboundLosses
from edge.broker.router.recent_names import RecentNames, digest
from edge.broker.router.retained_repeats import RetainedRepeats
from edge.broker.router.router import Router

log = logging.getLogger(__name__)

FINAL: Final = frozenset(
    (
        Refusal.NOT_AUTHORIZED,
        Refusal.ADDRESS_INVALID,
        Refusal.TOO_LARGE,
        Refusal.REJECTED,
        Refusal.UNDELIVERABLE,
        Refusal.FORMAT_INVALID,
    )
)
"""Refusals because of the message itself. After any other one the message waits here."""

DEFERRED: Final = frozenset((Refusal.RELEASED, Refusal.DELIVERY_FAILED, Refusal.PATH_LOST))
"""Refusals of consumers that have credit: the message waits for the next `IncomingForwarder.try_again`. Otherwise it
would be retried without a pause."""


class InboundFigures(msgspec.Struct):
    """Messages of one incoming forwarder since it was made."""

    received: int = 0
    accepted: int = 0
    """On disk here, or delivered by an address that does not store. The far side has its answer, or gets it when it
    sends them again."""
    duplicates: int = 0
    """Received again after a break: answered as accepted, and not stored twice."""
    unnamed: int = 0
    """Without a name, so that duplicates are not detected."""
    filtered: int = 0
    """Excluded by the forwarder's condition: accepted from the far side, and no loss."""
    looped: int = 0
    """Passed this gateway before: accepted from the far side, and not stored again."""
    rejected: int = 0
    """Rejected, with that answer to the far side."""


@dataclass(slots=True)
class _HeldMessage:
    """Message that waits or is being published."""

    number: int
    token: int | None
    """Token of the connector; None when the far side has forgotten it, or its connection has ended."""
    ours: bool
    """True when the far side has forgotten it, so that it is not sent again."""
    name: bytes
    """Digest of its name; empty without one."""
    unique: bool
    """True when no other message ever has this name."""
    run: Run
    size: int
    again: bool
    """True when the far side retains it and sent it because we subscribed: it may be retained here already."""


class IncomingForwarder(Origin):
    """One incoming forwarder, for the time that its configuration stays."""

    def __init__(
        self,
        router: Router,
        forwarder: Forwarder,
        names: RecentNames,
        gateway: str,
        wanted: Callable[[Run], Sequence[bool] | None] = lambda _run: None,
        losses: InboundLosses | None = None,
    ) -> None:
        """`gateway` is our name in lists of hops. `wanted` is the forwarder's condition, as in `outbox.ForwardRule`.
        `losses`: ledger of rejected messages, for a peer without refusals; None for a peer that gets `rejected`."""
        self.name = f"forwarder {forwarder.name}"
        self.remote = forwarder.remote_address
        self.qos = 1 if forwarder.qos is None else forwarder.qos
        self.forwarder = forwarder
        self.figures = InboundFigures()
        self._router = router
        self._names = names
        self._retained = RetainedRepeats(self._retained_here)
        self._gateway = gateway
        self._wanted = wanted
        self._losses = losses
        self._losing: dict[int, int] = {}
        """Tokens of rejected messages that are not in the ledger yet, by number; those of a former connection are
        removed."""
        self._waiting: deque[_HeldMessage] = deque()
        self._published: dict[int, _HeldMessage] = {}
        self._numbers = count()
        self._held_bytes = 0
        self._blocked = False
        """True when the last published messages found no room."""
        self._at_once = INBOX_WINDOW
        """Number of messages published together: fewer while there is little room, as a run is taken as a whole."""
        self._deferred = False
        """True when consumers returned the last published messages."""
        self._fewer = False
        """True when the last messages must be retried at once, in smaller runs."""
        self._publishing = False
        self._settle: Settle | None = None
        self._credit_changed: Callable[[], None] = _ignore
        self._leaving = False
        """True when the connection, or the configuration of this forwarder, is about to end."""
        self._left: Callable[[], None] = _ignore
        self._ended: Callable[[], None] = _ignore

    # --- Inbox ------------------------------------------------------------------------------------------------

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self._settle, self._credit_changed = settle, credit_changed
        self._names.connection_lost()
        self._retained.begin()

    def leave(self, left: Callable[[], None]) -> None:
        self._leaving, self._left = True, left
        self._finish_leaving()

    def detached(self) -> None:
        """Keep published messages, which are recognised when they come again. Messages that only wait are sent again by
        the far side."""
        self._settle, self._credit_changed = None, _ignore
        self._leaving, self._left = False, _ignore
        kept = [entry for entry in self._waiting if entry.ours]
        self._held_bytes -= sum(entry.size for entry in self._waiting if not entry.ours)
        self._waiting = deque(kept)
        for entry in self._published.values():
            entry.token = None
        self._losing.clear()
        ended, self._ended = self._ended, _ignore
        ended()

    @property
    def credit(self) -> int:
        if self._leaving or self._blocked or self._held_bytes >= INBOX_BYTES_MAX:
            return 0
        return max(0, INBOX_WINDOW - len(self._waiting) - len(self._published) - len(self._losing))

    @property
    def is_empty(self) -> bool:
        """True if no message waits here, or for its commit."""
        return not self._waiting and not self._published

    def receive(self, messages: Sequence[Incoming]) -> None:
        self.figures.received += len(messages)
        for message in messages:
            entry = self._make_entry(message)
            if entry is not None:
                self._waiting.append(entry)
                self._held_bytes += entry.size
        self._publish()

    def end(self, ended: Callable[[], None]) -> None:
        """End the forwarder: `ended` is called when its connection is over, at once without one. The owner of the
        connection ends it."""
        self._leaving = True
        if self._settle is None:
            ended()
        else:
            self._ended = ended

    # --- Origin -----------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        entries = self._answered(tokens)
        self.figures.accepted += len(entries)
        self._names.confirm(entry.name for entry in entries)
        self._held_bytes -= sum(entry.size for entry in entries)
        self._answer(entries, ForwardOutcome.ACCEPTED)
        self._at_once = min(INBOX_WINDOW, 2 * self._at_once)
        self._publish()

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        entries = self._answered(tokens)
        self._names.withdraw(entry.name for entry in entries if entry.name)
        if why in FINAL:
            self._reject(entries, why)
        else:
            self._requeue(entries)
            self._deferred = why in DEFERRED
            if why is Refusal.FULL and self._at_once > 1:
                self._at_once, self._fewer = max(1, min(self._at_once, len(tokens)) // 2), True
        self._publish()

    def store_failed(self, tokens: Sequence[int]) -> None:
        self._blocked = True

    def credit_changed(self, address: str) -> None:
        self.try_again()

    def abort(self) -> None:
        """Try again later: a call of the router raised, and was logged."""
        self._blocked = True

    def try_again(self) -> None:
        """Publish waiting messages, as there may be room again; also called at each tick."""
        if self._blocked and not self._published:
            self._blocked = False
            self._publish()

    # --- inside -----------------------------------------------------------------------------------------------

    def _make_entry(self, message: Incoming) -> _HeldMessage | None:
        """Return a message in the form to publish; None when it was answered already."""
        if self._gateway in message.hops:
            self.figures.looped += 1
            self._settle_one(message.token, ForwardOutcome.ACCEPTED)
            return None
        far = len(message.hops) >= HOPS_MAX
        fault = message.fault or (f"it has passed {len(message.hops)} gateways" if far else "")
        if fault:
            self._reject_one(message, message.code if message.fault else "too-many-hops", fault)
            return None
        address = self._address(message.addresses)
        if address is None:
            given = ", ".join(message.addresses) or "none"
            why = f"{self.forwarder.filter} matches none of its addresses: {given}"
            self._reject_one(message, "no-address", why)
            return None
        run = message.run
        run.address = address
        device = run.device or self.name
        if message.hops:  # from a gateway, and the operator chose this peer: trust the origin in it
            device = publisher_name(device_of(device), client_of(device), relay=True)
        run.device = device
        if run.flags & AMQP:
            try:
                flags = AMQP | (run.flags & DURABLE) | flags_of(run.bodies[0], settled=message.token is None)
                run.flags = flags | (GROUPED if group_of(run.bodies[0]) is not None else 0)
            except DecodeError as error:
                self._reject_one(message, "unreadable", str(error))
                return None
        return self._select_entry(message)

    def _select_entry(self, message: Incoming) -> _HeldMessage | None:
        """Return the entry of a readable message; None when the forwarder's condition excludes it."""
        run = message.run
        wanted = self._wanted(run)
        if wanted is not None and not all(wanted):
            self.figures.filtered += 1
            self._settle_one(message.token, ForwardOutcome.ACCEPTED)
            return None
        if not message.name:
            self.figures.unnamed += 1
        name = digest(message.name) if message.name else b""
        size = run.size + MESSAGE_OVERHEAD_BYTES
        number, ours = next(self._numbers), message.token is None
        return _HeldMessage(number, message.token, ours, name, message.unique, run, size, message.again)

    def _address(self, names: Iterable[str]) -> str | None:
        """Return the local address: the forwarder's own, or derived from those of the message."""
        local, remote = self.forwarder.filter, without_share(self.remote)
        if not is_filter(local):
            return local
        if is_filter(remote):
            found = (map_address(remote, local, name) for name in names if _is_name(name) and matches(remote, name))
            return next(found, None)
        return next((name for name in names if _is_name(name) and matches(local, name)), None)

    def _publish(self) -> None:
        """Publish waiting messages together, unless published ones are not answered."""
        if self._publishing:
            return
        self._publishing = True
        try:
            while self._waiting and not self._published and (self._fewer or not self._blocked):
                self._blocked = self._fewer = False
                self._publish_together(self._take_new())
        finally:
            self._publishing = False
        if self._blocked:
            self._watch_room()  # otherwise it is retried at the next tick
        else:
            self._credit_changed()
        self._finish_leaving()

    def _finish_leaving(self) -> None:
        """Call back once no message waits for an answer that will come."""
        if self._left is _ignore or self._published or self._losing or (self._waiting and not self._blocked):
            return
        theirs = [entry for entry in self._waiting if not entry.ours]
        self._waiting = deque(entry for entry in self._waiting if entry.ours)
        self._held_bytes -= sum(entry.size for entry in theirs)
        self._answer(theirs, ForwardOutcome.RELEASED)
        left, self._left = self._left, _ignore
        left()

    def _take_new(self) -> list[_HeldMessage]:
        """Take the first waiting messages, without those that are stored already."""
        every = list(self._waiting)
        waiting, self._waiting = every[: self._at_once], deque(every[self._at_once :])
        early = next((i for i, entry in enumerate(waiting) if self._names.undecided(entry.name)), len(waiting))
        if early < len(waiting):  # published by an earlier configuration of this forwarder: wait for that commit
            self._blocked = True
        else:
            early = _first_repeat(waiting)
        self._waiting.extendleft(reversed(waiting[early:]))
        waiting = waiting[:early]
        known = [entry for entry in waiting if self._is_duplicate(entry)]
        if known:
            self.figures.duplicates += len(known)
            log.info("%s: skipped %d messages that were received again", self.name, len(known))
            self._held_bytes -= sum(entry.size for entry in known)
            self._answer(known, ForwardOutcome.ACCEPTED)
            gone = {entry.number for entry in known}
            return [entry for entry in waiting if entry.number not in gone]
        return waiting

    def _is_duplicate(self, entry: _HeldMessage) -> bool:
        """Return True when a message is stored here already: by its name, or as the retained message of its address."""
        if entry.name and self._names.is_duplicate(entry.name, unique=entry.unique):
            return True
        return entry.again and self._retained.is_repeat(entry.run)

    def _retained_here(self, address: str) -> Run | None:
        return self._router.retained.get(address)

    def _publish_together(self, entries: Sequence[_HeldMessage]) -> None:
        self._published = {entry.number: entry for entry in entries}
        self._names.add(entry.name for entry in entries if entry.name)
        for run, numbers in _runs(entries):
            if self._blocked:  # an earlier run found no room: keep these behind it
                behind = self._answered(numbers)
                self._names.withdraw(entry.name for entry in behind if entry.name)
                self._requeue(behind)
            else:
                self._router.publish(Publication(self, run, numbers))

    def _answered(self, numbers: Iterable[int]) -> list[_HeldMessage]:
        return [entry for number in numbers if (entry := self._published.pop(number, None)) is not None]

    def _requeue(self, entries: Iterable[_HeldMessage]) -> None:
        """Put messages back in front, except for those that the far side sends again."""
        self._blocked = True
        kept = [entry for entry in entries if entry.token is not None or entry.ours]
        self._held_bytes -= sum(entry.size for entry in entries) - sum(entry.size for entry in kept)
        self._waiting = deque(sorted((*kept, *self._waiting), key=lambda entry: entry.number))

    def _watch_room(self) -> None:
        """Ask the router for a notification when there is room."""
        if self._waiting and not self._deferred:
            self._router.credit.of(self, self._waiting[0].run.address)

    def _answer(self, entries: Sequence[_HeldMessage], outcome: ForwardOutcome, why: str = "") -> None:
        tokens = [entry.token for entry in entries if entry.token is not None]
        if tokens and self._settle is not None:
            self._settle(tokens, outcome, why)

    def _settle_one(self, token: int | None, outcome: ForwardOutcome, why: str = "") -> None:
        if token is not None and self._settle is not None:
            self._settle((token,), outcome, why)

    def _reject(self, entries: Sequence[_HeldMessage], why: Refusal) -> None:
        """Reject messages that the router will never accept."""
        log.error("%s: rejected %d messages: %s", self.name, len(entries), why.value)
        self._held_bytes -= sum(entry.size for entry in entries)
        size = sum(sum(map(len, entry.run.bodies)) for entry in entries)
        tokens = [entry.token for entry in entries if entry.token is not None]
        self._reject_tokens(tokens, len(entries), size, why.name.lower().replace("_", "-"), why.value)

    def _reject_one(self, message: Incoming, code: str, why: str) -> None:
        """Reject a message that cannot be published. `code` is the reason in the loss ledger."""
        log.error("%s: rejected a message: %s", self.name, why)
        size = message.bytes or sum(map(len, message.run.bodies))
        self._reject_tokens(() if message.token is None else (message.token,), 1, size, code, why)

    def _reject_tokens(self, tokens: Sequence[int], messages: int, size: int, code: str, why: str) -> None:
        """Answer rejected messages, after the commit of their ledger entry if the peer forgets them."""
        self.figures.rejected += messages
        if self._losses is None:
            if tokens and self._settle is not None:
                self._settle(tokens, ForwardOutcome.REJECTED, why)
            return
        losing = {next(self._numbers): token for token in tokens}
        self._losing.update(losing)
        forwarder = f"{self.forwarder.connector}/{self.forwarder.name}"
        self._losses.record(forwarder, code, messages, size, partial(self._lost, list(losing), why))

    def _lost(self, numbers: Sequence[int], why: str) -> None:
        """Answer rejected messages that are in the ledger now; those of a former connection get no answer."""
        tokens = [token for number in numbers if (token := self._losing.pop(number, None)) is not None]
        if tokens and self._settle is not None:
            self._settle(tokens, ForwardOutcome.REJECTED, why)
        self._credit_changed()
        self._finish_leaving()


def _runs(entries: Sequence[_HeldMessage]) -> list[tuple[Run, list[int]]]:
    """Combine messages into as few runs as possible, with the numbers of each."""
    runs: list[tuple[Run, list[int]]] = []
    for entry in entries:
        run = entry.run
        if runs and _can_share_run(runs[-1][0], run):
            runs[-1][0].bodies.append(run.bodies[0])
            runs[-1][1].append(entry.number)
        else:
            together = Run(run.address, run.device, run.flags, run.properties, [run.bodies[0]])
            runs.append((together, [entry.number]))
    return runs


def _first_repeat(entries: Sequence[_HeldMessage]) -> int:
    """Return the index of the first message that repeats an earlier one: it waits for the commit of that."""
    names: set[bytes] = set()
    for i, entry in enumerate(entries):
        if entry.unique and entry.name in names:
            return i
        names.add(entry.name)
    return len(entries)


def _can_share_run(one: Run, other: Run) -> bool:
    same = one.address == other.address and one.device == other.device
    return same and one.flags == other.flags and one.properties == other.properties


def _is_name(text: str) -> bool:
    """Return True for a valid address: not a filter, and not one of the broker's own."""
    return bool(text) and not is_filter(text) and not text.startswith("$") and "\0" not in text


def _ignore() -> None:
    """Do nothing, without a connection."""
