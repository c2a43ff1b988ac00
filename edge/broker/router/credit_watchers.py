"""Senders without credit, which wait for credit of an address."""

from __future__ import annotations

from edge.broker.model.interfaces import Origin
from edge.broker.model.isolation import call_origin
from edge.broker.model.topics import is_filter, matches


class CreditWatchers:
    """Origins by the addresses that they wait for, and the other way round.

    An origin is notified once for each call of `watch`. Origins with credit are not registered, so a change costs only
    as much as there are senders that it helps.
    """

    def __init__(self) -> None:
        self._origins: dict[str, dict[Origin, None]] = {}
        self._addresses: dict[Origin, dict[str, None]] = {}

    def __len__(self) -> int:
        """Number of watched addresses."""
        return len(self._origins)

    def __contains__(self, address: str) -> bool:
        """Return True when the address is watched."""
        return address in self._origins

    def watch(self, address: str, origin: Origin) -> None:
        """Notify `origin` of the next change. Idempotent."""
        self._origins.setdefault(address, {})[origin] = None
        self._addresses.setdefault(origin, {})[address] = None

    def forget(self, origin: Origin) -> None:
        """Forget an origin that no longer needs credit."""
        for address in self._addresses.pop(origin, ()):
            origins = self._origins[address]
            del origins[origin]
            if not origins:
                del self._origins[address]

    def changed(self, pattern: str) -> None:
        """Notify the senders to an address, or to every address that a filter matches."""
        if not is_filter(pattern):
            self._notify(pattern)
            return
        for address in list(self._origins):
            if matches(pattern, address):
                self._notify(address)

    def _notify(self, address: str) -> None:
        origins = self._origins.pop(address, ())
        for origin in origins:
            addresses = self._addresses[origin]
            del addresses[address]
            if not addresses:
                del self._addresses[origin]
        for origin in origins:
            call_origin(origin, origin.credit_changed, address)
