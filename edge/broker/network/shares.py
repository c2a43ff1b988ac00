"""Shares of clients in what a router announces: no client takes all of it, however many addresses it consumes."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush


class AnnouncementShares:
    """Chooses the addresses that a router announces among those with consumers.

    Each address counts for one of its consumers' users: the one with the fewest. While there is room every user gets up
    to the limit of a user. Without room the user with the most addresses gives up its newest one to a user with at
    least two fewer, so all users end with equal shares (max-min fairness), and none loses its place to one that has
    more.
    """

    def __init__(self, addresses_max: int, per_user_max: int) -> None:
        self._addresses_max = addresses_max
        self._per_user_max = per_user_max
        self._chosen: dict[str, str] = {}
        """User of each chosen address."""
        self._chosen_of: dict[str, dict[str, None]] = {}
        """Chosen addresses by user, the oldest first."""
        self._waiting: dict[str, str] = {}
        self._waiting_of: dict[str, dict[str, None]] = {}
        """The same of the addresses that are not chosen."""
        self._announced: dict[str, None] = {}
        """Addresses that the last `take_changes` left chosen."""
        self._touched: dict[str, None] = {}
        """Addresses that may have been chosen or dropped since."""

    @property
    def waiting(self) -> int:
        """Number of addresses with consumers that are not announced."""
        return len(self._waiting)

    @property
    def wanted(self) -> Collection[str]:
        """Addresses with consumers."""
        return [*self._chosen, *self._waiting]

    def update(self, address: str, users: Collection[str]) -> None:
        """Note the users of the present consumers of an address; none: it has no consumers any more."""
        if self._chosen.get(address) in users:
            return
        former = self._waiting.get(address)
        user = min(users, key=lambda each: (self._count(each), each != former), default=None)
        if user is not None and user == former:
            return
        former = self._chosen.get(address, former)
        if former is not None:
            self._remove(address, former)
        if user is not None:
            self._waiting[address] = user
            self._waiting_of.setdefault(user, {})[address] = None

    def take_changes(self) -> tuple[list[str], list[str]]:
        """Choose again. Return the addresses to announce, and those to withdraw, since the last call."""
        self._choose()
        added = [name for name in self._touched if name in self._chosen and name not in self._announced]
        removed = [name for name in self._touched if name not in self._chosen and name in self._announced]
        self._touched = {}
        self._announced.update(dict.fromkeys(added))
        for name in removed:
            del self._announced[name]
        return added, removed

    # --- inside -------------------------------------------------------------------------------------------------

    def _count(self, user: str) -> int:
        return len(self._chosen_of.get(user, ()))

    def _choose(self) -> None:
        """Give places to the users with the fewest, while there is room or another user has at least two more."""
        lightest = [(self._count(user), user) for user in self._waiting_of if self._count(user) < self._per_user_max]
        heaviest = [(-len(chosen), user) for user, chosen in self._chosen_of.items()] if lightest else []
        heapify(lightest)
        heapify(heaviest)
        while lightest:
            count, user = heappop(lightest)
            if len(self._chosen) >= self._addresses_max and not self._displace(count, heaviest):
                return
            address = next(iter(self._waiting_of[user]))
            self._remove(address, user)
            self._chosen[address] = user
            self._chosen_of.setdefault(user, {})[address] = None
            self._touched[address] = None
            if user in self._waiting_of and count + 1 < self._per_user_max:
                heappush(lightest, (count + 1, user))

    def _displace(self, count: int, heaviest: list[tuple[int, str]]) -> bool:
        """Take a place from the user with the most. Return False when its count is not two above `count`."""
        while heaviest:
            known, user = heaviest[0]
            present = self._count(user)
            if present != -known:
                heappop(heaviest)  # it has given one up, or got one, since
                if present:
                    heappush(heaviest, (-present, user))
                continue
            if present < count + 2:
                return False
            address = next(reversed(self._chosen_of[user]))
            self._remove(address, user)
            self._waiting[address] = user
            self._waiting_of.setdefault(user, {})[address] = None
            return True
        return False

    def _remove(self, address: str, user: str) -> None:
        chosen = self._chosen.pop(address, None) is not None
        if chosen:
            self._touched[address] = None
        else:
            del self._waiting[address]
        places = self._chosen_of if chosen else self._waiting_of
        del places[user][address]
        if not places[user]:
            del places[user]
