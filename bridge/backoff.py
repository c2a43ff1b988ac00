"""Exponential backoff with jitter between connection attempts.

Jitter keeps a fleet from reconnecting to a restarted hub in the same second. The backoff is reset only after a stable
period, so a peer that accepts and drops connections at once is not dialled every second. Sans-I/O: `now` (seconds,
monotonic) and the source of randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Times of a backoff, in seconds, and its factor."""

    first_s: float = 1.0
    limit_s: float = 60.0
    stable_s: float = 30.0
    """A connection must have lasted this long to reset the backoff."""
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.limit_s and self.stable_s >= 0 and self.factor >= 1):
            raise ValueError(f"not a backoff: {self}")


class Backoff:
    """Backoff of one peer: call `connected` when a connection is up, `failed` after each attempt or lost connection."""

    def __init__(self, policy: BackoffPolicy, random: Callable[[], float]) -> None:
        """`random` returns floats in [0, 1): `random.Random(seed).random` in tests."""
        self._policy = policy
        self._random = random
        self._ceiling_s = policy.first_s
        self._connected_at: float | None = None

    @property
    def ceiling_s(self) -> float:
        """Upper bound of the next wait."""
        return self._ceiling_s

    def connected(self, now: float) -> None:
        """Record that the connection is up: its protocol has opened, not merely its socket."""
        self._connected_at = now

    def failed(self, now: float) -> float:
        """Record a failed attempt or a lost connection; return the seconds to wait, in (0, limit_s].

        Half of the wait is fixed, so that a retry is never immediate. Half is random, so that a thousand gateways that
        lost the same hub reconnect spread over that half.
        """
        if self._connected_at is not None and now - self._connected_at >= self._policy.stable_s:
            self._ceiling_s = self._policy.first_s
        self._connected_at = None
        ceiling = self._ceiling_s
        self._ceiling_s = min(ceiling * self._policy.factor, self._policy.limit_s)
        return ceiling * (0.5 + 0.5 * self._random())

    def reset(self) -> None:
        """Reset to the first wait: an operator requested an attempt now."""
        self._ceiling_s = self._policy.first_s
        self._connected_at = None
