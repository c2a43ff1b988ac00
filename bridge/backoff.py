"""How long to wait before the next attempt: exponential, jittered, and patient about calling it cured.

A hub that falls over under its gateways must not be met by all of them in the same second (the jitter), nor every
second by a gateway whose connections are accepted and dropped at once (the reset only after a stable period).
Sans-I/O: `now` (seconds, monotonic) and the source of randomness are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """The three times of a backoff, in seconds, and its factor."""

    first_s: float = 1.0
    limit_s: float = 60.0
    stable_s: float = 30.0
    """A connection must have stood this long before its loss counts as new trouble and not as more of the old."""
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.limit_s and self.stable_s >= 0 and self.factor >= 1):
            raise ValueError(f"not a backoff: {self}")


class Backoff:
    """One peer's backoff: `failed` after every attempt or connection that ended, `connected` when one stands."""

    def __init__(self, policy: BackoffPolicy, random: Callable[[], float]) -> None:
        """`random` returns floats in [0, 1): `random.Random(seed).random` in tests."""
        self._policy = policy
        self._random = random
        self._ceiling_s = policy.first_s
        self._connected_at: float | None = None

    @property
    def ceiling_s(self) -> float:
        """The longest the next wait can be."""
        return self._ceiling_s

    def connected(self, now: float) -> None:
        """The connection stands: its protocol has opened, not merely its socket."""
        self._connected_at = now

    def failed(self, now: float) -> float:
        """The attempt failed or the connection ended; returns the seconds to wait, in (0, limit_s].

        Half of the wait is fixed, so that a retry is never immediate, and half is drawn, so that a thousand gateways
        that lost the same hub come back spread over that half.
        """
        if self._connected_at is not None and now - self._connected_at >= self._policy.stable_s:
            self._ceiling_s = self._policy.first_s
        self._connected_at = None
        ceiling = self._ceiling_s
        self._ceiling_s = min(ceiling * self._policy.factor, self._policy.limit_s)
        return ceiling * (0.5 + 0.5 * self._random())

    def reset(self) -> None:
        """Forget the past: somebody asked for an attempt now."""
        self._ceiling_s = self._policy.first_s
        self._connected_at = None
