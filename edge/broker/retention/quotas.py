"""Quotas: limits on what each address, the space and the card keep, and how room is made.

An *account* belongs to one `Address` resource and covers every log of its names. It may keep `quota` bytes of bodies.
Bytes beyond its `reserve` come from what the space has left after all reserves. They stop growing when the free space
of the card reaches the floor.

When the space or the card is full, a message makes accounts of lower rank release messages first: those that thin
before those that drop their oldest, then by ascending priority, each down to its reserve. After them the account itself
releases messages, if its policy allows that. An account never releases messages for one of the same or a lower rank,
and never with `whenFull: reject`. So events are stored while telemetry is thinned. A quota of an account affects only
the account itself.

Allowances are computed exactly when one is used up, and at each tick. In between, a run costs a comparison and a
subtraction, and an account without a limit costs nothing.
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
"""Order of release: thinning keeps a summary, dropping loses messages, and `reject` promises to keep all."""


class QuotaUsage(NamedTuple):
    """Usage of an account for status pages, in bytes of bodies."""

    address: str
    used: int
    quota: int | None
    reserve: int
    when_full: str
    priority: int
    refused: int
    """Messages refused for want of room since the start."""


class SpaceRelease(NamedTuple):
    """Bytes that an account is to release."""

    account: QuotaAccount
    log: int
    bytes: int
    at_most: int | None
    """Limit on bytes released for other accounts; None: no limit."""


class QuotaAccount:
    """Account of one address resource, created by `Quotas.open`."""

    __slots__ = ("_quotas", "limited", "meter", "policy", "refused", "room")

    def __init__(self, quotas: Quotas, policy: AddressPolicy) -> None:
        self._quotas = quotas
        self.policy = policy
        self.meter = ByteMeter()
        """Byte count of all its logs. There may be very many logs."""
        self.limited = False
        """Publishers call `admits` only while this is True."""
        self.room = 0
        """Bytes it may take before the allowance has to be computed again."""
        self.refused = 0
        """Messages refused for want of room."""

    @property
    def used(self) -> int:
        """Bytes of bodies that the account keeps."""
        return self._quotas.used(self)

    @property
    def rank(self) -> tuple[int, int]:
        """Rank of the account. The one of lower rank releases messages for the other."""
        return _RANKS[self.policy.when_full], self.policy.priority

    @property
    def spare(self) -> int:
        """Bytes that it can release for other accounts."""
        return 0 if self.policy.when_full is WhenFull.REJECT else max(0, self.used - self.policy.reserve_bytes)

    @property
    def full(self) -> bool:
        """True when it refuses every message, and no account can release bytes for it."""
        return self.limited and self.policy.when_full is WhenFull.REJECT and not self._quotas.has_room(self)

    def admits(self, log: int, size: int, messages: int) -> bool:
        """Return True when `size` bytes may be appended to `log`. Make room for them if the policy allows that."""
        if self.takes(size) or self._quotas.make_room(self, log, size):
            return True
        self.refused += messages
        return False

    def takes(self, size: int) -> bool:
        """Return True when `size` bytes fit into the current allowance. Never makes room or counts a refusal."""
        quotas = self._quotas
        if size > self.room or size > quotas.shared:
            return False
        self.room -= size
        quotas.shared -= size
        return True


class Quotas:
    """Accounts of a space, and the bytes that they share."""

    def __init__(
        self,
        logs: MessageLogs,
        retention: Retention,
        free_bytes: Callable[[], int | None] | None = None,
        report_shortage: Callable[[ByteMeter], None] = lambda _meter: None,
        other_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`free_bytes` returns the free space of the medium, None without a limit; the default asks the store.
        `report_shortage` is called with the meter of an account that has no room for a message. `other_bytes`
        returns the bytes of the space that belong to no account."""
        self._logs = logs
        self._retention = retention
        self._free_bytes = free_bytes or retention.free_bytes
        self._other_bytes = other_bytes
        self._accounts: dict[str, QuotaAccount] = {}
        self.space_bytes: int | None = None
        """Quota of the whole space; None: limited only by the card."""
        self.floor_bytes = 0
        """Free space of the medium that messages may not use."""
        self.closed = False
        """True while the free space is below the floor."""
        self.shared = ENDLESS
        """Bytes of the space that every account may use."""
        self.released = 0
        """Bytes released while at the floor and not used again yet."""
        self._report_shortage = report_shortage

    def bound_space(self, space_bytes: int | None) -> None:
        """Set the quota of the whole space; None: limited only by the card."""
        self.space_bytes = space_bytes

    def keep_free(self, floor_bytes: int) -> None:
        """Keep this part of the medium free of messages."""
        self.floor_bytes = floor_bytes

    def __iter__(self) -> Iterator[tuple[str, QuotaAccount]]:
        """Iterate over (pattern of the rule, account)."""
        return iter(self._accounts.items())

    def get(self, pattern: str) -> QuotaAccount | None:
        """Return the account of a rule; None while it has no log."""
        return self._accounts.get(pattern)

    def open(self, pattern: str, policy: AddressPolicy, log: int) -> QuotaAccount:
        """Return the account of the rule `pattern`, and add `log` to it."""
        account = self._accounts.get(pattern)
        if account is None:
            account = self._accounts[pattern] = QuotaAccount(self, policy)
            self._limit(account)
        if self._retention.meter(log, account.meter):  # it was in no account or in another one: its bytes count once
            account.room = 0
            self._set_durability(log, policy)
        return account

    def forget(self, log: int) -> None:
        """Remove a log from its account."""
        if self._retention.meter(log, None):
            self._logs.delay(log, 0)
            self._logs.keep_in_memory(log, keep=False)

    def configure(self, policies: Mapping[str, AddressPolicy]) -> None:
        """Set the policies of all rules, by pattern. Reserves take effect at once."""
        for pattern, account in self._accounts.items():
            before, account.policy = account.policy, policies.get(pattern, AddressPolicy())
            if DurabilityMode.MEMORY in (before.durability.mode, account.policy.durability.mode) or (
                before.durability != account.policy.durability
            ):
                for log in self._retention.metered(account.meter):
                    self._set_durability(log, account.policy)
        for pattern, policy in policies.items():
            if policy.reserve_bytes and pattern not in self._accounts:
                self._accounts[pattern] = QuotaAccount(self, policy)
        self._update_allowances()

    def tick(self) -> None:
        """Check the free space and compute the allowances. Called every `limits.TICK_S`."""
        free = self._free_bytes() if self.floor_bytes else None
        if free is not None:
            floor = self.floor_bytes + (FLOOR_HYSTERESIS_BYTES if self.closed else 0)
            if (free < floor) != self.closed:
                self.closed = not self.closed
                self.released = 0
                state = "is below" if self.closed else "is above"
                logger.warning(
                    "free space of the medium %s the floor of %d MiB: %s",
                    state,
                    self.floor_bytes >> 20,
                    "addresses may only use their reserve or replace old messages"
                    if self.closed
                    else "messages are accepted again",
                )
        self._update_allowances()

    def commit_failed(self) -> None:
        """Note that the released messages are still in the store."""
        self.released = 0

    def undo(self, released: int) -> None:
        """Count messages as they were before changes that were undone. `released`: its value before them."""
        self.released = released
        self._update_allowances()

    def usage(self) -> list[QuotaUsage]:
        """Return the usage of every account, in the order of release."""
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
        """Return True when one more byte fits without a release by the account itself."""
        own, shared = self._bytes_missing(account, 1)
        if own > 0:
            return False
        return shared <= 0 or shared <= sum(other.spare for other in self._lower_ranked(account))

    def make_room(self, account: QuotaAccount, log: int, size: int) -> bool:
        """Check exactly, and release old messages to make room. Return False if that is not enough."""
        own, shared = self._bytes_missing(account, size)
        beyond = self._beyond_reserve(account, size)
        if own > 0 or shared > 0:
            self._report_shortage(account.meter)
            plan = self._plan(account, log, size, own, shared)
            if plan is None:
                return False
            for part in plan:
                self._release(part)
        if self.closed:
            self.released = max(0, self.released - beyond)
        self._update_allowances()
        account.room = max(0, account.room - size)
        self.shared = max(0, self.shared - size)
        return True

    # --- inside -----------------------------------------------------------------------------------------------

    def _set_durability(self, log: int, policy: AddressPolicy) -> None:
        """Set how soon messages of a log are committed, and whether they are kept in memory."""
        self._logs.delay(log, policy.durability.delay_s)
        self._logs.keep_in_memory(log, keep=policy.durability.mode is DurabilityMode.MEMORY)

    def _bytes_missing(self, account: QuotaAccount, size: int) -> tuple[int, int]:
        """Return the bytes missing for `size` more: in the account's own quota, and in the shared space."""
        used, policy = self.used(account), account.policy
        own = used + size - policy.quota_bytes if policy.quota_bytes is not None else 0
        beyond = self._beyond_reserve(account, size)
        if beyond <= 0:
            return own, 0
        shared = self._committed_bytes() + beyond - self.space_bytes if self.space_bytes is not None else 0
        return own, max(shared, beyond - self.released) if self.closed else shared

    def _beyond_reserve(self, account: QuotaAccount, size: int) -> int:
        """Return how many of `size` bytes are beyond the account's reserve."""
        return min(size, max(0, self.used(account) + size - account.policy.reserve_bytes))

    def _lower_ranked(self, account: QuotaAccount) -> list[QuotaAccount]:
        """Return the accounts that release messages for this one, lowest rank first."""
        rank = account.rank
        return sorted((one for one in self._accounts.values() if one.rank < rank), key=lambda one: one.rank)

    def _committed_bytes(self) -> int:
        """Return the bytes of the space that are used or reserved."""
        accounts = sum(max(self.used(account), account.policy.reserve_bytes) for account in self._accounts.values())
        return accounts + self._other_bytes()

    def _plan(self, account: QuotaAccount, log: int, size: int, own: int, shared: int) -> list[SpaceRelease] | None:
        """Return the releases that free enough bytes; None when that is not possible."""
        plan: list[SpaceRelease] = []
        rest = shared - max(own, 0)
        for other in self._lower_ranked(account) if rest > 0 else ():
            for part in self._releases(other, min(rest, other.spare)):
                plan.append(part)
                rest -= part.bytes
            if rest <= 0:
                break
        own = max(own, 0) + max(rest, 0)
        if own > 0:
            mine = self._own_release(account, log, size, own)
            if mine is None:
                return None
            plan.append(mine)
        return plan

    def _own_release(self, account: QuotaAccount, log: int, size: int, missing: int) -> SpaceRelease | None:
        """Return a release of the log, or of the account's largest one; None when that is not enough."""
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

    def _release(self, part: SpaceRelease) -> None:
        account = part.account
        release = self._retention.thin if account.policy.when_full is WhenFull.THIN else self._retention.evict
        release(part.log, part.bytes, part.at_most)
        if self.closed:
            self.released += part.bytes

    def _update_allowances(self) -> None:
        """Compute the allowance of every account."""
        self.shared = ENDLESS if self.space_bytes is None else max(0, self.space_bytes - self._committed_bytes())
        for account in self._accounts.values():
            if self._limit(account):
                used, policy = self.used(account), account.policy
                room = max(0, policy.reserve_bytes - used) if self.closed else ENDLESS
                account.room = room if policy.quota_bytes is None else max(0, min(room, policy.quota_bytes - used))

    def _limit(self, account: QuotaAccount) -> bool:
        account.limited = self.closed or self.space_bytes is not None or account.policy.quota_bytes is not None
        return account.limited

    def _releases(self, account: QuotaAccount, missing: int) -> Iterator[SpaceRelease]:
        """Return releases of the account's largest logs, up to `missing` bytes and up to what it can spare."""
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
