"""Number of messages that a sender may have under way, and its changes."""

from __future__ import annotations

from collections.abc import Callable

from edge.broker.limits import SENDER_CREDIT
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Origin
from edge.broker.network.statements import ANYCAST, MULTICAST
from edge.broker.retention.quotas import QuotaAccount
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.subscriptions import SubscriptionRegistry


class SenderCredit:
    """Credit by address: what the consumers of a direct address can take; none for a stored address without room."""

    def __init__(
        self,
        addresses: ConfiguredAddresses,
        subscriptions: SubscriptionRegistry,
        watchers: CreditWatchers,
        account: Callable[[str], QuotaAccount | None],
        reaches: Callable[[str, str], bool],
    ) -> None:
        """`account` returns the quota account of a stored address; None for an address that is not stored. `reaches`
        returns True when another router has consumers of an address of this type."""
        self.failing = False
        """True when the last commit failed: senders to stored addresses get no credit until one succeeds."""
        self._addresses = addresses
        self._subscriptions = subscriptions
        self._watchers = watchers
        self._account = account
        self._reaches = reaches
        self._without_room: set[str] = set()
        """Addresses with senders that wait for room."""

    def of(self, origin: Origin, address: str) -> int:
        """Return the number of messages that a sender to `address` may have under way.

        It is 0 for a direct address when no consumer takes messages, and for a stored one that is full, or while the
        store cannot commit (the failing commit refuses messages that are sent anyway). Then `origin.credit_changed` is
        called once, with the address, when there may be credit.
        """
        kind = self._addresses.type_of(address)
        if kind is AddressType.ANYCAST or kind is AddressType.MULTICAST:
            credit = self._of_consumers(address, kind)
            if not credit:
                self._watchers.watch(address, origin)
            return credit
        account = self._account(address)
        stored = account is not None or kind.is_queue
        if (self.failing and stored) or (account is not None and account.full):
            self._watchers.watch(address, origin)
            self._without_room.add(address)
            return 0
        return SENDER_CREDIT

    def follow_consumers(self, origin: Origin, address: str, consumers_left: Callable[[], None]) -> None:
        """Call `consumers_left` whenever consumers of a direct address leave, until the origin is forgotten."""
        self._watchers.add_sender(address, origin, consumers_left)

    def has_consumers(self, address: str) -> bool:
        """Return True when a direct address has consumers, with or without credit, at this or at another router."""
        kind, subscriptions = self._addresses.type_of(address), self._subscriptions
        if kind is AddressType.MULTICAST:
            return bool(subscriptions.live.match(address)) or self._reaches(MULTICAST, address)
        return subscriptions.competing.has_anycast_consumers(address) or self._reaches(ANYCAST, address)

    def _of_consumers(self, address: str, kind: AddressType) -> int:
        """Return how many messages the consumers of a direct address can take."""
        if kind is AddressType.MULTICAST:
            reached = self._subscriptions.live.match(address) or self._reaches(MULTICAST, address)
            return SENDER_CREDIT if reached else 0
        return min(SENDER_CREDIT, self._subscriptions.competing.anycast_credit(address))

    def tick(self) -> None:
        """Notify the senders of addresses that have room again."""
        for address in list(self._without_room):
            account = self._account(address)
            if account is None or not (self.failing or account.full):
                self._without_room.discard(address)
                self._watchers.changed(address)
