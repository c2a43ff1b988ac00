"""Live subscriptions: of consumers that are there, by filter; shared ones by name, temporary queues by address."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from edge.broker.delivery import SharedSubscription, TransientSubscription, WaitingPool
from edge.broker.delivery.batches import LiveOffer
from edge.broker.model.interfaces import AddressError, Consumer, Refusal, SubscribeOptions
from edge.broker.model.topics import FilterTree, overlaps
from edge.broker.retention.names import NameKind, NameQuotas


class LiveSink(Protocol):
    """A live subscription, or several of one client as one."""

    def offer(self, offer: LiveOffer) -> None:
        """Deliver runs now, or keep them for when there is credit. An origin is held back while a subscription that it
        sends to is behind."""
        ...


MergeLive = Callable[[list[TransientSubscription], WaitingPool], Sequence[LiveSink]]
"""The live subscriptions that match an address, those that are to get one copy together as one sink."""


def unmerged(live: list[TransientSubscription], _pool: WaitingPool) -> Sequence[LiveSink]:
    """A copy for each."""
    return live


class LiveSubscriptions:
    """Nothing of them is on disk."""

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
        """Those whose filters begin with ``$``."""

    def __iter__(self) -> Iterator[TransientSubscription]:
        return iter(self._tree)

    @property
    def empty(self) -> bool:
        """Nobody is there."""
        return not self._tree

    def match(self, address: str) -> list[TransientSubscription]:
        """Those that want what is published to an address."""
        return self._tree.match(address)

    def deciding_levels(self, address: str) -> int:
        """How many first levels of an address decide who wants it (`FilterTree.deciding_levels`)."""
        return self._tree.deciding_levels(address)

    def sinks(self, address: str) -> Sequence[LiveSink]:
        """Whom to offer what is published to an address."""
        return self._merge(self._tree.match(address), self._pool)

    def any_below(self, prefix: str) -> bool:
        """Somebody has a filter for names below `prefix`, which is reserved."""
        return any(overlaps(each.pattern, prefix + "#") for each in self._reserved)

    def join(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> TransientSubscription:
        """Make a subscription, or join the shared one of the options' name. Raises AddressError when that one selects
        by something else, or when there are too many."""
        name = options.share_name
        subscription = self._shared.get(name) if name is not None else None
        if subscription is None:
            subscription = self._make(consumer, pattern, options)
        elif subscription.selector != options.selector:
            raise AddressError(Refusal.ADDRESS_INVALID, f"others share {name!r} with another selector")
        subscription.join(consumer)
        return subscription

    def left(self, subscription: TransientSubscription) -> bool:
        """End a subscription that its last consumer has left. Return False when it goes on, or has ended before."""
        if subscription.group or subscription.pattern in self.temporary_queues:
            return False
        if not self._tree.remove(subscription.pattern, subscription):
            return False
        if subscription.share_name is not None:
            self._shared.pop(subscription.share_name, None)
        self._reserved.pop(subscription, None)
        if subscription.user is not None:
            self._names.gone(NameKind.FILTER, subscription.user, len(subscription.pattern))
        self._matches_changed()
        return True

    def make_temporary_queue(self, address: str, user: str) -> None:
        """What is sent to `address` (a topic nobody subscribes to) waits in memory for consumers that compete. Raises
        AddressError when `user` has too many."""
        self._count(user, address)
        queue = SharedSubscription(address, self._pool, share_name=address, user=user, lasting=True)
        self.temporary_queues[address] = queue
        self._tree.add(address, queue)
        self._matches_changed()

    def end_temporary_queue(self, address: str) -> None:
        """Delete it with what is in it; its consumers get nothing more."""
        queue = self.temporary_queues.pop(address)
        queue.end()
        self.left(queue)

    def _make(self, consumer: Consumer, pattern: str, options: SubscribeOptions) -> TransientSubscription:
        user = None if options.qos0_only else consumer.user  # a durable twin is counted, and must not lose this one
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
        """One more is the user's. Raises AddressError."""
        if not self._names.has_room(NameKind.FILTER, user, len(pattern)):
            raise AddressError(Refusal.NAMES, self._names.why(NameKind.FILTER, user))
        self._names.made(NameKind.FILTER, user, len(pattern))
