"""Senders to addresses that store nothing: they hear when the credit of its consumers may have changed."""

from __future__ import annotations

from edge.broker.model.interfaces import Origin
from edge.broker.model.topics import matches


class CreditWatchers:
    """Origins by the direct address they send to."""

    def __init__(self) -> None:
        self._origins: dict[str, dict[Origin, None]] = {}

    def watch(self, address: str, origin: Origin) -> None:
        """Idempotent."""
        self._origins.setdefault(address, {})[origin] = None

    def forget(self, origin: Origin) -> None:
        """The origin asks for no credit any more."""
        for address, origins in list(self._origins.items()):
            if origins.pop(origin, origin) is None and not origins:
                del self._origins[address]

    def changed(self, pattern: str) -> None:
        """Tell the senders to every address the pattern matches."""
        for address, origins in list(self._origins.items()):
            if address == pattern or matches(pattern, address):
                for origin in list(origins):
                    origin.credit_changed(address)
