"""Room in the store: what each address may keep, what the space and the card may, and what is done when there is none.

An *account* is one `Address` resource, with every log its names have. It may keep `quota` bytes of bodies. What
accounts keep beyond their `reserve` comes out of what the space has left over once everybody's reserve is set aside,
and stops growing when the card's free space reaches the floor: so events keep their reserve while telemetry is thinned
or refused.

Allowances are worked out exactly when one is used up, and at each tick; in between a run costs a comparison and a
subtraction, and an account that nothing limits costs nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from edge.broker.configuration import AddressPolicy, DurabilityMode, WhenFull
from edge.broker.limits import EVICT_AHEAD_BYTES_MAX, EVICT_AHEAD_SHARE, FLOOR_HYSTERESIS_BYTES
from edge.broker.store.contract import Store

logger = logging.getLogger(__name__)

ENDLESS = sys.maxsize


class Account:
    """What one address resource keeps; made by `Quotas.open`."""

    __slots__ = ("_quotas", "limited", "logs", "policy", "refused", "room")

    def __init__(self, quotas: Quotas, policy: AddressPolicy) -> None:
        self._quotas = quotas
        self.policy = policy
        self.logs: list[int] = []
        self.limited = False
        """Whoever publishes asks `admits` only while this is true."""
        self.room = 0
        """Bytes it may take on before somebody has to count again."""
        self.refused = 0
        """Messages it had no room for."""

    @property
    def used(self) -> int:
        """Bytes of bodies it keeps."""
        return self._quotas.used(self)

    @property
    def full(self) -> bool:
        """Not a byte more is taken, and nothing is given up for it either."""
        return self.limited and self.policy.when_full is WhenFull.REJECT and not self._quotas.has_room(self)

    def admits(self, log: int, size: int, messages: int) -> bool:
        """True when `size` bytes may be appended to `log`; makes room for them where the address says how."""
        quotas = self._quotas
        if size <= self.room and size <= quotas.shared:
            self.room -= size
            quotas.shared -= size
            return True
        if quotas.make_room(self, log, size):
            return True
        self.refused += messages
        return False


class Quotas:
    """The accounts of a space, and what they share."""

    def __init__(self, store: Store, free_bytes: Callable[[], int | None] | None = None) -> None:
        """`free_bytes`: room left on the medium, None where it has no bound; the store's own when not given."""
        self._store = store
        self._free_bytes = free_bytes or store.free_bytes
        self._accounts: dict[str, Account] = {}
        self.space_bytes: int | None = None
        """What the whole space may keep; None: as much as the card holds."""
        self.floor_bytes = 0
        """Free space of the medium that nobody's messages may take."""
        self.closed = False
        """The floor is reached."""
        self.shared = ENDLESS
        """Bytes the space has left over for everybody."""
        self.short: Callable[[Sequence[int]], None] = lambda logs: None
        """Hears which logs have no room for what comes."""

    def __iter__(self) -> Iterator[tuple[str, Account]]:
        """(pattern of the rule, account)."""
        return iter(self._accounts.items())

    def get(self, pattern: str) -> Account | None:
        """The account of a rule; None while it has no log."""
        return self._accounts.get(pattern)

    def open(self, pattern: str, policy: AddressPolicy, log: int) -> Account:
        """The account of the rule `pattern`, which has `log` from now on."""
        account = self._accounts.get(pattern)
        if account is None:
            account = self._accounts[pattern] = Account(self, policy)
            self._limit(account)
        if log not in account.logs:
            account.logs.append(log)
            account.room = 0
            self._hurry(log, policy)
        return account

    def configure(self, policies: Mapping[str, AddressPolicy]) -> None:
        """The promises of every rule that has some, by its pattern. What is reserved is set aside from now on."""
        for pattern, account in self._accounts.items():
            account.policy = policies.get(pattern, AddressPolicy())
            for log in account.logs:
                self._hurry(log, account.policy)
        for pattern, policy in policies.items():
            if policy.reserve_bytes and pattern not in self._accounts:
                self._accounts[pattern] = Account(self, policy)
        self._allow()

    def tick(self) -> None:
        """Every `limits.TICK_S`: look at the card, count again."""
        free = self._free_bytes() if self.floor_bytes else None
        if free is not None:
            floor = self.floor_bytes + (FLOOR_HYSTERESIS_BYTES if self.closed else 0)
            if (free < floor) != self.closed:
                self.closed = not self.closed
                state = "is below" if self.closed else "is above"
                logger.warning(
                    "free space of the medium %s the floor of %d MiB: %s",
                    state,
                    self.floor_bytes >> 20,
                    "addresses keep to their reserve" if self.closed else "messages are taken again",
                )
        self._allow()

    # --- for accounts -----------------------------------------------------------------------------------------

    def used(self, account: Account) -> int:
        return sum(map(self._store.log_bytes, account.logs))

    def has_room(self, account: Account) -> bool:
        """One byte more would be admitted."""
        return self._missing(account, 1) <= 0

    def make_room(self, account: Account, log: int, size: int) -> bool:
        """Count exactly; where there is no room, give up old messages of the account if that is what it is for."""
        missing = self._missing(account, size)
        if missing > 0:
            self.short(account.logs)
        rejects = account.policy.when_full is WhenFull.REJECT
        if missing > 0 and (rejects or not self._evict(account, log, size, missing)):
            return False
        self._allow()
        account.room = max(0, account.room - size)
        self.shared = max(0, self.shared - size)
        return True

    # --- inside -----------------------------------------------------------------------------------------------

    def _hurry(self, log: int, policy: AddressPolicy) -> None:
        """How soon what is appended to a log is to be on disk."""
        self._store.delay(log, policy.durability.delay_s)
        self._store.keep_in_memory(log, keep=policy.durability.mode is DurabilityMode.MEMORY)

    def _missing(self, account: Account, size: int) -> int:
        """Bytes that would have to go before `size` more fit; 0 or less when they fit."""
        used, policy = self.used(account), account.policy
        missing = used + size - policy.quota_bytes if policy.quota_bytes is not None else 0
        beyond = used + size - policy.reserve_bytes
        if beyond <= 0:
            return missing
        if self.space_bytes is not None:
            missing = max(missing, self._set_aside() + min(beyond, size) - self.space_bytes)
        return max(missing, min(beyond, size)) if self.closed else missing

    def _set_aside(self) -> int:
        """Bytes of the space that are used, or kept free for somebody."""
        return sum(max(self.used(account), account.policy.reserve_bytes) for account in self._accounts.values())

    def _evict(self, account: Account, log: int, size: int, missing: int) -> bool:
        """Ask for the oldest of the log to go, or of the account's largest one; False when that cannot be enough."""
        quota = account.policy.quota_bytes
        if quota is not None and size > quota:
            return False
        there = self._store.log_bytes(log)
        if there < missing:
            log = max(account.logs, key=self._store.log_bytes)
            there = self._store.log_bytes(log)
        if there < missing:
            return False
        ahead = min((quota or there) // EVICT_AHEAD_SHARE, EVICT_AHEAD_BYTES_MAX)
        give_way = self._store.thin if account.policy.when_full is WhenFull.THIN else self._store.evict
        give_way(log, min(there, missing + ahead))
        return True

    def _allow(self) -> None:
        """Work out every allowance."""
        self.shared = ENDLESS if self.space_bytes is None else max(0, self.space_bytes - self._set_aside())
        for account in self._accounts.values():
            if self._limit(account):
                used, policy = self.used(account), account.policy
                room = max(0, policy.reserve_bytes - used) if self.closed else ENDLESS
                account.room = room if policy.quota_bytes is None else max(0, min(room, policy.quota_bytes - used))

    def _limit(self, account: Account) -> bool:
        account.limited = self.closed or self.space_bytes is not None or account.policy.quota_bytes is not None
        return account.limited
