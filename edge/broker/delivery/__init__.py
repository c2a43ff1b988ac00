"""Subscriptions: a consumer group's place in what an address delivers.

Five kinds, one contract (`model.interfaces.Subscription`): `LogSubscription` reads a log of the store through a
cursor (a durable subscription, or with an order a queue), `TransientSubscription` holds
what its consumer has not taken yet in bounded memory, `SharedSubscription` does so for several that compete,
`AnycastGroup` hands messages on and passes the settlement back to their origin, `BrowsingSubscription` copies what is
in a queue.
"""

from edge.broker.delivery.anycast import AnycastGroup
from edge.broker.delivery.browse import BrowsingSubscription
from edge.broker.delivery.consumer_group import ConsumerGroup
from edge.broker.delivery.log import LogSubscription
from edge.broker.delivery.shared import SharedSubscription
from edge.broker.delivery.transient import TransientSubscription, WaitingPool

__all__ = [
    "AnycastGroup",
    "BrowsingSubscription",
    "ConsumerGroup",
    "LogSubscription",
    "SharedSubscription",
    "TransientSubscription",
    "WaitingPool",
]
