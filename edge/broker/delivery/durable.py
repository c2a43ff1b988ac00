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
"""Prefix of the durable subscriptions of forwarders: they send expired messages too, as a time to live ends at the far
side."""


class FormerFilter(msgspec.Struct, frozen=True):
    """Former filter of a forwarder, which still sends all messages that match it below the ends."""

    pattern: str
    ends: dict[int, int]
    """End position in each log, exclusive."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """Stored description of a durable subscription."""

    name: str
    pattern: str
    all_qos: bool = False
    """Store QoS 0 messages too: a forwarder does, an MQTT session need not (MQTT 5 section 4.1)."""
    not_from: str | None = None
    """No Local (MQTT 5 section 3.8.3.1): messages of this client are not for this subscription."""

    selector: str | None = None
    """Selector of its consumers, as `SubscribeOptions.selector`; None also in declarations of older versions."""

    user: str = ""
    """User that made it; empty: unknown. It decides nothing."""

    timeout_s: int = 0
    """Time for which its client wants it kept without consumers (AMQP 1.0 section 3.5.3); 0: forever."""

    left_at: int | None = None
    """Time when the last client left it, in seconds of `router.running_time`; None: a client holds it or just did."""

    former: tuple[FormerFilter, ...] = ()
    """Former filters of a forwarder."""

    @property
    def lapses(self) -> bool:
        """True when it ends after a long time without use. MQTT sessions end their own, and forwarders are
        configured."""
        return self.all_qos and not self.name.startswith(FORWARDER_PREFIX)

    @property
    def size(self) -> int:
        """Characters of its names, for `NameQuotas`."""
        return len(self.name) + len(self.pattern)

    def is_like(self, other: Declaration) -> bool:
        """Return True when both are equal but for user, timeout, time of leaving and former filters."""
        user, timeout_s, left_at, former = other.user, other.timeout_s, other.left_at, other.former
        return msgspec.structs.replace(self, user=user, timeout_s=timeout_s, left_at=left_at, former=former) == other

    def replaces(self, older: Declaration) -> bool:
        """Return True when it is a new subscription under the name of an older one (JMS 2.0 section 8.3.3)."""
        if self.selector is None:
            return False
        return self.pattern != older.pattern or older.selector not in (None, self.selector)

    def may_deliver(self, run: Run) -> bool:
        """Return True when a run may have to be delivered."""
        filters = (self.pattern, *(former.pattern for former in self.former))
        return any(matches(pattern, run.address) for pattern in filters) and self.accepts(run)

    def accepts(self, run: Run) -> bool:
        """Return True when a run with a matching address is to be delivered."""
        return (self.all_qos or run.qos > 0) and not is_from(run, self.not_from)


class EndingSubscription:
    """Subscription without a client that is being ended: its messages are dropped.

    These are the messages that arrived while it existed. They are all in its logs after the outcome of the commit that
    started the end.
    """

    __slots__ = ("_began", "_ends")

    def __init__(self, began: Ticket) -> None:
        self._began = began
        self._ends: dict[LogSubscription, int] = {}
        """End position of each part, exclusive."""

    def is_done(self, subscription: DurableSubscription) -> bool:
        """Drop more messages. Return True when none is left; until then call it again and again."""
        if not self._began.decided:
            return False
        left = [part for part in subscription.parts if not self._is_given_up(part)]
        return not left

    def _is_given_up(self, part: LogSubscription) -> bool:
        end = self._ends.setdefault(part, part.window.end)
        if part.lowest < end:
            part.expiry.abandon()
            return False
        return part.can_close


class DurableSubscription:
    """The parts of one durable subscription, one for each log, which are joined and left together."""

    __slots__ = ("declaration", "ending", "exclusive", "left_at", "made", "parts")
    attempts = 0

    def __init__(self, declaration: Declaration, left_at: int | None = None) -> None:
        """`left_at` is described at the attribute."""
        self.declaration = declaration
        self.made: Ticket | None = None
        """Commit that writes it; None: it was on disk at the start."""
        self.left_at = left_at
        """Time since which no client holds it; None: a client does, or it was not checked yet. The declaration has the
        value that is on disk."""
        self.ending: EndingSubscription | None = None
        self.parts: list[LogSubscription] = []
        self.exclusive = False
        """True when it has one consumer, and never another: a message that this one cannot take is undeliverable."""

    def declare(self, declaration: Declaration) -> None:
        """Use this declaration from now on; the caller writes it."""
        self.declaration = declaration

    def record_write(self, ticket: Ticket) -> None:
        """Record the ticket of the commit that writes its declaration."""
        self.made = ticket

    def record_left(self, at: int) -> None:
        """Record that no client has held it since this time."""
        self.left_at = at

    def hold(self) -> None:
        """Keep its messages: a client holds it, or it does not end by itself."""
        self.left_at = None
        if self.ending is not None:
            self.ending = None
            for part in self.parts:
                part.expiry.reclaim()

    def discard(self, began: Ticket) -> None:
        """Drop all its messages once the commit of this ticket is decided."""
        self.ending = EndingSubscription(began)
        for part in self.parts:
            part.expiry.abandon()

    def add(self, part: LogSubscription) -> None:
        """Add the part of another log."""
        part.exclusive = self.exclusive
        self.parts.append(part)

    def serve(self, *, exclusive: bool) -> None:
        """Serve a single consumer, or several that compete."""
        self.exclusive = exclusive
        for part in self.parts:
            part.exclusive = exclusive

    @property
    def consumers(self) -> list[Consumer]:
        """Consumers that have joined (the same for every part)."""
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
    def is_drained(self) -> bool:
        """True when all committed messages are settled or dropped."""
        return not any(_has_pending(part) for part in self.parts)

    @property
    def can_close(self) -> bool:
        """True when no consumer has it, and all of its state is on disk: another object may serve it later."""
        written = self.made is None or (self.made.decided and self.made.error is None)
        return written and self.ending is None and all(part.can_close for part in self.parts)

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Raise TypeError: deliveries are settled on the part they came from."""
        raise TypeError("settle on the subscription a delivery was made for")


def _has_pending(part: LogSubscription) -> bool:
    """Return True while committed messages wait, are with a consumer, or are being dead-lettered."""
    waits = part.backlog or part.outstanding or not part.dead_lettering.is_idle
    return bool(waits) or part.lowest < part.window.end


def consumers_of(subscriptions: Iterable[DurableSubscription]) -> int:
    """Return the number of their consumers."""
    return sum(len(subscription.consumers) for subscription in subscriptions)
