"""Counts failed logins, so that guessing stays slow: for each pair of peer address and user, and for each address.

A user is never locked out everywhere: who guesses from one address delays that user there only. For a user who has
logged in from an address lately only the pair counts: one attacker behind a router does not keep others out.
"""

from __future__ import annotations

from collections.abc import Set

from edge.broker.security.limits import (
    FAILURES_KEPT_MAX,
    FAILURES_PER_ADDRESS_MAX,
    FAILURES_PER_USER_MAX,
    FAILURES_PERIOD_S,
    SUCCESS_KEPT_S,
    SUCCESSES_KEPT_MAX,
    USERNAME_CHARACTERS_MAX,
)

_Key = tuple[str, str]
_WHOLE_ADDRESS = ""
"""In place of a user's name, which is never empty."""


class Failures:
    """Each count falls by its maximum in `FAILURES_PERIOD_S`; nobody may try while it is at the maximum."""

    def __init__(self) -> None:
        self._counts: dict[_Key, tuple[float, float]] = {}
        """(count, when it was that), the one changed longest ago first."""
        self._succeeded: dict[_Key, float] = {}
        """Time of the last login of each pair, the oldest first."""

    def too_many(self, address: str, user: str, now: float) -> bool:
        """Return whether this address has failed too often of late: as this user, or at all unless this user has logged
        in from it lately. An empty address never has."""
        if not address:
            return False
        keys = _keys(address, user)
        if user and now - self._succeeded.get(keys[-1][0], float("-inf")) < SUCCESS_KEPT_S:
            keys = keys[-1:]
        return any(self._count(key, most, now) > most - 1 for key, most in keys)

    def succeeded(self, address: str, user: str, now: float) -> None:
        """Remember that this user has logged in from this address."""
        if not (address and user):
            return
        key = _keys(address, user)[-1][0]
        self._succeeded.pop(key, None)
        self._succeeded[key] = now
        while len(self._succeeded) > SUCCESSES_KEPT_MAX:
            del self._succeeded[next(iter(self._succeeded))]

    def add(self, address: str, user: str, now: float) -> None:
        """One more."""
        if not address:
            return
        for key, most in _keys(address, user):
            count = self._count(key, most, now)
            self._counts.pop(key, None)
            self._counts[key] = (min(count + 1, most), now)
        while len(self._counts) > FAILURES_KEPT_MAX:
            del self._counts[next(iter(self._counts))]

    def forgive(self, users: Set[str]) -> None:
        """Forget what was counted for these users, wherever it came from: their secrets are others now."""
        for key in [key for key in self._counts if key[1] and key[1] in users]:
            del self._counts[key]

    def _count(self, key: _Key, most: int, now: float) -> float:
        count, at = self._counts.get(key, (0.0, now))
        return max(0.0, count - (now - at) * most / FAILURES_PERIOD_S)


def _keys(address: str, user: str) -> tuple[tuple[_Key, int], ...]:
    """Return what is counted, each with its maximum: the address, then the pair."""
    whole = ((address, _WHOLE_ADDRESS), FAILURES_PER_ADDRESS_MAX)
    return (whole, ((address, user[:USERNAME_CHARACTERS_MAX]), FAILURES_PER_USER_MAX)) if user else (whole,)
