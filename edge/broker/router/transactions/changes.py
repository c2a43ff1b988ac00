"""Changes of a transaction: messages that it posts, and deliveries that it retires (AMQP 1.0 part 4, section 4.4)."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple, Protocol

from bridge.hidden import hides
from bridge.message import Run, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Origin, Refusal, Subscription


class TransactionFault(enum.Enum):
    """Reason why a transaction is rolled back although its client did not request it."""

    REFUSED = "a message was refused"
    UNSUPPORTED = "a message or delivery cannot be part of a transaction"
    LIMIT = "a limit of transactions is reached"
    IDLE = "the transaction was idle for too long"
    RECEIVER_LEFT = "a receiver left with deliveries that no log stores"
    STORE_FAILED = "the store failed"


class TransactionRefused(Exception):
    """A change is refused, so its transaction is rolled back."""

    def __init__(self, fault: TransactionFault, text: str, why: Refusal | None = None) -> None:
        """`why`: answer of the address to a message, for `TransactionFault.REFUSED`."""
        super().__init__(text)
        self.fault = fault
        self.why = why


@hides("run")
class Posting(NamedTuple):
    """Messages of one sender that become visible with the commit."""

    origin: Origin
    run: Run


class RetiringClient(Protocol):
    """Link of a client that retires deliveries in transactions."""

    def retired(self, retirement: Retirement) -> None:
        """End an unsettled delivery, as its transaction is committed."""
        ...

    def restored(self, retirement: Retirement) -> bool:
        """Let the client have an unsettled delivery again after a rollback. Return False when the link has ended."""
        ...


class Retirement:
    """One delivery that a transaction retires with an outcome."""

    __slots__ = ("client", "consumer", "outcome", "position", "settled", "stored", "subscription", "tag")

    def __init__(
        self,
        client: RetiringClient,
        consumer: Consumer,
        tag: int,
        subscription: Subscription,
        position: int,
        outcome: DeliveryOutcome,
        *,
        settled: bool,
    ) -> None:
        """`tag`: number of the delivery at its link. `settled`: the client has forgotten the delivery."""
        self.client = client
        self.consumer = consumer
        self.tag = tag
        self.subscription = subscription
        self.position = position
        self.outcome = outcome
        self.settled = settled
        self.stored: Stored | None = None
        """The message, once it is read for its dead letter."""


class DeliveryHolder(Consumer):
    """Holds the retired deliveries of one transaction in log subscriptions, so that they stay when their consumer
    leaves."""

    __slots__ = ()
    name = "transaction"

    @property
    def credit(self) -> int:
        return 0

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        """Raise TypeError: it has no credit."""
        raise TypeError("a transaction takes no deliveries")


def pass_on(subscription: LogSubscription, giver: Consumer, taker: Consumer, position: int) -> bool:
    """Let another party settle an outstanding message. It stays with that party when `giver` leaves, and is not
    delivered again before it is settled. Return False if `giver` has it no longer."""
    deliveries = subscription.deliveries
    if not deliveries.pass_on(giver, taker, position):
        return False
    if taker not in subscription.group:
        deliveries.leave(taker)
    return True
