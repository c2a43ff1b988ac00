"""Names clients make, and how many of them one user and the whole space may have.

A queue, a subscription, a retained message and a session are each there under a name a client chose, stay when it has
gone, and take memory. So each is counted for the user who made it, by what it takes: a name over `NAME_CHARACTERS`
counts as several. Names an operator wrote into the configuration are nobody's and are not counted here. Where nobody
has to say who he is, only the space's bound counts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from edge.broker.limits import NAME_CHARACTERS, Limits


class NameKind(enum.Enum):
    """What a name stands for, in the words of an error message."""

    QUEUE = "queues"
    SUBSCRIPTION = "durable subscriptions"
    FILTER = "subscriptions of connected clients"
    RETAINED = "retained messages"
    SESSION = "MQTT sessions"


class Bound(NamedTuple):
    """Most names of one kind."""

    space: int
    user: int


class NamesOf(NamedTuple):
    """One kind, for status pages."""

    kind: NameKind
    names: int
    space_max: int
    refused: int
    """Since the start."""


def bounds_of(limits: Limits) -> Mapping[NameKind, Bound]:
    """The bounds a configuration gives."""
    return {
        NameKind.QUEUE: Bound(limits.queues_max, limits.queues_per_user_max),
        NameKind.SUBSCRIPTION: Bound(limits.subscriptions_max, limits.subscriptions_per_user_max),
        NameKind.FILTER: Bound(limits.filters_max, limits.filters_per_user_max),
        NameKind.RETAINED: Bound(limits.retained_max, limits.retained_per_user_max),
        NameKind.SESSION: Bound(limits.sessions_max, limits.sessions_per_user_max),
    }


def weight(size: int) -> int:
    """As how many names one of `size` characters, with what it holds in memory, counts."""
    return 1 + size // NAME_CHARACTERS


class _Count:
    """The names of one kind."""

    __slots__ = ("bound", "refused", "total", "users")

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.total = 0
        self.users: dict[str, int] = {}
        self.refused = 0


class NameQuotas:
    """Counts the names of a space."""

    def __init__(self, limits: Limits) -> None:
        self._counts: Final = {kind: _Count(bound) for kind, bound in bounds_of(limits).items()}

    def __iter__(self) -> Iterator[NamesOf]:
        for kind, count in self._counts.items():
            yield NamesOf(kind, count.total, count.bound.space, count.refused)

    def has_room(self, kind: NameKind, user: str, size: int, *, replaced: int | None = None) -> bool:
        """One more of `size` characters may be made, in place of one of the user's own where `replaced` is that one's
        size; counts a refusal when not."""
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

    def made(self, kind: NameKind, user: str, size: int) -> None:
        """It is there now; also of what was there before the start, whatever the bounds are by now."""
        count, names = self._counts[kind], weight(size)
        count.total += names
        if user:
            count.users[user] = count.users.get(user, 0) + names

    def gone(self, kind: NameKind, user: str, size: int) -> None:
        """It is there no longer."""
        count, names = self._counts[kind], weight(size)
        count.total -= names
        if user:
            left = count.users[user] - names
            if left:
                count.users[user] = left
            else:
                del count.users[user]

    def count(self, kind: NameKind) -> int:
        """Names there are, long ones as several."""
        return self._counts[kind].total

    def why(self, kind: NameKind, user: str) -> str:
        """What to tell who may not make another one."""
        bound = self._counts[kind].bound
        whose = f"user {user!r} may have {bound.user}" if user else f"the space may have {bound.space}"
        return f"too many {kind.value}: {whose} (spec.limits)"
