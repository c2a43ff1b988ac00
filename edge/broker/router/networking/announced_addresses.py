"""Routers by the direct addresses for which they have consumers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from edge.broker.model.topics import FilterTree, is_filter
from edge.broker.network.database import LinkStateDatabase
from edge.broker.network.statements import ANYCAST, MULTICAST

_NONE: Final = frozenset[str]()


class AnnouncedAddresses:
    """Index of what all routers of a network have announced."""

    def __init__(self, own: str) -> None:
        """`own`: name of this router, which is left out."""
        self._own = own
        self._routers: dict[str, frozenset[str]] = {}
        """Routers by announced address, which begins with the letter of its type."""
        self._filters: dict[str, FilterTree[str]] = {ANYCAST: FilterTree(), MULTICAST: FilterTree()}

    def update(self, changed: Collection[str], database: LinkStateDatabase) -> None:
        """Follow changed announcements."""
        for name in changed:
            routers = frozenset(each.router for each in database if name in each.announced) - {self._own}
            known = name in self._routers
            kind, pattern = name[0], name[1:]
            if routers:
                self._routers[name] = routers
            elif known:
                del self._routers[name]
            if is_filter(pattern) and bool(routers) is not known:
                change = self._filters[kind].add if routers else self._filters[kind].remove
                change(pattern, name)

    def routers(self, kind: str, address: str) -> frozenset[str]:
        """Return the routers with consumers for an address."""
        found = self._routers.get(kind + address, _NONE)
        for name in self._filters[kind].match(address):
            found |= self._routers[name]
        return found
