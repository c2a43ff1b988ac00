"""Senders that follow the credit of an address: those that wait for some, and all senders to direct addresses."""

from __future__ import annotations

from collections.abc import Callable

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
        self._senders: dict[str, dict[Origin, Callable[[], None]]] = {}
        """Senders to direct addresses, with and without credit, and what to call when consumers leave."""
        self._sends_to: dict[Origin, str] = {}

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

    def add_sender(self, address: str, origin: Origin, consumers_left: Callable[[], None]) -> None:
        """Call `consumers_left` whenever consumers of a direct address leave, until its sender is forgotten."""
        self._senders.setdefault(address, {})[origin] = consumers_left
        self._sends_to[origin] = address

    def forget(self, origin: Origin) -> None:
        """Forget an origin that no longer needs credit."""
        sent_to = self._sends_to.pop(origin, None)
        if sent_to is not None:
            senders = self._senders[sent_to]
            del senders[origin]
            if not senders:
                del self._senders[sent_to]
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

    def consumers_left(self, pattern: str) -> None:
        """Notify the senders to a direct address, or to every one that a filter matches, that consumers have left."""
        matching = [each for each in self._senders if matches(pattern, each)] if is_filter(pattern) else [pattern]
        for address in matching:
            for origin, consumers_left in list(self._senders.get(address, {}).items()):
                call_origin(origin, consumers_left)

    def _notify(self, address: str) -> None:
        origins = self._origins.pop(address, ())
        for origin in origins:
            addresses = self._addresses[origin]
            del addresses[address]
            if not addresses:
                del self._addresses[origin]
        for origin in origins:
            call_origin(origin, origin.credit_changed, address)
