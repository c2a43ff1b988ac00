"""A durable subscription: one name, one filter, and a cursor in every log the filter reaches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from bridge.message import Run, is_from
from edge.broker.delivery import LogSubscription
from edge.broker.model.interfaces import Consumer, DeliveryOutcome
from edge.broker.model.topics import matches
from edge.broker.store.ticket import Ticket

FORWARDER_PREFIX: Final = "forwarder/"
"""Durable subscriptions of this name send on what they were given: a time to live runs out where it ends."""


class Former(msgspec.Struct, frozen=True):
    """What a forwarder is owed by a filter it had before: all that matches below the ends."""

    pattern: str
    ends: dict[int, int]
    """The first position of each log that came later."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a durable subscription across restarts."""

    name: str
    pattern: str
    all_qos: bool = False
    """Keep QoS 0 messages too: a forwarder does, an MQTT session need not (MQTT 5 section 4.1)."""
    not_from: str | None = None
    """No Local (MQTT 5 section 3.8.3.1): messages of this client are not for this subscription."""

    selector: str | None = None
    """What its consumers select by, as `SubscribeOptions.selector`; None also of what an older version kept."""

    user: str = ""
    """Who made it; empty: nobody is known. It decides nothing."""

    timeout_s: int = 0
    """How long its client wants it kept while nobody holds it (AMQP 1.0 section 3.5.3); 0: for ever."""

    left_at: int | None = None
    """Since when nobody holds it, in seconds of `router.running_time`; None: somebody does, or did until lately."""

    former: tuple[Former, ...] = ()
    """Of a forwarder whose filter was changed."""

    @property
    def lapses(self) -> bool:
        """It ends when nobody has used it for long. A session of MQTT ends its own, and a forwarder is configured."""
        return self.all_qos and not self.name.startswith(FORWARDER_PREFIX)

    @property
    def size(self) -> int:
        """Characters of its names, for `NameQuotas`."""
        return len(self.name) + len(self.pattern)

    def is_like(self, other: Declaration) -> bool:
        """The same, whoever made it, however long it is kept, and whatever it was before."""
        user, timeout_s, left_at, former = other.user, other.timeout_s, other.left_at, other.former
        return msgspec.structs.replace(self, user=user, timeout_s=timeout_s, left_at=left_at, former=former) == other

    def replaces(self, older: Declaration) -> bool:
        """True when it is a new subscription under the name of an older one (JMS 2.0 section 8.3.3)."""
        if self.selector is None:
            return False
        return self.pattern != older.pattern or older.selector not in (None, self.selector)

    def owes(self, run: Run) -> bool:
        """True when a run may be to be delivered."""
        filters = (self.pattern, *(former.pattern for former in self.former))
        return any(matches(pattern, run.address) for pattern in filters) and self.accepts(run)

    def accepts(self, run: Run) -> bool:
        """True when a run whose address matches is to be delivered."""
        return (self.all_qos or run.qos > 0) and not is_from(run, self.not_from)


class EndingSubscription:
    """One nobody holds any more is being given up: all that came while it was there, which is in its logs when the
    commit it began with is decided."""

    __slots__ = ("_began", "_ends")

    def __init__(self, began: Ticket) -> None:
        self._began = began
        self._ends: dict[LogSubscription, int] = {}
        """The first position of each part that came later."""

    def is_over(self, subscription: DurableSubscription) -> bool:
        """Nothing is left. To be asked again and again: it sees to what is."""
        if not self._began.decided:
            return False
        left = [part for part in subscription.parts if not self._is_given_up(part)]
        return not left

    def _is_given_up(self, part: LogSubscription) -> bool:
        end = self._ends.setdefault(part, part.window.end)
        if part.lowest < end:
            part.expiry.abandon()
            return False
        return part.at_rest


class DurableSubscription:
    """The parts of one durable subscription, one a log, joined and left together."""

    __slots__ = ("declaration", "ending", "exclusive", "left_at", "made", "parts")
    attempts = 0

    def __init__(self, declaration: Declaration, left_at: int | None = None) -> None:
        """`left_at`: as the attribute."""
        self.declaration = declaration
        self.made: Ticket | None = None
        """The commit it is written in; None: it was on disk at the start."""
        self.left_at = left_at
        """Time since which no client holds it; None: a client does, or it was not looked at yet. The declaration says
        what of it is on disk."""
        self.ending: EndingSubscription | None = None
        self.parts: list[LogSubscription] = []
        self.exclusive = False
        """One consumer has it, and never another: what that cannot take nobody will."""

    def declare(self, declaration: Declaration) -> None:
        """Go on with this declaration, which is to be written."""
        self.declaration = declaration

    def record_write(self, ticket: Ticket) -> None:
        """Its declaration is written in the commit of this ticket."""
        self.made = ticket

    def record_left(self, at: int) -> None:
        """No client has held it since this time."""
        self.left_at = at

    def hold(self) -> None:
        """Keep what is left in it: a client holds it, or it does not end by itself."""
        self.left_at = None
        if self.ending is not None:
            self.ending = None
            for part in self.parts:
                part.expiry.reclaim()

    def give_up(self, began: Ticket) -> None:
        """Give up all that is in it when the commit of this ticket is decided."""
        self.ending = EndingSubscription(began)
        for part in self.parts:
            part.expiry.abandon()

    def add(self, part: LogSubscription) -> None:
        """It reaches another log."""
        part.exclusive = self.exclusive
        self.parts.append(part)

    def serve(self, *, exclusive: bool) -> None:
        """One consumer is to have it alone, or several are to compete for what is in it."""
        self.exclusive = exclusive
        for part in self.parts:
            part.exclusive = exclusive

    @property
    def consumers(self) -> list[Consumer]:
        """Who has joined (the same for every part)."""
        return list(self.parts[0].group.consumers) if self.parts else []

    def join(self, consumer: Consumer) -> None:
        for part in self.parts:
            part.join(consumer)

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        for part in self.parts:
            part.leave(consumer, keep=keep)

    def pump(self) -> None:
        for part in self.parts:
            part.pump()

    @property
    def idle_now(self) -> bool:
        return all(part.idle_now for part in self.parts)

    @property
    def owes_nothing(self) -> bool:
        """All that was committed is settled, or given up."""
        return not any(_owes(part) for part in self.parts)

    @property
    def at_rest(self) -> bool:
        """Nobody holds it, and all that is known of it is on disk: another object may serve it later."""
        written = self.made is None or (self.made.decided and self.made.error is None)
        return written and self.ending is None and all(part.at_rest for part in self.parts)

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Deliveries carry the part they came from; settle there."""
        raise TypeError("settle on the subscription a delivery was made for")


def _owes(part: LogSubscription) -> bool:
    """Something that was committed waits, is with a consumer, or is on its way to the dead letters."""
    waits = part.backlog or part.outstanding or not part.dead_lettering.is_at_rest
    return bool(waits) or part.lowest < part.window.end


def consumers_of(subscriptions: Iterable[DurableSubscription]) -> int:
    """How many consumers they have together."""
    return sum(len(subscription.consumers) for subscription in subscriptions)
