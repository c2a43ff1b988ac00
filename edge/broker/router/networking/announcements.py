"""Direct addresses with consumers at this router, as the network announces them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from edge.broker.limits import NETWORK_ANNOUNCED_MAX, NETWORK_ANNOUNCED_PER_USER_MAX
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Consumer
from edge.broker.model.topics import overlaps
from edge.broker.network.shares import AnnouncementShares
from edge.broker.network.statements import ANYCAST, MULTICAST, can_announce
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.subscriptions import SubscriptionRegistry


class LocalConsumers:
    """Follows the consumers of direct addresses, by the filters that they use.

    Changes are only noted until `take_changes`, so its caller decides how often the network is notified.
    """

    def __init__(self, subscriptions: SubscriptionRegistry, addresses: ConfiguredAddresses) -> None:
        self._subscriptions = subscriptions
        self._addresses = addresses
        self._multicast: list[str] = []
        self._shares = AnnouncementShares(NETWORK_ANNOUNCED_MAX, NETWORK_ANNOUNCED_PER_USER_MAX)
        self._changed: dict[str, None] = {}
        """Names and filters with consumers that came or went."""
        self._everything = True
        """True when types may have changed, or too many consumers to follow them one by one."""

    @property
    def changed(self) -> bool:
        """True when there may be changes to take."""
        return self._everything or bool(self._changed)

    @property
    def unannounced(self) -> int:
        """Number of addresses with consumers that are beyond the limits."""
        return self._shares.waiting

    def note(self, pattern: str) -> None:
        """Note that consumers of a name or filter have come or gone."""
        self._changed[pattern] = None
        if len(self._changed) > NETWORK_ANNOUNCED_MAX:
            self.note_all()

    def note_all(self) -> None:
        """Note that the types of addresses may have changed."""
        self._changed, self._everything = {}, True

    def take_changes(self) -> tuple[list[str], list[str]]:
        """Return the announcements to add and to remove: a letter for the type, then the name or filter."""
        if self._everything:
            self._compare_all()
        for pattern in self._changed:
            users = self._users_of(pattern)
            for name in (ANYCAST + pattern, MULTICAST + pattern):
                self._shares.update(name, users.get(name, ()))
        self._changed, self._everything = {}, False
        return self._shares.take_changes()

    # --- inside -------------------------------------------------------------------------------------------------

    def _compare_all(self) -> None:
        rules = self._addresses.table.rules
        self._multicast = [rule.pattern for rule in rules if rule.type is AddressType.MULTICAST]
        wanted: dict[str, set[str]] = {}
        for pattern in self._patterns():
            wanted.update(self._users_of(pattern))
        for name in self._shares.wanted:
            self._shares.update(name, wanted.get(name, ()))
        for name, users in wanted.items():
            self._shares.update(name, users)

    def _patterns(self) -> Iterable[str]:
        competing, live = self._subscriptions.competing, self._subscriptions.live
        found = dict.fromkeys([*competing.anycast, *competing.anycast_filters])
        found.update((subscription.pattern, None) for subscription in live)
        return found

    def _users_of(self, pattern: str) -> Mapping[str, set[str]]:
        """Return the users of the consumers of a name or filter, by announcement."""
        if pattern.startswith("$") or not can_announce(pattern):
            return {}
        found: dict[str, set[str]] = {}
        if self._addresses.type_of(pattern) is AddressType.ANYCAST:
            found[ANYCAST + pattern] = _users(self._subscriptions.competing.anycast_consumers(pattern))
        if any(overlaps(pattern, rule) for rule in self._multicast):
            found[MULTICAST + pattern] = _users(self._live_consumers(pattern))
        return {name: users for name, users in found.items() if users}

    def _live_consumers(self, pattern: str) -> Iterator[Consumer]:
        for subscription in self._subscriptions.live.of(pattern):
            yield from subscription.group.consumers


def _users(consumers: Iterable[Consumer]) -> set[str]:
    """Return the users of consumers; without authentication their names."""
    return {consumer.user or consumer.name for consumer in consumers}
