"""Addresses with competing consumers: queues, which are stored, and anycast addresses, which are not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from edge.broker.delivery import AnycastGroup, LogSubscription
from edge.broker.delivery.anycast import HeldMessages
from edge.broker.delivery.pattern import Joinable, PatternSubscription, Slices
from edge.broker.limits import ANYCAST_GROUPS_MAX
from edge.broker.model.interfaces import Consumer, MessageCounts
from edge.broker.model.isolation import call_isolated
from edge.broker.model.topics import FilterTree, is_filter, matches
from edge.broker.network.statements import ANYCAST
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.networking.host import DirectNetwork
from edge.broker.router.queues import Queues

logger = logging.getLogger(__name__)


class CompetingConsumers:
    """Queues and anycast groups by address, made when a client sends to them or consumes from them."""

    def __init__(
        self,
        queues: Queues,
        addresses: ConfiguredAddresses,
        figures: MessageCounts,
        watchers: CreditWatchers,
        forget_routes: Callable[[], None],
        now_s: Callable[[], float],
        slices: Slices,
    ) -> None:
        """`watchers` are notified of the credit of anycast addresses; their answers count in `figures`. `now_s` is
        monotonic seconds. `slices` runs work on all queues that a filter matches."""
        self.queues = queues
        self.anycast: dict[str, AnycastGroup] = {}
        self._addresses = addresses
        self._figures = figures
        self._now_s = now_s
        self._watchers = watchers
        self._forget_routes = forget_routes
        self._held = HeldMessages()
        self._pattern_consumers: FilterTree[Consumer] = FilterTree()
        """Consumers of anycast addresses by filter."""
        self.anycast_filters: dict[str, int] = {}
        """Number of consumers of anycast addresses by filter."""
        self._network: DirectNetwork | None = None
        self._slices = slices

    def queue_log(self, address: str, user: str) -> int:
        """Return the log of a queue, made for `user` if it is new. Raises AddressError when there are too many."""
        return self.queues.make(address, user)

    def queue(self, address: str, user: str) -> LogSubscription:
        """Return the queue of an address; otherwise as `queue_log`."""
        self.queue_log(address, user)
        return self.queues[address]

    def anycast_group(self, address: str) -> AnycastGroup:
        """Return the consumers of an anycast address."""
        group = self.anycast.get(address)
        if group is None:
            if len(self.anycast) >= ANYCAST_GROUPS_MAX:
                self._forget_anycast()
            group = AnycastGroup(
                address, self._figures, partial(self._credit_changed, address), self._now_s, self._held
            )
            self.anycast[address] = group
            for consumer in self._pattern_consumers.match(address):
                group.join(consumer)
            if self._network is not None:
                self._network.group_made(group)
        return group

    def follow_network(self, network: DirectNetwork) -> None:
        """Let consumers at other routers join the groups of anycast addresses from now on."""
        self._network = network
        for group in self.anycast.values():
            network.group_made(group)

    def anycast_credit(self, address: str) -> int:
        """Return how many messages the consumers of an anycast address can take now, including those of filters."""
        known = address in self.anycast or self._pattern_consumers.match(address)
        if known or (self._network is not None and self._network.reaches(ANYCAST, address)):
            return self.anycast_group(address).credit
        return 0

    @contextmanager
    def gathered(self, address: str) -> Iterator[None]:
        """Collect messages to an anycast address that are published in this context, and deliver them at its end as one
        run: one call for each consumer instead of one for each message."""
        group = self.anycast.get(address)
        if group is None:
            yield
            return
        group.gather()
        try:
            yield
        finally:
            call_isolated(f"the consumers of {group.pattern!r}", group.deliver_gathered)

    def _credit_changed(self, address: str) -> None:
        """Notify watchers that consumers of an anycast address may take more."""
        if address in self._watchers and address in self.anycast and self.anycast[address].credit:
            self._watchers.changed(address)

    def join(self, consumer: Consumer, address: str, *, stored: bool) -> Joinable:
        """Consume from a queue (`stored`) or an anycast address, or from all that a filter matches."""
        if not is_filter(address):
            one: Joinable = self.queue(address, consumer.user) if stored else self.anycast_group(address)
            one.join(consumer)
            return one
        in_use: Mapping[str, Joinable] = self.queues.opened if stored else self.anycast

        def parts() -> Iterator[Joinable | None]:
            return (part if matches(address, name) else None for name, part in list(in_use.items()))

        joined = PatternSubscription(address, consumer, parts, self._slices)
        (self.queues.consumers if stored else self._pattern_consumers).add(address, consumer)
        if not stored:
            self.anycast_filters[address] = self.anycast_filters.get(address, 0) + 1
        if stored:
            joined.begin(self._join_queues(consumer, address))
        else:
            joined.join(consumer)
            joined.begin(())
        return joined

    def _join_queues(self, consumer: Consumer, pattern: str) -> Iterator[None]:
        """Join a consumer to the matching queues that are open or have messages, one in each step; it joins the others
        when they are opened."""
        for name in self.queues.walk():
            if matches(pattern, name):
                call_isolated(f"queue {name!r}", self._join_queue, consumer, name)
            yield

    def _join_queue(self, consumer: Consumer, name: str) -> None:
        opened = self.queues.opened.get(name)
        if opened is None and self.queues.backlog(name):
            opened = self.queues[name]
        if opened is not None:
            opened.join(consumer)

    def consumer_left(self, consumer: Consumer, subscription: PatternSubscription) -> None:
        """Note that a consumer has left all that a filter matches, and does not join new addresses."""
        pattern = subscription.pattern
        if self._pattern_consumers.remove(pattern, consumer):
            self.anycast_filters[pattern] -= 1
            if not self.anycast_filters[pattern]:
                del self.anycast_filters[pattern]
        self.queues.consumers.remove(subscription.pattern, consumer)

    def anycast_consumers(self, pattern: str) -> list[Consumer]:
        """Return the consumers of this router by one name or filter of anycast addresses."""
        if is_filter(pattern):
            return self._pattern_consumers.of(pattern)
        group = self.anycast.get(pattern)
        return [] if group is None else group.consumers

    def has_anycast_consumers(self, address: str) -> bool:
        """Return True when an anycast address has consumers of this router, by its name or a filter."""
        group = self.anycast.get(address)
        return bool(self._pattern_consumers.match(address) if group is None else group.consumers)

    def consumers(self, address: str) -> int | None:
        """Return the number of consumers of a queue or anycast address; None when it is neither."""
        found = self.queues.opened.get(address) or self.anycast.get(address)
        if found is None:
            return 0 if address in self.queues else None
        return len(found.consumers if isinstance(found, AnycastGroup) else found.group.consumers)

    def follow_configuration(self) -> None:
        """Apply changed rules or policies."""
        self.queues.follow_configuration()
        self.report_former_queues()

    def former_queues(self, pattern: str = "#") -> dict[str, LogSubscription]:
        """Return queues below a filter with addresses that are of another type now; they may still have messages."""
        return {address: self.queues[address] for address in self._former(pattern)}

    def report_former_queues(self) -> None:
        """Log messages in former queues: only forwarders get them until these are queues again."""
        left = {address: self.queues.backlog(address) for address in self._former()}
        left = {address: count for address, count in left.items() if count}
        if left:
            logger.warning(
                "the type of queues was changed while they had messages: %d messages in %d queues, for example %r; "
                "they stay in the store for matching forwarders, or until these are queues again",
                sum(left.values()),
                len(left),
                next(iter(left)),
            )

    def _former(self, pattern: str = "#") -> list[str]:
        type_of = self._addresses.type_of
        return [each for each in self.queues if not type_of(each).is_queue and matches(pattern, each)]

    def _forget_anycast(self) -> None:
        """Forget addresses without consumers, and the routes that lead there."""
        forgotten = [address for address, group in self.anycast.items() if not group.in_use]
        for address in forgotten:
            del self.anycast[address]
            if self._network is not None:
                self._network.group_forgotten(address)
        self._forget_routes()
