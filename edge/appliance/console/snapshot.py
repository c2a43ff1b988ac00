"""Short-lived cache of the status with its JSON and metrics.

A status reads every queue and subscription, and its metrics take a millisecond. Without the cache a client that polls
as fast as it can would keep the gateway busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from edge.appliance.console.status import GatewayStatus, StatusSource, status_of

FRESH_S: Final = 0.25
"""Lifetime of a cached status: four a second are enough for a person."""


class StatusCache:
    """Cache of one source of status."""

    def __init__(self, source: StatusSource, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic seconds."""
        self._source = source
        self._clock = clock
        self._taken_at = float("-inf")
        self._status: GatewayStatus = {}
        self._json: bytes | None = None
        self._metrics: bytes | None = None

    @property
    def status(self) -> GatewayStatus:
        """Status, at most `FRESH_S` old."""
        now = self._clock()
        if now - self._taken_at >= FRESH_S:
            self.forget()
            self._status, self._taken_at = status_of(self._source), now
        return self._status

    @property
    def json(self) -> bytes:
        """The status as JSON."""
        status = self.status
        if self._json is None:
            self._json = msgspec.json.encode(status)
        return self._json

    @property
    def metrics(self) -> bytes:
        """The status in Prometheus' text format."""
        status = self.status
        if self._metrics is None:
            from edge.appliance.console.metrics import exposition  # noqa: PLC0415 - 1 MiB, only for scrapes

            self._metrics = exposition(lambda: status)
        return self._metrics

    def forget(self) -> None:
        """Drop the cached status, as it has changed."""
        self._taken_at = float("-inf")
        self._json = self._metrics = None
