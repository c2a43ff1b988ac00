"""How many messages a sender may have under way, and when that changes."""

from __future__ import annotations

from collections.abc import Callable

from edge.broker.limits import SENDER_CREDIT
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Origin
from edge.broker.retention.quotas import QuotaAccount
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
        account: Callable[[str], QuotaAccount | None],
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

        None of a direct address without consumers that take something, nor of a stored one that is full (or while the
        store cannot commit: what comes all the same is refused by the commit that fails). Then `origin.credit_changed`
        is called once, with the address, when there may be some.
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

    def _of_consumers(self, address: str, kind: AddressType) -> int:
        """What the consumers of a direct address can take."""
        if kind is AddressType.MULTICAST:
            return SENDER_CREDIT if self._subscriptions.live.match(address) else 0
        return min(SENDER_CREDIT, self._subscriptions.competing.anycast_credit(address))

    def tick(self) -> None:
        """Tell the senders of addresses that have room again."""
        for address in list(self._without_room):
            account = self._account(address)
            if account is None or not (self.failing or account.full):
                self._without_room.discard(address)
                self._watchers.changed(address)
