"""Direct addresses with consumers at this router, as the network announces them."""

from __future__ import annotations

from collections.abc import Iterator

from edge.broker.model.addresses import AddressType
from edge.broker.model.topics import overlaps
from edge.broker.network.statements import ANYCAST, MULTICAST, can_announce
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.subscriptions import SubscriptionRegistry


class LocalConsumers:
    """Follows the consumers of direct addresses, by the filters that they use."""

    def __init__(self, subscriptions: SubscriptionRegistry, addresses: ConfiguredAddresses) -> None:
        self._subscriptions = subscriptions
        self._addresses = addresses
        self._multicast: list[str] = []
        self.announced: dict[str, None] = {}
        """Announced addresses: a letter for the type, then the name or filter."""

    def compare_all(self) -> tuple[list[str], list[str]]:
        """Compare all consumers with what is announced: types may have changed. Return (added, removed)."""
        rules = self._addresses.table.rules
        self._multicast = [rule.pattern for rule in rules if rule.type is AddressType.MULTICAST]
        wanted = dict.fromkeys(name for pattern in self._patterns() for name in self._names(pattern))
        added = [name for name in wanted if name not in self.announced]
        removed = [name for name in self.announced if name not in wanted]
        self.announced = wanted
        return added, removed

    def compare(self, pattern: str) -> tuple[list[str], list[str]]:
        """Compare the consumers of one name or filter with what is announced. Return (added, removed)."""
        wanted = set(self._names(pattern))
        announced = self.announced
        added = [name for name in wanted if name not in announced]
        removed = [n for n in (ANYCAST + pattern, MULTICAST + pattern) if n in announced and n not in wanted]
        announced.update(dict.fromkeys(added))
        for name in removed:
            del announced[name]
        return added, removed

    def _patterns(self) -> Iterator[str]:
        competing, live = self._subscriptions.competing, self._subscriptions.live
        yield from competing.anycast
        yield from competing.anycast_filters
        yield from {subscription.pattern: None for subscription in live}

    def _names(self, pattern: str) -> Iterator[str]:
        if pattern.startswith("$") or not can_announce(pattern):
            return
        subscriptions = self._subscriptions
        if self._addresses.type_of(pattern) is AddressType.ANYCAST:
            group = subscriptions.competing.anycast.get(pattern)
            if pattern in subscriptions.competing.anycast_filters or (group is not None and group.consumers):
                yield ANYCAST + pattern
        if any(overlaps(pattern, rule) for rule in self._multicast):
            found = subscriptions.live.match(pattern)
            if any(each.pattern == pattern and each.group for each in found):
                yield MULTICAST + pattern
