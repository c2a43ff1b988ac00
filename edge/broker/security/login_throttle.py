"""Slow down password guessing: count failed logins for each pair of peer address and user, and for each address.

A user is never locked out everywhere, only at the addresses that fail. After a recent login of a user from an address,
only the count of the pair applies, so that an attacker behind a shared router does not lock out other users.
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
"""Key for all users of an address; the name of a user is never empty."""


class Failures:
    """Counts of failed logins, which decay to zero in `FAILURES_PERIOD_S`. At the maximum logins are refused."""

    def __init__(self) -> None:
        self._counts: dict[_Key, tuple[float, float]] = {}
        """(count, time of its last change), least recently changed first."""
        self._succeeded: dict[_Key, float] = {}
        """Time of the last login of each pair, the oldest first."""

    def too_many(self, address: str, user: str, now: float) -> bool:
        """Return True if too many recent logins of this address failed: as this user, or as any user.

        The second count does not apply to a user with a recent login from this address. Always False for an
        empty address.
        """
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
        """Count a failed login."""
        if not address:
            return
        for key, most in _keys(address, user):
            count = self._count(key, most, now)
            self._counts.pop(key, None)
            self._counts[key] = (min(count + 1, most), now)
        while len(self._counts) > FAILURES_KEPT_MAX:
            del self._counts[next(iter(self._counts))]

    def forgive(self, users: Set[str]) -> None:
        """Reset the counts of these users at every address, after their secrets changed."""
        for key in [key for key in self._counts if key[1] and key[1] in users]:
            del self._counts[key]

    def _count(self, key: _Key, most: int, now: float) -> float:
        count, at = self._counts.get(key, (0.0, now))
        return max(0.0, count - (now - at) * most / FAILURES_PERIOD_S)


def _keys(address: str, user: str) -> tuple[tuple[_Key, int], ...]:
    """Return the keys of a login with their maximum: the address, then the pair of address and user."""
    whole = ((address, _WHOLE_ADDRESS), FAILURES_PER_ADDRESS_MAX)
    return (whole, ((address, user[:USERNAME_CHARACTERS_MAX]), FAILURES_PER_USER_MAX)) if user else (whole,)
