"""Subscriptions of one forwarder: all messages that match its filter, for any present and former type of their
addresses.

While its addresses are topics a forwarder holds a durable subscription. While the rule of its filter says queue, it
competes with the queues' other consumers. Messages of the other kind stay with the forwarder when a rule changes: the
durable subscription still delivers messages of former topics, and former queues have no consumers but matching
forwarders.
"""

from __future__ import annotations

import logging
from itertools import chain

from edge.broker.delivery import LogSubscription
from edge.broker.delivery.backlog import BacklogLane
from edge.broker.delivery.durable import DurableSubscription
from edge.broker.delivery.pattern import Joinable
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import AddressError, Consumer, SubscribeOptions
from edge.broker.router.router import Router
from edge.broker.store.contract import Cursors, MessageLogs

log = logging.getLogger(__name__)


class Forwarding:
    """One forwarder's subscriptions, held by the uplink of its connector.

    Each part of a durable subscription has two lanes; a queue has one, which keeps its order.
    """

    def __init__(self, router: Router, consumer: Consumer, name: str, pattern: str) -> None:
        """`name` is that of the durable subscription. `follow` makes the subscriptions."""
        self.pattern = pattern
        self.newest = False
        """True: the backlog is sent newest first."""
        self.fault: str | None = None
        """Reason why its addresses deliver nothing, or None."""
        self._router = router
        self._consumer = consumer
        self._lanes: dict[LogSubscription, BacklogLane] = {}
        self._name = name
        self._kind: AddressType | None = None
        self._current: Joinable | None = None
        """Subscription by the present type of the filter's addresses."""
        self._earlier: Joinable | None = None
        """Durable subscription while `_current` is of another kind."""
        self._former_queues: dict[str, LogSubscription] = {}
        """Queues with addresses that are of another type now."""

    @property
    def subscriptions(self) -> list[Joinable]:
        """Subscriptions that the forwarder has joined."""
        joined = [one for one in (self._current, self._earlier) if one is not None]
        return [*joined, *self._former_queues.values()]

    @property
    def parts(self) -> list[LogSubscription]:
        """Subscriptions of logs that only this forwarder reads."""
        durable = [one.parts for one in (self._current, self._earlier) if isinstance(one, DurableSubscription)]
        return [*chain.from_iterable(durable), *self._former_queues.values()]

    @property
    def lanes(self) -> list[BacklogLane]:
        """Backlog lanes of the parts."""
        return list(self._lanes.values())

    def split_lanes(self, logs: MessageLogs, cursors: Cursors, consumer: Consumer) -> None:
        """Give stored messages to this consumer. Called each time the link comes up, and after `follow`."""
        parts = list(
            chain.from_iterable(one.parts for one in self.subscriptions if isinstance(one, DurableSubscription))
        )
        for part in [part for part in self._lanes if part not in parts]:
            self._lanes.pop(part).end()
        for part in parts:
            lane = self._lanes.get(part)
            if lane is None:
                lane = self._lanes[part] = BacklogLane(logs, cursors, part, consumer)
            lane.newest = self.newest
            lane.split()

    def follow(self) -> None:
        """Join the addresses by their present types. Called again when types may have changed, and while there is a
        `fault`."""
        router, consumer = self._router, self._consumer
        former = router.subscriptions.competing.former_queues(self.pattern)
        for address, queue in self._former_queues.items():
            if address not in former:
                router.subscriptions.unsubscribe(consumer, queue, forget=False)
        kind = router.addresses.type_of(self.pattern)
        if kind is not self._kind:
            self._join(kind)
        for queue in former.values():
            queue.join(consumer)  # again, as another forwarder of the same consumer may have left it
        self._former_queues = former

    def end(self) -> None:
        """Leave all subscriptions. The durable one stays: configuration never touches messages."""
        for subscription in self.subscriptions:
            self._router.subscriptions.unsubscribe(self._consumer, subscription, forget=False)
        for lane in self._lanes.values():
            lane.end()
        self._lanes.clear()
        self._current = self._earlier = self._kind = None
        self._former_queues = {}

    def _join(self, kind: AddressType) -> None:
        router, consumer, before = self._router, self._consumer, self._current
        if before is not None and not isinstance(before, DurableSubscription):
            router.subscriptions.unsubscribe(consumer, before, forget=False)
        options = SubscribeOptions(durable_name=self._name, all_qos=True)
        try:
            self._current, self._kind, fault = (
                router.subscriptions.subscribe(consumer, self.pattern, options),
                kind,
                None,
            )
        except AddressError as error:
            self._current, self._kind, fault = None, None, str(error)
        if fault is not None and fault != self.fault:
            log.warning("%s cannot subscribe to %s, retrying: %s", self._name, self.pattern, fault)
        self.fault = fault
        durable = isinstance(self._current, DurableSubscription)
        self._earlier = (
            None if durable else router.durable_subscriptions.join_remainder(consumer, self._name, pattern=self.pattern)
        )
