"""How many messages a sender may have under way, and when that changes."""

from __future__ import annotations

from collections.abc import Callable

from edge.broker.limits import SENDER_CREDIT
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Origin
from edge.broker.retention.quotas import Account
from edge.broker.router.configured import ConfiguredAddresses
from edge.broker.router.credit_watchers import CreditWatchers
from edge.broker.router.subscriptions import SubscriptionRegistry


class SenderCredit:
    """Credit by address: of a direct one what its consumers can take, of a stored one none while it takes nothing."""

    def __init__(
        self,
        addresses: ConfiguredAddresses,
        subscriptions: SubscriptionRegistry,
        watchers: CreditWatchers,
        account: Callable[[str], Account | None],
    ) -> None:
        """`account` is what a stored address may keep; None where nothing is kept of it."""
        self.failing = False
        """The last commit failed: senders to stored addresses get no credit until one succeeds."""
        self._addresses = addresses
        self._subscriptions = subscriptions
        self._watchers = watchers
        self._account = account
        self._without_room: set[str] = set()
        """Addresses whose senders wait for room."""

    def of(self, origin: Origin, address: str) -> int:
        """Messages a sender to `address` may have under way.

        For direct addresses, and for stored ones that are full (or while the store cannot commit: what comes all the
        same is refused by the commit that fails), `origin.credit_changed(address)` is called when it may differ.
        """
        kind = self._addresses.type_of(address)
        if kind is AddressType.ANYCAST:
            self._watchers.watch(address, origin)
            group = self._subscriptions.competing.anycast.get(address)
            return min(SENDER_CREDIT, group.credit) if group is not None else 0
        if kind is AddressType.MULTICAST:
            self._watchers.watch(address, origin)
            return SENDER_CREDIT if self._subscriptions.live.match(address) else 0
        account = self._account(address)
        stored = account is not None or kind.is_queue
        if (self.failing and stored) or (account is not None and account.full):
            self._watchers.watch(address, origin)
            self._without_room.add(address)
            return 0
        return SENDER_CREDIT

    def tick(self) -> None:
        """Tell the senders of addresses that have room again."""
        for address in list(self._without_room):
            account = self._account(address)
            if account is None or not (self.failing or account.full):
                self._without_room.discard(address)
                self._watchers.changed(address)
