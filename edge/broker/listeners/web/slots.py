"""Slots for HTTP connections, which bound their cost without refusing new clients.

Connections count by origin: the user once authenticated, else the remote address. When one origin, or all together,
exceed the limit, the longest idle connection of the origin with most is closed. So a new connection is never refused,
and its request is served if it arrives at once.
"""

from __future__ import annotations

from typing import Protocol


class SlotHolder(Protocol):
    """A connection that has a slot."""

    def shed(self) -> None:
        """Close, as another connection needs the slot."""
        ...


class ConnectionSlots:
    """Limited slots, in total and for each origin."""

    def __init__(self, total: int, of_one: int) -> None:
        self._total = total
        self._of_one = of_one
        self._by_origin: dict[str, dict[SlotHolder, None]] = {}
        """Connections of each origin, longest idle first."""
        self._origins: dict[SlotHolder, str] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def take(self, connection: SlotHolder, origin: str) -> None:
        """Take a slot for an active connection, or mark it as the most recently active one.

        Close another connection at a limit.
        """
        self.leave(connection)
        same_origin = self._by_origin.setdefault(origin, {})
        same_origin[connection] = None
        self._origins[connection] = origin
        if len(same_origin) > self._of_one:
            self._shed_first(same_origin)
        elif len(self._origins) > self._total:
            self._shed_first(max(self._by_origin.values(), key=len))

    def leave(self, connection: SlotHolder) -> None:
        """Release the slot. Idempotent."""
        origin = self._origins.pop(connection, None)
        if origin is not None:
            same_origin = self._by_origin[origin]
            del same_origin[connection]
            if not same_origin:
                del self._by_origin[origin]

    def _shed_first(self, same_origin: dict[SlotHolder, None]) -> None:
        first = next(iter(same_origin))
        self.leave(first)
        first.shed()
