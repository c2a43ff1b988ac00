"""What the router and the protocol sessions owe each other.

The router is the single owner of routes and subscriptions; a protocol session (`mqtt.session`, `amqp.session`,
`http.session`, the uplink) is an *origin* of runs, a *consumer* of deliveries, or both. All calls happen on the
event loop's thread, none blocks, none is made per message when it can be made per run.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

from bridge.message import Stored


class Refusal(enum.Enum):
    """Why a message was not taken; each protocol has its own code for each."""

    NOT_AUTHORIZED = "not authorized"
    NO_CONSUMER = "no consumer"
    FULL = "store is full"
    STORE_FAILED = "store failed"
    ADDRESS_INVALID = "address invalid"
    TOO_LARGE = "message too large"
    REJECTED = "rejected by the consumer"


class Outcome(enum.Enum):
    """What a consumer did with a delivery (AMQP 1.0 section 3.4; an MQTT acknowledgement is ACCEPTED)."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RELEASED = "released"
    MODIFIED_FAILED = "modified, delivery failed"
    MODIFIED_UNDELIVERABLE = "modified, undeliverable here"


class Origin(Protocol):
    """Where runs come from. `tokens` are the numbers the origin itself gave to `Router.publish`, one a message."""

    name: str
    """Identity of the device, as it goes into `Run.device`."""

    def accepted(self, tokens: Sequence[int]) -> None:
        """These messages are on disk, or delivered where the address type does not store. Acknowledge them."""
        ...

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """These messages were not taken."""
        ...


class Consumer(Protocol):
    """Who deliveries go to."""

    name: str

    @property
    def credit(self) -> int:
        """Messages it can take now. The router never delivers more in one call."""
        ...

    def deliver(self, subscription: Subscription, stored: Stored) -> None:
        """Take ``1 <= len(stored.run) <= credit`` messages.

        They stay outstanding until settled through ``subscription.settle`` under their positions
        ``stored.position + i``; a negative position means: settled already, nothing to answer (QoS 0, pre-settled).
        """
        ...


class Subscription(Protocol):
    """A consumer group's place in what an address delivers: what a session holds to settle and to pull."""

    def settle(self, consumer: Consumer, first: int, last: int, outcome: Outcome) -> None:
        """The consumer's answer for positions ``first <= p <= last``, all delivered to it."""
        ...

    def pump(self) -> None:
        """The consumer has credit again: deliver what is waiting."""
        ...
