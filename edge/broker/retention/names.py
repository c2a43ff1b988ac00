"""Limits on names that clients create, for each user and for the whole space.

Queues, subscriptions, retained messages and sessions have names that clients choose. They outlive the client and take
memory. So each is counted for the user that created it, by its size: a name over `NAME_CHARACTERS` counts as several.
Names in the configuration are not counted. Without authentication only the limit of the space applies.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from edge.broker.limits import NAME_CHARACTERS, Limits


class NameKind(enum.Enum):
    """Kind of a name, as it appears in error messages."""

    QUEUE = "queues"
    SUBSCRIPTION = "durable subscriptions"
    FILTER = "subscriptions of connected clients"
    RETAINED = "retained messages"
    SESSION = "MQTT sessions"


class Bound(NamedTuple):
    """Limits on names of one kind."""

    space: int
    user: int


class NamesOf(NamedTuple):
    """Usage of one kind of name, for status pages."""

    kind: NameKind
    names: int
    space_max: int
    refused: int
    """Refusals since the start."""


def bounds_of(limits: Limits) -> Mapping[NameKind, Bound]:
    """Return the limits of a configuration."""
    return {
        NameKind.QUEUE: Bound(limits.queues_max, limits.queues_per_user_max),
        NameKind.SUBSCRIPTION: Bound(limits.subscriptions_max, limits.subscriptions_per_user_max),
        NameKind.FILTER: Bound(limits.filters_max, limits.filters_per_user_max),
        NameKind.RETAINED: Bound(limits.retained_max, limits.retained_per_user_max),
        NameKind.SESSION: Bound(limits.sessions_max, limits.sessions_per_user_max),
    }


def weight(size: int) -> int:
    """Return the number of names that one of `size` characters counts as."""
    return 1 + size // NAME_CHARACTERS


class _Count:
    """Counters for names of one kind."""

    __slots__ = ("bound", "refused", "total", "users")

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.total = 0
        self.users: dict[str, int] = {}
        self.refused = 0


class NameQuotas:
    """Counters for the names of a space."""

    def __init__(self, limits: Limits) -> None:
        self._counts: Final = {kind: _Count(bound) for kind, bound in bounds_of(limits).items()}

    def __iter__(self) -> Iterator[NamesOf]:
        for kind, count in self._counts.items():
            yield NamesOf(kind, count.total, count.bound.space, count.refused)

    def has_room(self, kind: NameKind, user: str, size: int, *, replaced: int | None = None) -> bool:
        """Return True when a name of `size` characters may be created; otherwise count a refusal.

        `replaced` is the size of a name of the same user that it replaces.
        """
        count, names = self._counts[kind], weight(size)
        if replaced is not None:
            names -= weight(replaced)
            if names <= 0:
                return True
        own = count.users.get(user, 0) + names if user else 0
        if count.total + names <= count.bound.space and own <= count.bound.user:
            return True
        count.refused += 1
        return False

    def add(self, kind: NameKind, user: str, size: int) -> None:
        """Count a new name, or at the start an existing one, even beyond the limits."""
        count, names = self._counts[kind], weight(size)
        count.total += names
        if user:
            count.users[user] = count.users.get(user, 0) + names

    def remove(self, kind: NameKind, user: str, size: int) -> None:
        """Count a deleted name."""
        count, names = self._counts[kind], weight(size)
        count.total -= names
        if user:
            left = count.users[user] - names
            if left:
                count.users[user] = left
            else:
                del count.users[user]

    def count(self, kind: NameKind) -> int:
        """Return the number of names. Long ones count as several."""
        return self._counts[kind].total

    def refusal_text(self, kind: NameKind, user: str) -> str:
        """Return the error text for a refused name."""
        bound = self._counts[kind].bound
        limit = f"user {user!r} may have {bound.user}" if user else f"the space may have {bound.space}"
        return f"too many {kind.value}: {limit} (spec.limits)"
