"""In which order the endpoints of a peer are tried: as they are configured, the first preferred, but not blindly.

A firewall that drops packets without a word makes an attempt at the preferred endpoint last until its timeout. So that
not every reconnect pays for that, a round of attempts begins with the endpoint that gave the last link, until that one
fails, or until the preferred one has not been tried for a while. Sans-I/O: `now` (seconds, monotonic) is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from bridge.limits import PREFERRED_ENDPOINT_AGAIN_S

E = TypeVar("E")


class EndpointOrder(Generic[E]):
    """One peer's endpoints: `order` before a round of attempts, `connected` or `failed` after each attempt."""

    def __init__(self, endpoints: Sequence[E]) -> None:
        """`endpoints`: as configured, one at least."""
        if not endpoints:
            raise ValueError("a connector needs an endpoint")
        self._configured = tuple(endpoints)
        self._last: E | None = None
        """What gave the last link, and has not failed since."""
        self._preferred_failed_at = 0.0

    def order(self, now: float) -> list[E]:
        """All of them, in the order they are tried now."""
        last = self._last
        if last is None or now - self._preferred_failed_at >= PREFERRED_ENDPOINT_AGAIN_S:
            return list(self._configured)
        return [last, *(endpoint for endpoint in self._configured if endpoint != last)]

    def connected(self, endpoint: E) -> None:
        """An attempt at it came up, whatever became of its connection then."""
        self._last = endpoint if endpoint != self._configured[0] else None

    def failed(self, endpoint: E, now: float) -> None:
        """An attempt at it came to nothing."""
        if endpoint == self._configured[0]:
            self._preferred_failed_at = now
        if endpoint == self._last:
            self._last = None

    def reset(self) -> None:
        """Forget the past: somebody asked for an attempt now."""
        self._last = None
