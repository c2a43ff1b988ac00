"""Subscriptions: the position of a group of consumers in the messages of an address.

There are five kinds with one contract (`model.interfaces.Subscription`). `LogSubscription` reads a log of the store
through a cursor: a durable subscription, or, with an order, a queue. `TransientSubscription` buffers messages in
bounded memory until its consumer takes them, and `SharedSubscription` does so for competing consumers. `AnycastGroup`
passes messages on, and their settlement back to the origin. `BrowsingSubscription` copies the content of a queue.
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
