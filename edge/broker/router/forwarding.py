"""What one forwarder is owed: everything its filter matches, whatever types the addresses have now and had before.

While its addresses are topics a forwarder holds a durable subscription; while the rule of its filter says queue it
competes with the queues' other consumers. What is left of the other kind when a rule changes stays its own: the durable
subscription goes on delivering what came to topics, and queues whose addresses are queues no more have no consumers but
the forwarders that match them.
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

    The place of a durable subscription in a log has two lanes; a queue has one, which keeps its order.
    """

    def __init__(self, router: Router, consumer: Consumer, name: str, pattern: str) -> None:
        """`name` of the durable subscription. `follow` makes the subscriptions."""
        self.pattern = pattern
        self.newest = False
        """A backlog goes from its end."""
        self.fault: str | None = None
        """Why nothing comes from its addresses; None: it does."""
        self._router = router
        self._consumer = consumer
        self._lanes: dict[LogSubscription, BacklogLane] = {}
        self._name = name
        self._kind: AddressType | None = None
        self._current: Joinable | None = None
        """By the type the filter's addresses have now."""
        self._earlier: Joinable | None = None
        """The durable subscription while `_current` is none."""
        self._former_queues: dict[str, LogSubscription] = {}
        """Queues whose addresses are of another type now."""

    @property
    def subscriptions(self) -> list[Joinable]:
        """What is joined at the moment."""
        joined = [one for one in (self._current, self._earlier) if one is not None]
        return [*joined, *self._former_queues.values()]

    @property
    def parts(self) -> list[LogSubscription]:
        """The places in the logs of the store that only this forwarder reads."""
        durable = [one.parts for one in (self._current, self._earlier) if isinstance(one, DurableSubscription)]
        return [*chain.from_iterable(durable), *self._former_queues.values()]

    @property
    def lanes(self) -> list[BacklogLane]:
        """The backlog lanes of the places in the logs."""
        return list(self._lanes.values())

    def part_lanes(self, logs: MessageLogs, cursors: Cursors, consumer: Consumer) -> None:
        """What is in the store by now is for this consumer; to be called at each link-up, and after `follow`."""
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
            lane.take_over()

    def follow(self) -> None:
        """Join what the addresses are now; to be called again when their types may have changed, and while `fault` says
        why they do not take it."""
        router, consumer = self._router, self._consumer
        former = router.subscriptions.competing.former_queues(self.pattern)
        for address, queue in self._former_queues.items():
            if address not in former:
                router.subscriptions.unsubscribe(consumer, queue, forget=False)
        kind = router.addresses.type_of(self.pattern)
        if kind is not self._kind:
            self._join(kind)
        for queue in former.values():
            queue.join(consumer)  # again: another forwarder of the same consumer may have left it
        self._former_queues = former

    def end(self) -> None:
        """Take nothing more. The durable subscription stays: configuration never touches messages."""
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
            log.warning("%s takes nothing from %s, and tries again: %s", self._name, self.pattern, fault)
        self.fault = fault
        durable = isinstance(self._current, DurableSubscription)
        self._earlier = (
            None if durable else router.durable_subscriptions.join_remainder(consumer, self._name, pattern=self.pattern)
        )
