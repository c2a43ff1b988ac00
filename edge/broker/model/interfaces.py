"""What the router and the protocol sessions owe each other.

The router is the single owner of routes and subscriptions; a protocol session (`mqtt.session`, `amqp.session`,
`http.session`, the uplink) is an *origin* of runs, a *consumer* of deliveries, or both. All calls happen on the
event loop's thread, none blocks, none is made per message when it can be made per run.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec

from bridge.message import Run, Stored


class Refusal(enum.Enum):
    """Why a message was not taken; each protocol has its own code for each."""

    NOT_AUTHORIZED = "not authorized"
    NO_CONSUMER = "no consumer"
    NO_CONSUMER_CONNECTED = "no consumer is connected"
    """Of a multicast address, which promises no more than to hand on to whoever is there."""
    FULL = "store is full"
    NAMES = "too many names"
    """Of queues, subscriptions, retained messages or sessions: of the user, or in the space (`limits.Limits`)."""
    STORE_FAILED = "store failed"
    ADDRESS_INVALID = "address invalid"
    TOO_LARGE = "message too large"
    REJECTED = "rejected by the consumer"
    RELEASED = "no consumer has taken it"
    """Each has given it back (AMQP 1.0 section 3.4.4): it may be sent again."""
    DELIVERY_FAILED = "no consumer could process it"
    """Each has given it back, one at least after a failed attempt (section 3.4.5, delivery-failed)."""
    UNDELIVERABLE = "no consumer that is there can be given it"
    """Each has said so (AMQP 1.0 section 3.4.5, undeliverable-here); another one may."""
    NO_ANSWER = "the consumer has not answered in time"
    FORMAT_INVALID = "the payload is not what it was said to be"


class Acceptance(enum.Enum):
    """Positive answers to a message; `Refusal` has the others."""

    ACCEPTED = "accepted"
    UNROUTED = "accepted, and no subscriber gets it"
    """No subscription of the topic matches, so it is neither stored nor delivered (MQTT 5 section 3.4.2.1, 0x10)."""


class AddressError(Exception):
    """An address cannot be used as asked."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


class SubscribeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer wants to receive.

    `durable_name`  the subscription outlives its consumers, under this name; None: it ends with the consumer.
    `share_name`    consumers that give the same name take turns (a shared subscription that is not durable).
    `shared`        several consumers may hold the durable subscription at once.
    `all_qos`       a durable subscription keeps QoS 0 messages as well.
    `qos0_only`     a live subscription for the QoS 0 messages that its durable twin does not keep.
    `client`        with `no_local`: skip the messages of this client (empty: the consumer's name).
    `owned`         the address is of a dynamic node, and the consumer is of its owner's connection.
    `selector`      what its consumers select by, as they wrote it ("": everything). With it, a durable subscription
                    that exists with another one, or another filter, is replaced. None: there are no selectors here.
    `timeout_s`     how long a durable subscription is kept without a consumer, if not ended before; 0: for ever.
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
    """What a consumer did with a delivery (AMQP 1.0 section 3.4; an MQTT acknowledgement is ACCEPTED)."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RELEASED = "released"
    MODIFIED_FAILED = "modified, delivery failed"
    UNANSWERED = "the consumer has left, or was not sent it"
    """No answer of the consumer: the message goes at once to the next consumer."""
    LOST = "the link or connection ended before an answer"
    """Not by the consumer's own goodbye: it may have died of the message (`Redelivery.counts_link_loss`)."""
    MODIFIED_UNDELIVERABLE = "modified, undeliverable here"
    TOO_LARGE = "larger than the consumer takes"
    """Nothing was sent, so it was no attempt at delivery (section 3.2.1, delivery-count): the message is for others,
    and never for this consumer again."""


class Explanation(NamedTuple):
    """What a consumer says beside its outcome, for who sent the message."""

    condition: str = ""
    """The symbolic name of an error (AMQP 1.0 section 2.8.14), of `rejected`; empty: none."""
    description: str = ""
    annotations: bytes = b""
    """Message annotations, of `modified`, as an encoded map; empty: none."""


class Origin(Protocol):
    """Where runs come from. `tokens` are the numbers the origin itself gave to `Router.publish`, one a message.

    What has a default here is for origins to have or to leave, by naming this class as their base.
    """

    __slots__ = ()

    name: str
    """Name of the publisher, as it goes into `Run.device`."""

    user: str = ""
    """Whose quota pays for the names its messages make; empty: nobody's, where nobody has to say who he is."""

    in_order: bool = False
    """It hears its answers in the order of what it sent, also over what consumers answer; others hear of anycast
    messages when their consumers settle them."""

    def accepted(self, tokens: Sequence[int]) -> None:
        """These messages are on disk, or delivered where the address type does not store. Acknowledge them.

        They may be those of several runs, in the order published."""
        ...

    def accepted_unrouted(self, tokens: Sequence[int]) -> None:
        """Acknowledge messages that no subscriber gets (`Acceptance.UNROUTED`); by default as any other."""
        self.accepted(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """These messages were not taken."""
        ...

    def explained(self, tokens: Sequence[int], said: Explanation) -> None:
        """Said before `refused`, with this call's tokens: why their consumer does not take these messages."""
        return

    def not_stored(self, tokens: Sequence[int]) -> None:
        """These messages are refused; `refused` follows when it is their turn, in a later commit perhaps."""
        return

    def waits_for_consumer(self) -> bool:
        """Return True when the protocol cannot report a missing consumer (MQTT before version 5): the message waits
        for one."""
        return False

    def credit_changed(self, address: str) -> None:
        """Ask `SenderCredit.of` again: the credit of an address may have changed."""
        return

    def hold_back(self) -> None:
        """A live subscriber of what it sends is behind: send nothing more before `go_on`."""
        return

    def go_on(self) -> None:
        """Those it was held back for have caught up, or are not waited for any more."""
        return

    def abort(self) -> None:
        """One of the calls above raised: its connection is to end, as nobody knows what the peer has been told."""
        return


class ManyOrigins(Origin, Protocol):
    """The origin of AMQP messages of many senders that came together, to one address. Its tokens are their places."""

    __slots__ = ()

    encoded: list[bytes]
    """Each as it is written on a link, whenever that is; to be read while it is not answered."""

    def run(self, place: int) -> Run:
        """One of them by itself."""
        ...


class MessageSelection(Protocol):
    """What a consumer wants of a queue, the rest being for others; see `Consumer`."""

    text: str
    """Two selections of the same text want the same messages."""

    def wanted(self, run: Run) -> Sequence[bool]:
        """One a message of the run: this consumer may have it."""
        ...


class Consumer(Protocol):
    """Who deliveries go to. What has a default here is for consumers to have or to leave, as with `Origin`."""

    __slots__ = ()

    name: str

    user: str = ""
    """Whose quota pays for what it subscribes to, as `Origin.user`."""

    selection: MessageSelection | None = None
    """What a consumer of queues wants of them; None: everything."""
    overlaps: bool = False
    """Another subscription of the same client matches some of the same topics: `Router.merge_live` may give the two
    one copy."""

    @property
    def credit(self) -> int:
        """Messages it can take now. The router never delivers more in one batch."""
        ...

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        """Take one or several runs, in order, with 1 to `credit` messages together. `edge.broker.delivery.batches` has
        those that are cheaper to take whole.

        The messages of a run `stored` stay outstanding until settled through ``subscription.settle`` under their
        positions ``stored.position + i``. A negative position means: settled already, nothing to answer (QoS 0,
        pre-settled).
        """
        ...

    def exhausted(self) -> None:
        """The store has been read to its end (`Subscription.idle_now`): a drain need not wait any longer."""
        return

    def stolen(self) -> bool:
        """The same device joins, over another connection, what this consumer has alone: leave it. False when this
        consumer does not leave."""
        return False

    def abort(self) -> None:
        """One of the calls above raised: its connection is to end, and what is outstanding to it comes back."""
        return


class Subscription(Protocol):
    """A consumer group's place in what an address delivers: what a session holds to settle and to pull."""

    attempts: int
    """Failed deliveries of the messages being delivered; to be read within `Consumer.deliver`."""

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """The consumer's answer for positions ``first <= p <= last``, all delivered to it."""
        ...

    def pump(self) -> None:
        """The consumer has credit again: deliver what is waiting."""
        ...

    @property
    def idle_now(self) -> bool:
        """Nothing more comes, whatever the credit, before somebody sends or gives something back: what a drain waits
        for (AMQP 1.0 section 2.6.7). False while the store is being read; `Consumer.exhausted` is called when the
        reading has come to the end."""
        ...


class MessageCounts(msgspec.Struct):
    """Messages since start."""

    received: int = 0
    sent: int = 0
    """Messages handed to clients, one for each client that gets it; what is sent again counts once."""
    acknowledged: int = 0
    refused: int = 0
    stored: int = 0
    """Messages that a commit put on disk, at whatever QoS they came."""
    unrouted: int = 0
    """Messages to topics without a subscriber: neither stored nor delivered. At QoS 1 and 2 also `acknowledged`."""
