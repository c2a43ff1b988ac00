"""Live subscriptions of connected consumers: by filter, shared ones by name, temporary queues by address."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from edge.broker.delivery import SharedSubscription, TransientSubscription, WaitingPool
from edge.broker.delivery.batches import LiveOffer
from edge.broker.model.interfaces import AddressError, Consumer, Refusal, SubscribeOptions
from edge.broker.model.topics import FilterTree, overlaps
from edge.broker.retention.names import NameKind, NameQuotas


class LiveSink(Protocol):
    """Live subscription, or several of one client as one."""

    def offer(self, offer: LiveOffer) -> None:
        """Deliver runs now, or keep them until there is credit. Origins are held back while the subscription is
        behind."""
        ...


MergeLive = Callable[[list[TransientSubscription], WaitingPool], Sequence[LiveSink]]
"""Combines the live subscriptions that match an address into sinks, one for those that get a single copy together."""


def unmerged(live: list[TransientSubscription], _pool: WaitingPool) -> Sequence[LiveSink]:
    """Return each subscription as a sink of its own."""
    return live


class LiveSubscriptions:
    """Subscriptions with nothing on disk."""

    def __init__(
        self, pool: WaitingPool, merge: MergeLive, names: NameQuotas, matches_changed: Callable[[], None]
    ) -> None:
        """`matches_changed` is called when an address may have other subscriptions than before."""
        self.temporary_queues: dict[str, SharedSubscription] = {}
        self._pool = pool
        self._merge = merge
        self._names = names
        self._matches_changed = matches_changed
        self._tree: FilterTree[TransientSubscription] = FilterTree()
        self._shared: dict[str, TransientSubscription] = {}
        self._reserved: dict[TransientSubscription, None] = {}
        """Subscriptions with filters that begin with ``$``."""

    def __iter__(self) -> Iterator[TransientSubscription]:
        return iter(self._tree)

    @property
    def empty(self) -> bool:
        """True when there are none."""
        return not self._tree

    def match(self, address: str) -> list[TransientSubscription]:
        """Return the subscriptions that match an address."""
        return self._tree.match(address)

    def of(self, pattern: str) -> list[TransientSubscription]:
        """Return the subscriptions by one filter."""
        return self._tree.of(pattern)

    def deciding_levels(self, address: str) -> int:
        """Return how many first levels of an address decide which subscriptions match
        (`FilterTree.deciding_levels`)."""
        return self._tree.deciding_levels(address)

    def sinks(self, address: str) -> Sequence[LiveSink]:
        """Return the sinks for messages to an address."""
        return self._merge(self._tree.match(address), self._pool)

    def any_below(self, prefix: str) -> bool:
        """Return True when a filter matches names below `prefix`, which is reserved."""
        return any(overlaps(each.pattern, prefix + "#") for each in self._reserved)

    def join(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> TransientSubscription:
        """Make a subscription, or join the shared one of the options' name. Raises AddressError when that one has
        another selector, or when there are too many."""
        name = options.share_name
        subscription = self._shared.get(name) if name is not None else None
        if subscription is None:
            subscription = self._make(consumer, pattern, options)
        elif subscription.selector != options.selector:
            raise AddressError(Refusal.ADDRESS_INVALID, f"other consumers share {name!r} with another selector")
        subscription.join(consumer)
        return subscription

    def end_if_unused(self, subscription: TransientSubscription) -> bool:
        """End a subscription that its last consumer has left. Return False when it stays, or has ended before."""
        if subscription.group or subscription.pattern in self.temporary_queues:
            return False
        if not self._tree.remove(subscription.pattern, subscription):
            return False
        if subscription.share_name is not None:
            self._shared.pop(subscription.share_name, None)
        self._reserved.pop(subscription, None)
        if subscription.user is not None:
            self._names.remove(NameKind.FILTER, subscription.user, len(subscription.pattern))
        self._matches_changed()
        return True

    def make_temporary_queue(self, address: str, user: str) -> None:
        """Make a queue in memory at `address`, a topic without subscribers. Raises AddressError when `user` has too
        many."""
        self._count(user, address)
        queue = SharedSubscription(address, self._pool, share_name=address, user=user, lasting=True)
        self.temporary_queues[address] = queue
        self._tree.add(address, queue)
        self._matches_changed()

    def end_temporary_queue(self, address: str) -> None:
        """Delete a temporary queue with its messages; its consumers get nothing more."""
        queue = self.temporary_queues.pop(address)
        queue.end()
        self.end_if_unused(queue)

    def _make(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> TransientSubscription:
        user = None if options.qos0_only else consumer.user  # the durable twin is counted
        if user is not None:
            self._count(user, pattern)
        name, not_from = options.share_name, options.client or consumer.name if options.no_local else None
        subscription: TransientSubscription
        if name is None or options.qos0_only:
            subscription = TransientSubscription(
                pattern,
                self._pool,
                qos0_only=options.qos0_only,
                not_from=not_from,
                share_name=name,
                selector=options.selector,
                user=user,
            )
        else:
            subscription = SharedSubscription(
                pattern, self._pool, not_from=not_from, share_name=name, selector=options.selector, user=user
            )
        if name is not None:
            self._shared[name] = subscription
        self._tree.add(pattern, subscription)
        if pattern.startswith("$"):
            self._reserved[subscription] = None
        self._matches_changed()
        return subscription

    def _count(self, user: str, pattern: str) -> None:
        """Count a name of the user. Raises AddressError."""
        if not self._names.has_room(NameKind.FILTER, user, len(pattern)):
            raise AddressError(Refusal.NAMES, self._names.refusal_text(NameKind.FILTER, user))
        self._names.add(NameKind.FILTER, user, len(pattern))
