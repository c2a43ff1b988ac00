"""Memory held by connections and requests: a tree of accounts.

The levels are gateway, pool, user and remote address. Memory that a holder takes counts in its account and in all
accounts above, so every bound is checked where memory is taken, with a few additions. Accounts of users and addresses
exist while they have connections or holders. This module only counts; its callers (`edge.broker.listeners.admission`)
close connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

from edge.broker.limits import (
    ACCOUNT_SHARE_MAX,
    BODIES_SHARE,
    CONNECTIONS_SHARE,
    UNAUTHENTICATED_SHARE,
)
from edge.broker.model.ranking import Ranking

FEW: Final = 16
"""Accounts that are searched linearly for the largest. A ranking of more takes 500 bytes, and 200 for each account."""

Holder = Any
"""Holder of memory, by identity: a connection or a request."""


class MemoryAccount:
    """Memory held by the holders of this account and of all accounts below it."""

    __slots__ = (
        "_by_bytes", "_by_connections", "_lasting", "accounts", "bytes", "bytes_max", "connections", "holders", "name",
        "parent",
    )  # fmt: skip

    def __init__(self, name: str, bytes_max: int, parent: MemoryAccount | None = None, *, lasting: bool = True) -> None:
        """`bytes_max` is enforced by the callers; charges beyond it do not fail. `lasting`: keep the account when it is
        empty."""
        self.name = name
        self.bytes = 0
        self.bytes_max = bytes_max
        self.connections = 0
        self.parent = parent
        self.accounts: dict[str, MemoryAccount] = {}
        self.holders: dict[Holder, int] = {}
        """Bytes of each holder, in order of arrival."""
        self._lasting = lasting
        self._by_bytes: Ranking[MemoryAccount] | None = None
        self._by_connections: Ranking[MemoryAccount] | None = None
        """Rankings of `accounts`, when there are more than `FEW`."""
        if parent is not None:
            parent._add(self)

    def _add(self, below: MemoryAccount) -> None:
        self.accounts[below.name] = below
        if self._by_bytes is not None and self._by_connections is not None:
            self._by_bytes.changed(below)
            self._by_connections.changed(below)
        elif len(self.accounts) > FEW:
            self._by_bytes = Ranking(_bytes_of, self.accounts.values())
            self._by_connections = Ranking(_connections_of, self.accounts.values())

    def _remove(self, below: MemoryAccount) -> None:
        if self.accounts.get(below.name) is below:
            del self.accounts[below.name]
        if self._by_bytes is not None and self._by_connections is not None:
            self._by_bytes.discard(below)
            self._by_connections.discard(below)
        if not self.accounts:
            self._by_bytes = self._by_connections = None

    def account(self, name: str, bytes_max: int) -> MemoryAccount:
        """Return the account of this name below, and create it if needed. It is removed when the last holder leaves."""
        found = self.accounts.get(name)
        return MemoryAccount(name, bytes_max, self, lasting=False) if found is None else found

    # --- charging ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Count one more connection."""
        self._count(1)

    def leave(self) -> None:
        """Count one connection less. Its memory must be released before."""
        self._count(-1)
        self.close_when_empty()

    def _count(self, change: int) -> None:
        account = self
        while True:
            account.connections += change
            parent = account.parent
            if parent is None:
                return
            if parent._by_connections is not None:
                parent._by_connections.changed(account)
            account = parent

    def hold(self, holder: Holder, held_bytes: int) -> None:
        """Set the bytes that `holder` holds now; 0: none."""
        change = held_bytes - self.holders.get(holder, 0)
        if held_bytes:
            self.holders[holder] = held_bytes
        else:
            self.holders.pop(holder, None)
        if change:
            self._charge(change)
        if not held_bytes:
            self.close_when_empty()

    def _charge(self, change: int) -> None:
        account = self
        while True:
            account.bytes += change
            parent = account.parent
            if parent is None:
                return
            if parent._by_bytes is not None:
                parent._by_bytes.changed(account)
            account = parent

    def close_when_empty(self) -> None:
        """Remove the account, and empty accounts above, unless it is lasting."""
        parent = self.parent
        if parent is None or self._lasting or self.connections or self.holders or self.accounts:
            return
        parent._remove(self)
        parent.close_when_empty()

    # --- bounds -----------------------------------------------------------------------------------------------

    def exceeded(self) -> MemoryAccount | None:
        """Return the nearest account, from this one up, that exceeds its bound."""
        account: MemoryAccount | None = self
        while account is not None and account.bytes <= account.bytes_max:
            account = account.parent
        return account

    def has_room(self, more_bytes: int) -> bool:
        """Return True when `more_bytes` fit into this account and all accounts above."""
        account: MemoryAccount | None = self
        while account is not None and account.bytes + more_bytes <= account.bytes_max:
            account = account.parent
        return account is None

    def largest_holder(self) -> MemoryAccount:
        """Return the largest leaf: follow the account with the most bytes at each level."""
        account = self
        while account.bytes and account.accounts:
            account = _largest(account, account._by_bytes, _bytes_of)
        return account

    def most_connections(self) -> MemoryAccount | None:
        """Return the account one level below with the most connections; None without accounts below."""
        return _largest(self, self._by_connections, _connections_of) if self.accounts else None

    def by_size(self) -> list[tuple[Holder, int]]:
        """Return the account's own holders with their bytes, largest first."""
        return sorted(self.holders.items(), key=itemgetter(1), reverse=True)

    def holders_by_size(self) -> list[Holder]:
        """Return the account's own holders, the largest first and the others in any order. There must be one."""
        first = max(self.holders, key=self.holders.__getitem__)
        return [first, *(each for each in self.holders if each is not first)]

    def all_holders(self) -> Iterator[Holder]:
        """Iterate over the holders of this account and of those below. No charge may happen in between."""
        yield from self.holders
        for account in self.accounts.values():
            yield from account.all_holders()


class SpacePool(MemoryAccount):
    """Memory of the authenticated connections of one address space; the accounts below are users, then remote
    addresses."""

    __slots__ = ()

    def user_at(self, user: str, address: str) -> MemoryAccount:
        """Return the account of a user's connections from one address. `user` is empty without authentication."""
        of_user = self.account(user, self.bytes_max // ACCOUNT_SHARE_MAX if user else self.bytes_max)
        return of_user.account(address, self.bytes_max // ACCOUNT_SHARE_MAX)


class Budget:
    """Accounts of one gateway, derived from the memory limit of the process (`Limits.memory_bytes_max`)."""

    __slots__ = ("_spaces_bytes_max", "bodies", "gateway", "space", "spaces", "unauthenticated")

    def __init__(self, memory_bytes_max: int, space: str) -> None:
        """`space`: name of the gateway's own address space."""
        self.gateway = MemoryAccount("gateway", memory_bytes_max)
        self.unauthenticated = MemoryAccount("unauthenticated", memory_bytes_max // UNAUTHENTICATED_SHARE, self.gateway)
        """Connections that are not authenticated yet; the accounts below are remote addresses."""
        self._spaces_bytes_max = memory_bytes_max // CONNECTIONS_SHARE
        self.space = SpacePool(f"space {space}", self._spaces_bytes_max, self.gateway)
        """Pool of the gateway's own space."""
        self.spaces = [self.space]
        """Pools of all address spaces, which share their memory equally."""
        self.bodies = MemoryAccount("bodies", memory_bytes_max // BODIES_SHARE, self.gateway)
        """Bodies of HTTP requests; the accounts below are remote addresses."""

    def add_space(self, name: str) -> SpacePool:
        """Add the pool of another address space."""
        pool = SpacePool(f"space {name}", self._spaces_bytes_max, self.gateway)
        self.spaces.append(pool)
        self._share()
        return pool

    def remove_space(self, pool: SpacePool) -> None:
        """Remove the pool of an address space. It must be empty."""
        self.spaces.remove(pool)
        self.gateway._remove(pool)
        self._share()

    def _share(self) -> None:
        for pool in self.spaces:
            pool.bytes_max = self._spaces_bytes_max // len(self.spaces)

    def unauthenticated_at(self, address: str) -> MemoryAccount:
        """Return the account of connections from one address that are not authenticated yet.

        One address may take the whole pool, because a fleet behind a router reconnects at once. A connection from
        another address displaces one of them.
        """
        return self.unauthenticated.account(address, self.unauthenticated.bytes_max)

    def bodies_at(self, address: str) -> MemoryAccount:
        """Return the account of request bodies from one address."""
        return self.bodies.account(address, self.bodies.bytes_max // ACCOUNT_SHARE_MAX)


def _bytes_of(account: MemoryAccount) -> int:
    return account.bytes


def _connections_of(account: MemoryAccount) -> int:
    return account.connections


def _largest(
    account: MemoryAccount, ranking: Ranking[MemoryAccount] | None, number: Callable[[MemoryAccount], int]
) -> MemoryAccount:
    """Return the account one level below with the largest number. There must be one."""
    found = None if ranking is None else ranking.largest()
    return max(account.accounts.values(), key=number) if found is None else found
