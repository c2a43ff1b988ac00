"""Subscriptions: a consumer group's place in what an address delivers.

Six kinds, one contract (`edge.broker.contract.Subscription`): `LogSubscription` reads a log of the store through a
cursor (a durable subscription), `QueueSubscription` does so for competing consumers, `TransientSubscription` holds
what its consumer has not taken yet in bounded memory, `SharedSubscription` does so for several that compete,
`AnycastGroup` hands messages on and passes the settlement back to their origin, `BrowsingSubscription` copies what is
in a queue.
"""

from edge.broker.subscriptions.anycast import AnycastGroup
from edge.broker.subscriptions.browse import BrowsingSubscription
from edge.broker.subscriptions.group import ConsumerGroup
from edge.broker.subscriptions.log import LogSubscription
from edge.broker.subscriptions.queue import QueueSubscription
from edge.broker.subscriptions.shared import SharedSubscription
from edge.broker.subscriptions.transient import TransientSubscription, WaitingPool

__all__ = [
    "AnycastGroup",
    "BrowsingSubscription",
    "ConsumerGroup",
    "LogSubscription",
    "QueueSubscription",
    "SharedSubscription",
    "TransientSubscription",
    "WaitingPool",
]
