"""Interfaces between the router and the protocol sessions.

The router is the only owner of routes and subscriptions. A protocol session (`mqtt.session`, `amqp.session`,
`http.session`, the uplink) is an *origin* of runs, a *consumer* of deliveries, or both. All calls happen on the thread
of the event loop, and none blocks. Calls are made for each run rather than for each message where possible.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from bridge.message import Run, Stored


class Refusal(enum.Enum):
    """Reason for refusing a message. Each protocol maps it to a code of its own."""

    NOT_AUTHORIZED = "not authorized"
    NO_CONSUMER = "no consumer"
    NO_CONSUMER_CONNECTED = "no consumer is connected"
    """Used for multicast addresses, which deliver only to consumers that are connected."""
    FULL = "no room: a quota is used up, or the store is full"
    NAMES = "too many names"
    """Limit of queues, subscriptions, retained messages or sessions reached, for the user or the space
    (`limits.Limits`)."""
    STORE_FAILED = "store failed"
    ADDRESS_INVALID = "address invalid"
    TOO_LARGE = "message too large"
    REJECTED = "rejected by the consumer"
    RELEASED = "no consumer has taken it"
    """Every consumer released it (AMQP 1.0 section 3.4.4). It may be sent again."""
    DELIVERY_FAILED = "no consumer could process it"
    """Every consumer returned it, at least one after a failed attempt (section 3.4.5, delivery-failed)."""
    UNDELIVERABLE = "no connected consumer can accept it"
    """Every consumer set undeliverable-here (AMQP 1.0 section 3.4.5). A new consumer may take it."""
    NO_ANSWER = "the consumer has not answered in time"
    PATH_LOST = "a link between routers was lost before the answer"
    """A consumer at another router may have processed it (AMQP 1.0 section 3.4.5, delivery-failed). It goes to no other
    consumer, so that the sender decides whether it may be processed twice."""
    FORMAT_INVALID = "the payload does not have the declared format"


class Acceptance(enum.Enum):
    """Positive answer to a message. `Refusal` has the negative ones."""

    ACCEPTED = "accepted"
    UNROUTED = "accepted, and no subscriber gets it"
    """No subscription of the topic matches, so it is neither stored nor delivered (MQTT 5 section 3.4.2.1, 0x10)."""


class AddressError(Exception):
    """An address cannot be used as requested."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


class SubscribeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a subscription.

    `durable_name`  name of a subscription that outlives its consumers; None: it ends with the consumer.
    `share_name`    name of a shared subscription that is not durable: its consumers take turns.
    `shared`        several consumers may use the durable subscription at once.
    `all_qos`       a durable subscription stores QoS 0 messages as well.
    `qos0_only`     a live subscription for the QoS 0 messages that its durable twin does not store.
    `client`        with `no_local`: skip the messages of this client (empty: the consumer's name).
    `owned`         the address is a dynamic node, and the consumer belongs to its owner's connection.
    `selector`      selector text of its consumers ("": everything). An existing durable subscription with another
                    selector or filter is replaced. None: the protocol has no selectors.
    `timeout_s`     time a durable subscription is kept without a consumer; 0: forever.
    """

    qos: int = 1
    durable_name: str | None = None
    share_name: str | None = None
    shared: bool = False
    browse: bool = False
    no_local: bool = False
    client: str = ""
    all_qos: bool = False
    qos0_only: bool = False
    owned: bool = False
    selector: str | None = None
    timeout_s: int = 0


class DeliveryOutcome(enum.Enum):
    """Outcome of a delivery at a consumer (AMQP 1.0 section 3.4; an MQTT acknowledgement is ACCEPTED)."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RELEASED = "released"
    MODIFIED_FAILED = "modified, delivery failed"
    UNANSWERED = "the consumer has left, or was not sent it"
    """Set by the broker. The message goes at once to the next consumer."""
    LOST = "the link or connection ended before an answer"
    """The consumer did not detach in order, so the message may have crashed it (`Redelivery.counts_link_loss`)."""
    MODIFIED_UNDELIVERABLE = "modified, undeliverable here"
    EXPIRED = "its time to live has passed at the consumer"
    """Set by the broker. The message is dropped as expired, and is not judged again: no other consumer gets it."""
    TOO_LARGE = "larger than the consumer takes"
    """Nothing was sent, so it does not count as an attempt (section 3.2.1, delivery-count). The message goes to
    other consumers, and never to this one again."""


class Explanation(NamedTuple):
    """Details that a consumer adds to its outcome, for the sender of the message."""

    condition: str = ""
    """Symbolic name of an error (AMQP 1.0 section 2.8.14), for `rejected`; empty: none."""
    description: str = ""
    annotations: bytes = b""
    """Message annotations as an encoded map, for `modified`; empty: none."""


class Origin(Protocol):
    """Source of runs. `tokens` are the numbers that the origin passed to `Router.publish`, one a message.

    Members with a default are optional for classes that name this one as their base.
    """

    __slots__ = ()

    name: str
    """Name of the publisher, stored in `Run.device`."""

    user: str = ""
    """User charged for the names that its messages create; empty without authentication."""

    in_order: bool = False
    """Answers come in the order of the messages, also for anycast. Other origins get the answer to an anycast message
    when its consumer settles it."""

    def accepted(self, tokens: Sequence[int]) -> None:
        """Acknowledge messages: they are on disk, or delivered where the address type does not store.

        They may belong to several runs, in the order published.
        """
        ...

    def accepted_unrouted(self, tokens: Sequence[int]) -> None:
        """Acknowledge messages without a subscriber (`Acceptance.UNROUTED`). The default calls `accepted`."""
        self.accepted(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Report that messages were refused."""
        ...

    def explained(self, tokens: Sequence[int], explanation: Explanation) -> None:
        """Report the consumer's reason, before `refused` is called with the same tokens."""
        return

    def store_failed(self, tokens: Sequence[int]) -> None:
        """Report early that messages will be refused. `refused` follows in order, perhaps after a later commit."""
        return

    def waits_for_consumer(self) -> bool:
        """Return True when the protocol cannot report a missing consumer (MQTT before version 5).

        The message then waits for a consumer.
        """
        return False

    def credit_changed(self, address: str) -> None:
        """Note that the credit of an address may have changed: query `SenderCredit.of` again."""
        return

    def pause_publishing(self) -> None:
        """Stop sending until `resume_publishing`: a live subscriber of its messages is behind."""
        return

    def resume_publishing(self) -> None:
        """Resume sending: the slow subscribers have caught up, or the wait has ended."""
        return

    def abort(self) -> None:
        """End the connection after a call raised: the peer may have missed answers."""
        return


class ManyOrigins(Origin, Protocol):
    """Origin of a batch of AMQP messages of many senders to one address. Its tokens are indexes into the batch."""

    __slots__ = ()

    encoded: list[bytes]
    """Each message as encoded for a link. Valid until the message is answered."""

    def run(self, place: int) -> Run:
        """Return one message as a run."""
        ...


class MessageSelection(Protocol):
    """Selector of a consumer of a queue. Other messages are left for other consumers."""

    text: str
    """Text of the selector. Equal texts select the same messages."""

    def wanted(self, run: Run) -> Sequence[bool]:
        """Return a flag for each message of the run: True if the consumer wants it."""
        ...


class Consumer(Protocol):
    """Receiver of deliveries. Members with a default are optional, as in `Origin`."""

    __slots__ = ()

    name: str

    user: str = ""
    """User charged for the names of its subscriptions; see `Origin.user`."""

    selection: MessageSelection | None = None
    """Selector for messages of queues; None: everything."""
    overlaps: bool = False
    """Another subscription of its client matches some of the same topics: `Router.merge_live` may deliver one copy."""

    @property
    def credit(self) -> int:
        """Messages the consumer can take now. The router never delivers more in one batch."""
        ...

    def credit_without(self, others: Collection[Consumer]) -> int:
        """Return the credit for a message that these consumers do not take: none of them comes before this one."""
        return self.credit

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        """Take one or several runs, in order, with 1 to `credit` messages in total.

        `edge.broker.delivery.batches` has the collections that are cheaper to take whole. The messages of a run
        `stored` stay outstanding until ``subscription.settle`` is called for their positions ``stored.position + i``.
        A negative position means that the message is settled already and needs no answer (QoS 0, pre-settled).
        """
        ...

    def exhausted(self) -> None:
        """Report that the store has been read to its end (`Subscription.idle_now`): a drain can finish."""
        return

    def stolen(self) -> bool:
        """Give up an exclusive subscription that its device joins over another connection. Return False to keep it."""
        return False

    def abort(self) -> None:
        """End the connection after a call raised. Outstanding deliveries are returned."""
        return


class Subscription(Protocol):
    """Subscription of a consumer group to an address. A session uses it to settle and to pull messages."""

    attempts: int
    """Failed deliveries of the messages being delivered. Valid only within `Consumer.deliver`."""

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Settle positions ``first <= p <= last``, all delivered to this consumer, with its outcome."""
        ...

    def pump(self) -> None:
        """Deliver waiting messages: the consumer has credit again."""
        ...

    @property
    def idle_now(self) -> bool:
        """True when nothing is left to deliver, whatever the credit, until a message is sent or returned.

        A drain waits for this (AMQP 1.0 section 2.6.7). False while the store is being read. `Consumer.exhausted` is
        called when the end is reached.
        """
        ...


class MessageCounts(msgspec.Struct):
    """Counts of messages since the start."""

    received: int = 0
    sent: int = 0
    """Messages delivered to clients, counted for each client. A redelivery does not count again."""
    acknowledged: int = 0
    refused: int = 0
    stored: int = 0
    """Messages that commits wrote to disk, of any QoS."""
    unrouted: int = 0
    """Messages to topics without a subscriber: neither stored nor delivered. Those of QoS 1 and 2 also count in
    `acknowledged`."""
