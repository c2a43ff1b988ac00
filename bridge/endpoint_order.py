"""Order of attempts at the endpoints of a peer: as configured, the first preferred, the last working one remembered.

A firewall that drops packets silently makes an attempt at the preferred endpoint last until its timeout. So a round of
attempts starts with the endpoint of the last connection, until that one fails, or until the preferred one has not been
tried for `PREFERRED_ENDPOINT_AGAIN_S`. Sans-I/O: `now` (seconds, monotonic) is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from bridge.limits import PREFERRED_ENDPOINT_AGAIN_S

E = TypeVar("E")


class EndpointOrder(Generic[E]):
    """One peer's endpoints: `order` before a round of attempts, `connected` or `failed` after each attempt."""

    def __init__(self, endpoints: Sequence[E]) -> None:
        """`endpoints`: as configured, at least one."""
        if not endpoints:
            raise ValueError("a connector needs an endpoint")
        self._configured = tuple(endpoints)
        self._last: E | None = None
        """Endpoint of the last connection, unless it is the preferred one or has failed since."""
        self._preferred_failed_at = 0.0

    def order(self, now: float) -> list[E]:
        """Return all endpoints, in the order of the next attempts."""
        last = self._last
        if last is None or now - self._preferred_failed_at >= PREFERRED_ENDPOINT_AGAIN_S:
            return list(self._configured)
        return [last, *(endpoint for endpoint in self._configured if endpoint != last)]

    def connected(self, endpoint: E) -> None:
        """Record that an attempt came up; the end of its connection does not matter."""
        self._last = endpoint if endpoint != self._configured[0] else None

    def failed(self, endpoint: E, now: float) -> None:
        """Record that an attempt failed."""
        if endpoint == self._configured[0]:
            self._preferred_failed_at = now
        if endpoint == self._last:
            self._last = None

    def reset(self) -> None:
        """Start again with the preferred endpoint: an operator requested an attempt now."""
        self._last = None
