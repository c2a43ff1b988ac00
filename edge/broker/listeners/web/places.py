"""Places for connections over HTTP, so that a crowd costs a bounded amount and keeps nobody out.

Connections are counted by origin: the user, where a request has shown one, else the remote address. When one origin has
too many, or all together, the one of whoever has most goes in which nothing has happened for longest. So a newcomer is
never turned away, and is safe for as long as it takes a crowd to come after it: a request that comes at once is served.
"""

from __future__ import annotations

from typing import Protocol


class SlotHolder(Protocol):
    """A connection that has a place."""

    def shed(self) -> None:
        """Another one needs the place: end."""
        ...


class ConnectionSlots:
    """So many places, and so many of them for one origin."""

    def __init__(self, total: int, of_one: int) -> None:
        self._total = total
        self._of_one = of_one
        self._by_origin: dict[str, dict[SlotHolder, None]] = {}
        """Each origin's, the one in which nothing has happened for longest at the front."""
        self._origins: dict[SlotHolder, str] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def take(self, connection: SlotHolder, origin: str) -> None:
        """Something happens in the connection: it takes a place, or goes to the end of those who have one, whoever has
        to give one up for it."""
        self.leave(connection)
        same_origin = self._by_origin.setdefault(origin, {})
        same_origin[connection] = None
        self._origins[connection] = origin
        if len(same_origin) > self._of_one:
            self._shed_first(same_origin)
        elif len(self._origins) > self._total:
            self._shed_first(max(self._by_origin.values(), key=len))

    def leave(self, connection: SlotHolder) -> None:
        """Give the place back; idempotent."""
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
