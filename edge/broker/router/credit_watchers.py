"""Senders without credit, who wait to hear that an address they send to may have some again."""

from __future__ import annotations

from edge.broker.model.interfaces import Origin
from edge.broker.model.isolation import origin_called
from edge.broker.model.topics import is_filter, matches


class CreditWatchers:
    """Origins by the addresses they wait for, and the other way round.

    An origin is told once for each time it watches: who has credit waits for nothing, so a change costs as much as
    there are senders it helps, not as there are senders.
    """

    def __init__(self) -> None:
        self._origins: dict[str, dict[Origin, None]] = {}
        self._addresses: dict[Origin, dict[str, None]] = {}

    def __len__(self) -> int:
        """Addresses somebody watches."""
        return len(self._origins)

    def __contains__(self, address: str) -> bool:
        """Somebody watches it."""
        return address in self._origins

    def watch(self, address: str, origin: Origin) -> None:
        """Tell `origin` of the next change. Idempotent."""
        self._origins.setdefault(address, {})[origin] = None
        self._addresses.setdefault(origin, {})[address] = None

    def forget(self, origin: Origin) -> None:
        """The origin asks for no credit any more."""
        for address in self._addresses.pop(origin, ()):
            origins = self._origins[address]
            del origins[origin]
            if not origins:
                del self._origins[address]

    def changed(self, pattern: str) -> None:
        """Tell the senders to an address, or to every one a filter matches."""
        if not is_filter(pattern):
            self._tell(pattern)
            return
        for address in list(self._origins):
            if matches(pattern, address):
                self._tell(address)

    def _tell(self, address: str) -> None:
        told = self._origins.pop(address, ())
        for origin in told:
            addresses = self._addresses[origin]
            del addresses[address]
            if not addresses:
                del self._addresses[origin]
        for origin in told:
            origin_called(origin, origin.credit_changed, address)
