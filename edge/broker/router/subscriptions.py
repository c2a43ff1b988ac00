"""Subscribing and leaving: the kind of subscription for a consumer, and the number of consumers of an address."""

from __future__ import annotations

from collections.abc import Callable

from edge.broker.delivery import AnycastGroup, BrowsingSubscription, LogSubscription, TransientSubscription
from edge.broker.delivery.durable import Declaration, DurableSubscription, consumers_of
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.pattern import Joinable, PatternSubscription
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import is_temporary
from edge.broker.model.interfaces import AddressError, Consumer, Refusal, SubscribeOptions
from edge.broker.model.isolation import EventListeners
from edge.broker.router.competing_consumers import CompetingConsumers
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.durable_subscriptions import DurableSubscriptions
from edge.broker.router.live_subscriptions import LiveSubscriptions
from edge.broker.store.contract import Cursors, MessageLogs
from edge.broker.store.ticket import Ticket
from edge.output.amounts import counted


class SubscriptionRegistry:
    """All subscriptions of a router."""

    def __init__(
        self,
        logs: MessageLogs,
        cursors: Cursors,
        feeds: LogFeeds,
        addresses: ConfiguredAddresses,
        *,
        competing: CompetingConsumers,
        durable: DurableSubscriptions,
        live: LiveSubscriptions,
        watchers: CreditWatchers,
        flush_soon: Callable[[], None],
    ) -> None:
        """`flush_soon` is called when something joined the open group, `watchers` when credit may have changed."""
        self.direct_listeners: EventListeners[[str]] = EventListeners("consumers of direct addresses")
        """Called with the name or filter of a consumer that has come or gone, unless its messages are stored."""
        self.competing = competing
        self.durable = durable
        self.live = live
        self._logs, self._cursors = logs, cursors
        self._feeds = feeds
        self._addresses = addresses
        self._watchers = watchers
        self._flush_soon = flush_soon

    def subscribe(self, consumer: Consumer, address: str, options: SubscribeOptions) -> Joinable:
        """Let `consumer` receive from `address` (a name or a filter). The caller pumps it.

        Raises AddressError when another consumer holds the durable subscription and it is not shared.
        """
        kind = self._addresses.type_of(address)
        if is_temporary(address):
            if not options.owned:
                raise AddressError(Refusal.NOT_AUTHORIZED, f"{address!r} is a temporary address of another client")
            kind = AddressType.TOPIC
        if kind is AddressType.SUBSCRIPTION:
            raise AddressError(
                Refusal.ADDRESS_INVALID, f"{address!r} is a subscription: receive from topic::name over AMQP"
            )
        self._check_consumers(address, options)
        subscription: Joinable
        if address in self.live.temporary_queues:
            subscription = self.live.temporary_queues[address]
            subscription.join(consumer)
        elif options.browse and kind.is_queue:
            subscription = BrowsingSubscription(
                self._logs, self._cursors, self._feeds, self.competing.queue(address, consumer.user)
            )
            subscription.join(consumer)
        elif kind.is_queue or kind is AddressType.ANYCAST:
            subscription = self.competing.join(consumer, address, stored=kind.is_queue)
        elif options.durable_name is not None and kind is not AddressType.MULTICAST:
            subscription = self.durable.join(consumer, address, options)
            self._flush_soon()
        else:
            subscription = self.live.join(consumer, address, options)
        self._watchers.changed(address)
        self.direct_listeners.notify(address)
        return subscription

    def unsubscribe(
        self, consumer: Consumer, subscription: Joinable, *, forget: bool, keep: bool = False
    ) -> Ticket | None:
        """Remove a consumer. `forget` deletes a durable subscription without other consumers, by the commit of the
        returned ticket. `keep`: its deliveries stay outstanding until they are settled."""
        subscription.leave(consumer, keep=keep)
        match subscription:
            case PatternSubscription():
                self.competing.consumer_left(consumer, subscription)
                self._consumer_left(subscription.pattern)
            case TransientSubscription():
                if self.live.end_if_unused(subscription):
                    self._consumer_left(subscription.pattern)
            case AnycastGroup():
                self._consumer_left(subscription.pattern)
            case DurableSubscription() if forget and not subscription.consumers:
                return self.forget(subscription.declaration.name)
        return None

    def _consumer_left(self, pattern: str) -> None:
        self._watchers.changed(pattern)
        self._watchers.consumers_left(pattern)
        self.direct_listeners.notify(pattern)

    def detach(self, consumer: Consumer, subscription: Joinable, now_ns: int) -> None:
        """Detach a consumer that may come back; its outstanding messages wait for it. It subscribes again to everything
        but durable subscriptions, so all its other subscriptions end here."""
        if isinstance(subscription, DurableSubscription):
            subscription.leave(consumer, keep=True)
            self.durable.consumer_left(subscription, now_ns)
        else:
            self.unsubscribe(consumer, subscription, forget=False, keep=True)

    def declare(self, declaration: Declaration) -> DurableSubscription:
        """See `DurableSubscriptions.declare`."""
        made = self.durable.declare(declaration)
        self._flush_soon()
        return made

    def forget(self, name: str) -> Ticket | None:
        """See `DurableSubscriptions.forget`."""
        ticket = self.durable.forget(name)
        self._flush_soon()
        return ticket

    def end_temporary_queue(self, address: str) -> None:
        """See `LiveSubscriptions.end_temporary_queue`."""
        self.live.end_temporary_queue(address)
        self._watchers.changed(address)

    def of_logs(self) -> list[LogSubscription]:
        """Return all open subscriptions of logs."""
        return [*self.competing.queues.opened.values(), *self.durable.parts()]

    def follow_configuration(self) -> None:
        """Apply changed rules or policies: stored messages stay in their logs, and are delivered from there."""
        self.competing.follow_configuration()
        self.durable.follow_configuration()

    def _check_consumers(self, address: str, options: SubscribeOptions) -> None:
        """Check the configured number of consumers of the address, or of the subscription ``topic::name``."""
        name = options.durable_name
        own = self._addresses.policy_of_subscription(name)
        highest = (own or self._addresses.policy_of_filter(address)).consumers_max
        if highest is None:
            return
        if own is not None and name is not None:
            present = consumers_of([self.durable.opened[name]] if name in self.durable.opened else [])
        elif (competing := self.competing.consumers(address)) is not None:
            present = competing
        else:
            durable = self.durable.held(address)
            live = [found for found in self.live.match(address) if found.pattern == address]
            present = consumers_of(durable) + sum(len(found.group.consumers) for found in live)
        if present >= highest:
            raise AddressError(Refusal.FULL, f"{address!r} has {counted(present, 'consumer')}, its limit")
