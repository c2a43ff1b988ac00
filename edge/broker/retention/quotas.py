"""Room in the store: what each address may keep, what the space and the card may, and what is done when there is none.

An *account* is one `Address` resource, with every log its names have. It may keep `quota` bytes of bodies. What
accounts keep beyond their `reserve` comes out of what the space has left over once everybody's reserve is set aside,
and stops growing when the card's free space reaches the floor.

When the space or the card is short, what comes for an account makes others give way first: those that thin before those
that drop their oldest, by ascending priority among alike, each down to its reserve; then the account itself, where it
says how. Nobody gives way to one of its own rank or below, and `whenFull: reject` never does: so events go on while
telemetry is thinned. A quota of the account's own is its own matter.

Allowances are worked out exactly when one is used up, and at each tick; in between a run costs a comparison and a
subtraction, and an account that nothing limits costs nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from edge.broker.limits import (
    EVICT_AHEAD_BYTES_MAX,
    EVICT_AHEAD_SHARE,
    FLOOR_HYSTERESIS_BYTES,
    YIELDING_LOGS_MAX,
)
from edge.broker.model.address_policy import AddressPolicy, DurabilityMode, WhenFull
from edge.broker.store.contract import MessageLogs, Retention
from edge.broker.store.meter import ByteMeter

logger = logging.getLogger(__name__)

ENDLESS = sys.maxsize

_RANKS = {WhenFull.THIN: 0, WhenFull.DROP_OLDEST: 1, WhenFull.REJECT: 2}
"""Thinned readings keep their picture, dropped ones do not, and who rejects has promised to keep what it took."""


class QuotaUsage(NamedTuple):
    """What an account has, for status pages; bytes of bodies."""

    address: str
    used: int
    quota: int | None
    reserve: int
    when_full: str
    priority: int
    refused: int
    """Messages there was no room for since the start."""


class SpaceRelease(NamedTuple):
    """What an account is asked for."""

    account: QuotaAccount
    log: int
    bytes: int
    at_most: int | None
    """For others it gives no more than this."""


class QuotaAccount:
    """What one address resource keeps; made by `Quotas.open`."""

    __slots__ = ("_quotas", "limited", "meter", "policy", "refused", "room")

    def __init__(self, quotas: Quotas, policy: AddressPolicy) -> None:
        self._quotas = quotas
        self.policy = policy
        self.meter = ByteMeter()
        """Of all its logs: there may be very many."""
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
    def rank(self) -> tuple[int, int]:
        """Of two accounts the one of lower rank gives way to the other."""
        return _RANKS[self.policy.when_full], self.policy.priority

    @property
    def spare(self) -> int:
        """Bytes it can give way by for others."""
        return 0 if self.policy.when_full is WhenFull.REJECT else max(0, self.used - self.policy.reserve_bytes)

    @property
    def full(self) -> bool:
        """Not a byte more is taken, and nothing is given up for it either."""
        return self.limited and self.policy.when_full is WhenFull.REJECT and not self._quotas.has_room(self)

    def admits(self, log: int, size: int, messages: int) -> bool:
        """True when `size` bytes may be appended to `log`; makes room for them where the address says how."""
        if self.takes(size) or self._quotas.make_room(self, log, size):
            return True
        self.refused += messages
        return False

    def takes(self, size: int) -> bool:
        """True when `size` bytes may be appended without a count; else nobody gives way and nothing is refused."""
        quotas = self._quotas
        if size > self.room or size > quotas.shared:
            return False
        self.room -= size
        quotas.shared -= size
        return True


class Quotas:
    """The accounts of a space, and what they share."""

    def __init__(
        self,
        logs: MessageLogs,
        retention: Retention,
        free_bytes: Callable[[], int | None] | None = None,
        short: Callable[[ByteMeter], None] = lambda _meter: None,
    ) -> None:
        """`free_bytes`: room left on the medium, None where it has no bound; the store's own when not given. `short`
        hears the meter of logs that have no room for what comes."""
        self._logs = logs
        self._retention = retention
        self._free_bytes = free_bytes or retention.free_bytes
        self._accounts: dict[str, QuotaAccount] = {}
        self.space_bytes: int | None = None
        """What the whole space may keep; None: as much as the card holds."""
        self.floor_bytes = 0
        """Free space of the medium that nobody's messages may take."""
        self.closed = False
        """The floor is reached."""
        self.shared = ENDLESS
        """Bytes the space has left over for everybody."""
        self._ahead = 0
        """Bytes given way by at the floor and not taken on yet."""
        self._short = short

    def bound_space(self, space_bytes: int | None) -> None:
        """Set the quota of the whole space; None: as many bytes as the card holds."""
        self.space_bytes = space_bytes

    def keep_free(self, floor_bytes: int) -> None:
        """Keep this part of the medium free of messages."""
        self.floor_bytes = floor_bytes

    def __iter__(self) -> Iterator[tuple[str, QuotaAccount]]:
        """(pattern of the rule, account)."""
        return iter(self._accounts.items())

    def get(self, pattern: str) -> QuotaAccount | None:
        """The account of a rule; None while it has no log."""
        return self._accounts.get(pattern)

    def open(self, pattern: str, policy: AddressPolicy, log: int) -> QuotaAccount:
        """The account of the rule `pattern`, which has `log` from now on."""
        account = self._accounts.get(pattern)
        if account is None:
            account = self._accounts[pattern] = QuotaAccount(self, policy)
            self._limit(account)
        if self._retention.meter(log, account.meter):  # it was nobody's, or another rule's: its bytes count once
            account.room = 0
            self._hurry(log, policy)
        return account

    def forget(self, log: int) -> None:
        """The log is nobody's any more."""
        if self._retention.meter(log, None):
            self._logs.delay(log, 0)
            self._logs.keep_in_memory(log, keep=False)

    def configure(self, policies: Mapping[str, AddressPolicy]) -> None:
        """The promises of every rule that has some, by its pattern. What is reserved is set aside from now on."""
        for pattern, account in self._accounts.items():
            before, account.policy = account.policy, policies.get(pattern, AddressPolicy())
            if DurabilityMode.MEMORY in (before.durability.mode, account.policy.durability.mode) or (
                before.durability != account.policy.durability
            ):
                for log in self._retention.metered(account.meter):
                    self._hurry(log, account.policy)
        for pattern, policy in policies.items():
            if policy.reserve_bytes and pattern not in self._accounts:
                self._accounts[pattern] = QuotaAccount(self, policy)
        self._allow()

    def tick(self) -> None:
        """Every `limits.TICK_S`: look at the card, count again."""
        free = self._free_bytes() if self.floor_bytes else None
        if free is not None:
            floor = self.floor_bytes + (FLOOR_HYSTERESIS_BYTES if self.closed else 0)
            if (free < floor) != self.closed:
                self.closed = not self.closed
                self._ahead = 0
                state = "is below" if self.closed else "is above"
                logger.warning(
                    "free space of the medium %s the floor of %d MiB: %s",
                    state,
                    self.floor_bytes >> 20,
                    "addresses keep to their reserve, or give way" if self.closed else "messages are taken again",
                )
        self._allow()

    def commit_failed(self) -> None:
        """What it was to give up is there still."""
        self._ahead = 0

    def rooms(self) -> list[QuotaUsage]:
        """Every account, in the order they give way."""
        return [
            QuotaUsage(
                pattern,
                account.used,
                account.policy.quota_bytes,
                account.policy.reserve_bytes,
                account.policy.when_full.value,
                account.policy.priority,
                account.refused,
            )
            for pattern, account in sorted(self._accounts.items(), key=lambda item: (item[1].rank, item[0]))
        ]

    # --- for accounts -----------------------------------------------------------------------------------------

    def used(self, account: QuotaAccount) -> int:
        return self._retention.metered_bytes(account.meter)

    def has_room(self, account: QuotaAccount) -> bool:
        """One byte more would be admitted without the account giving way itself."""
        own, shared = self._missing(account, 1)
        if own > 0:
            return False
        return shared <= 0 or shared <= sum(other.spare for other in self._below(account))

    def make_room(self, account: QuotaAccount, log: int, size: int) -> bool:
        """Count exactly; where there is no room, give up old messages of whom it is up to."""
        own, shared = self._missing(account, size)
        beyond = self._beyond(account, size)
        if own > 0 or shared > 0:
            self._short(account.meter)
            plan = self._plan(account, log, size, own, shared)
            if plan is None:
                return False
            for part in plan:
                self._give_way(part)
        if self.closed:
            self._ahead = max(0, self._ahead - beyond)
        self._allow()
        account.room = max(0, account.room - size)
        self.shared = max(0, self.shared - size)
        return True

    # --- inside -----------------------------------------------------------------------------------------------

    def _hurry(self, log: int, policy: AddressPolicy) -> None:
        """How soon what is appended to a log is to be on disk."""
        self._logs.delay(log, policy.durability.delay_s)
        self._logs.keep_in_memory(log, keep=policy.durability.mode is DurabilityMode.MEMORY)

    def _missing(self, account: QuotaAccount, size: int) -> tuple[int, int]:
        """Bytes that would have to go before `size` more fit: of the account's own quota, of what all share."""
        used, policy = self.used(account), account.policy
        own = used + size - policy.quota_bytes if policy.quota_bytes is not None else 0
        beyond = self._beyond(account, size)
        if beyond <= 0:
            return own, 0
        shared = self._set_aside() + beyond - self.space_bytes if self.space_bytes is not None else 0
        return own, max(shared, beyond - self._ahead) if self.closed else shared

    def _beyond(self, account: QuotaAccount, size: int) -> int:
        """How much of `size` bytes is not within the account's reserve."""
        return min(size, max(0, self.used(account) + size - account.policy.reserve_bytes))

    def _below(self, account: QuotaAccount) -> list[QuotaAccount]:
        """Who gives way to an account, lowest rank first."""
        rank = account.rank
        return sorted((one for one in self._accounts.values() if one.rank < rank), key=lambda one: one.rank)

    def _set_aside(self) -> int:
        """Bytes of the space that are used, or kept free for somebody."""
        return sum(max(self.used(account), account.policy.reserve_bytes) for account in self._accounts.values())

    def _plan(self, account: QuotaAccount, log: int, size: int, own: int, shared: int) -> list[SpaceRelease] | None:
        """Who gives way by how much; None when that cannot be enough."""
        plan: list[SpaceRelease] = []
        rest = shared - max(own, 0)
        for other in self._below(account) if rest > 0 else ():
            for part in self._parts(other, min(rest, other.spare)):
                plan.append(part)
                rest -= part.bytes
            if rest <= 0:
                break
        own = max(own, 0) + max(rest, 0)
        if own > 0:
            mine = self._own(account, log, size, own)
            if mine is None:
                return None
            plan.append(mine)
        return plan

    def _own(self, account: QuotaAccount, log: int, size: int, missing: int) -> SpaceRelease | None:
        """The oldest of the log, or of the account's largest one; None when that cannot be enough."""
        quota = account.policy.quota_bytes
        if account.policy.when_full is WhenFull.REJECT or (quota is not None and size > quota):
            return None
        there = self._retention.log_bytes(log)
        if there < missing:
            log = next(iter(self._retention.largest(account.meter, 1)), log)
            there = self._retention.log_bytes(log)
        if there < missing:
            return None
        ahead = min((quota or there) // EVICT_AHEAD_SHARE, EVICT_AHEAD_BYTES_MAX)
        return SpaceRelease(account, log, min(there, missing + ahead), None)

    def _give_way(self, part: SpaceRelease) -> None:
        account = part.account
        give_way = self._retention.thin if account.policy.when_full is WhenFull.THIN else self._retention.evict
        give_way(part.log, part.bytes, part.at_most)
        if self.closed:
            self._ahead += part.bytes

    def _allow(self) -> None:
        """Work out every allowance."""
        self.shared = ENDLESS if self.space_bytes is None else max(0, self.space_bytes - self._set_aside())
        for account in self._accounts.values():
            if self._limit(account):
                used, policy = self.used(account), account.policy
                room = max(0, policy.reserve_bytes - used) if self.closed else ENDLESS
                account.room = room if policy.quota_bytes is None else max(0, min(room, policy.quota_bytes - used))

    def _limit(self, account: QuotaAccount) -> bool:
        account.limited = self.closed or self.space_bytes is not None or account.policy.quota_bytes is not None
        return account.limited

    def _parts(self, account: QuotaAccount, missing: int) -> Iterator[SpaceRelease]:
        """The account's largest logs, as far as they are needed, and no more than it can spare."""
        spare = account.spare
        for log in self._retention.largest(account.meter, YIELDING_LOGS_MAX) if missing > 0 else ():
            there = min(self._retention.log_bytes(log), spare)
            size = min(there, missing + min(there // EVICT_AHEAD_SHARE, EVICT_AHEAD_BYTES_MAX))
            if size <= 0:
                return
            yield SpaceRelease(account, log, size, there)
            spare -= there
            missing -= size
            if missing <= 0:
                return
