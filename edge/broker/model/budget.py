"""Who holds how much memory: accounts in a tree, charged by difference, and who holds most of it.

Gateway, pool, user, remote address: what somebody holds counts in the account it is in and in all above it, so every
bound is looked at where memory is taken, in a few additions. Accounts of users and addresses exist while somebody is in
them. This module closes nothing: it knows who holds what, and its callers (`edge.broker.listeners.admission`) act.
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
"""So many accounts are gone through for the greatest of them; a ranking of more takes 500 bytes, and 200 for each."""

Holder = Any
"""Whoever holds something, by identity: a connection, a request."""


class MemoryAccount:
    """What is held by somebody, or by all of several accounts."""

    __slots__ = (
        "_by_bytes", "_by_connections", "_lasting", "accounts", "bytes", "bytes_max", "connections", "holders", "name",
        "parent",
    )  # fmt: skip

    def __init__(self, name: str, bytes_max: int, parent: MemoryAccount | None = None, *, lasting: bool = True) -> None:
        """`bytes_max` is a bound its holders are kept to, not one that charges fail at. `lasting`: also when nobody is
        in it."""
        self.name = name
        self.bytes = 0
        self.bytes_max = bytes_max
        self.connections = 0
        self.parent = parent
        self.accounts: dict[str, MemoryAccount] = {}
        self.holders: dict[Holder, int] = {}
        """Bytes of each that holds any; who came first is first."""
        self._lasting = lasting
        self._by_bytes: Ranking[MemoryAccount] | None = None
        self._by_connections: Ranking[MemoryAccount] | None = None
        """Of those in `accounts`, where they are more than `FEW`."""
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
            self._by_bytes.gone(below)
            self._by_connections.gone(below)
        if not self.accounts:
            self._by_bytes = self._by_connections = None

    def account(self, name: str, bytes_max: int) -> MemoryAccount:
        """The account of this name below, made where there is none. It goes when the last has left it."""
        found = self.accounts.get(name)
        return MemoryAccount(name, bytes_max, self, lasting=False) if found is None else found

    # --- charging ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """One connection more."""
        self._count(1)

    def leave(self) -> None:
        """One connection is gone; what it held was given back."""
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
        """`holder` holds so much now; 0: nothing any more."""
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
        """It goes where nobody is in it."""
        parent = self.parent
        if parent is None or self._lasting or self.connections or self.holders or self.accounts:
            return
        parent._remove(self)
        parent.close_when_empty()

    # --- bounds -----------------------------------------------------------------------------------------------

    def exceeded(self) -> MemoryAccount | None:
        """The nearest account, from this one up, that holds more than it may."""
        account: MemoryAccount | None = self
        while account is not None and account.bytes <= account.bytes_max:
            account = account.parent
        return account

    def has_room(self, more_bytes: int) -> bool:
        """True when so much more keeps this account, and all above it, within their bounds."""
        account: MemoryAccount | None = self
        while account is not None and account.bytes + more_bytes <= account.bytes_max:
            account = account.parent
        return account is None

    def greediest(self) -> MemoryAccount:
        """Where most is held: of the accounts below the greediest, of those below it the greediest, and so on."""
        account = self
        while account.bytes and account.accounts:
            account = _largest(account, account._by_bytes, _bytes_of)
        return account

    def most_connections(self) -> MemoryAccount | None:
        """The account right below with most connections; None where there is none below."""
        return _largest(self, self._by_connections, _connections_of) if self.accounts else None

    def by_size(self) -> list[tuple[Holder, int]]:
        """Its own holders, with what each holds, the greediest first."""
        return sorted(self.holders.items(), key=itemgetter(1), reverse=True)

    def greediest_first(self) -> list[Holder]:
        """Its own holders, of which there are some: who holds most, and then the others in any order."""
        first = max(self.holders, key=self.holders.__getitem__)
        return [first, *(each for each in self.holders if each is not first)]

    def all_holders(self) -> Iterator[Holder]:
        """Every holder in it and below. Nothing may be charged between two."""
        yield from self.holders
        for account in self.accounts.values():
            yield from account.all_holders()


class Budget:
    """The accounts of one gateway, from what its process may take (`Limits.memory_bytes_max`)."""

    __slots__ = ("bodies", "gateway", "space", "unauthenticated")

    def __init__(self, memory_bytes_max: int, space: str) -> None:
        self.gateway = MemoryAccount("gateway", memory_bytes_max)
        self.unauthenticated = MemoryAccount("unauthenticated", memory_bytes_max // UNAUTHENTICATED_SHARE, self.gateway)
        """Connections whose peer has not said who it is; below it are remote addresses."""
        self.space = MemoryAccount(f"space {space}", memory_bytes_max // CONNECTIONS_SHARE, self.gateway)
        """All other connections; below it are users, and below those remote addresses."""
        self.bodies = MemoryAccount("bodies", memory_bytes_max // BODIES_SHARE, self.gateway)
        """Bodies of requests over HTTP; below it are remote addresses."""

    def user_at(self, user: str, address: str) -> MemoryAccount:
        """The account of a user's connections from one address; `user` empty: nobody is asked."""
        of_user = self.space.account(user, self.space.bytes_max // ACCOUNT_SHARE_MAX if user else self.space.bytes_max)
        return of_user.account(address, self.space.bytes_max // ACCOUNT_SHARE_MAX)

    def unauthenticated_at(self, address: str) -> MemoryAccount:
        """The account of connections from one address whose peer has not said who it is. The pool is all it may take: a
        fleet behind a router returns at once, and who comes from elsewhere displaces one of it."""
        return self.unauthenticated.account(address, self.unauthenticated.bytes_max)

    def bodies_at(self, address: str) -> MemoryAccount:
        """The account of bodies of requests from one address."""
        return self.bodies.account(address, self.bodies.bytes_max // ACCOUNT_SHARE_MAX)


def _bytes_of(account: MemoryAccount) -> int:
    return account.bytes


def _connections_of(account: MemoryAccount) -> int:
    return account.connections


def _largest(
    account: MemoryAccount, ranking: Ranking[MemoryAccount] | None, number: Callable[[MemoryAccount], int]
) -> MemoryAccount:
    """Of those right below, of which there are some."""
    found = None if ranking is None else ranking.largest()
    return max(account.accounts.values(), key=number) if found is None else found
