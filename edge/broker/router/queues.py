"""Addresses whose consumers compete: queues, which are stored, and anycast addresses, which are not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial

from edge.broker.delivery import AnycastGroup, LogSubscription
from edge.broker.delivery.pattern import Joinable, PatternSubscription
from edge.broker.model.interfaces import Consumer, Figures
from edge.broker.model.topics import FilterTree, is_filter, matches
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.logs import Logs
from edge.broker.store.contract import Store

logger = logging.getLogger(__name__)


class CompetingConsumers:
    """Queues and anycast groups by address, made when somebody sends to them or consumes from them."""

    def __init__(
        self, store: Store, addresses: ConfiguredAddresses, logs: Logs, figures: Figures, watchers: CreditWatchers
    ) -> None:
        """`watchers` hear of the credit of anycast addresses, whose answers count in `figures`."""
        self.queues: dict[str, LogSubscription] = {}
        self.anycast: dict[str, AnycastGroup] = {}
        self._store = store
        self._addresses = addresses
        self._logs = logs
        self._figures = figures
        self._watchers = watchers
        self._pattern_consumers: FilterTree[Consumer] = FilterTree()
        for address, _ in store.items("queue"):
            self._open(address)

    def queue(self, address: str) -> LogSubscription:
        """The queue of an address."""
        queue = self.queues.get(address)
        if queue is None:
            queue = self._open(address)
            self._store.put("queue", address, b"")
            for consumer in self._pattern_consumers.match(address):
                queue.join(consumer)
        return queue

    def anycast_group(self, address: str) -> AnycastGroup:
        """The consumers of an anycast address."""
        group = self.anycast.get(address)
        if group is None:
            group = AnycastGroup(address, self._figures, partial(self._credit_changed, address))
            self.anycast[address] = group
            for consumer in self._pattern_consumers.match(address):
                group.join(consumer)
        return group

    def _credit_changed(self, address: str) -> None:
        """Consumers of an anycast address may take more."""
        if address in self._watchers and self.anycast[address].credit:
            self._watchers.changed(address)

    def join(self, consumer: Consumer, address: str, *, stored: bool) -> Joinable:
        """Consume from a queue (`stored`) or an anycast address, or from all a filter matches."""
        if not is_filter(address):
            one: Joinable = self.queue(address) if stored else self.anycast_group(address)
            one.join(consumer)
            return one
        known: Mapping[str, Joinable] = self.queues if stored else self.anycast

        def parts() -> Iterator[Joinable]:
            return (part for name, part in list(known.items()) if matches(address, name))

        self._pattern_consumers.add(address, consumer)
        many = PatternSubscription(address, parts)
        many.join(consumer)
        return many

    def left(self, consumer: Consumer, subscription: PatternSubscription) -> None:
        """The consumer has left all a filter matches, and is not to be joined to what comes."""
        self._pattern_consumers.remove(subscription.pattern, consumer)

    def consumers(self, address: str) -> int | None:
        """How many a queue or anycast address has; None when it is neither."""
        found = self.queues.get(address) or self.anycast.get(address)
        return len(found.group.consumers) if found is not None else None

    def follow_configuration(self) -> None:
        """Rules or policies have changed."""
        for address, queue in self.queues.items():
            queue.policy = self._addresses.policy(address)
        self.report_former_queues()

    def former_queues(self, pattern: str = "#") -> dict[str, LogSubscription]:
        """Queues below a filter whose addresses are of another type now, with what they had left then."""
        rule = self._addresses.table.rule
        return {
            address: queue
            for address, queue in self.queues.items()
            if matches(pattern, address) and not rule(address).type.is_queue
        }

    def report_former_queues(self) -> None:
        """What is left in them comes to nobody but forwarders before they are queues again."""
        left = {address: queue.backlog + queue.outstanding for address, queue in self.former_queues().items()}
        left = {address: count for address, count in left.items() if count}
        if left:
            logger.warning(
                "messages left in queues whose addresses are of another type now: %d in %d queues, %r is one; "
                "they stay in the store for forwarders that match, or until these are queues again",
                sum(left.values()),
                len(left),
                next(iter(left)),
            )

    def _open(self, address: str) -> LogSubscription:
        queue = self.queues[address] = self._logs.open_queue(address)
        queue.policy = self._addresses.policy(address)
        return queue
