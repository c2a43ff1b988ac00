"""Estimate of a link's throughput and answer time from acknowledgements.

As in BBR (draft-ietf-ccwg-bbr, section 4.1): bytes acknowledged between sending a delivery and its answer, divided by
that time. The maximum of recent samples counts, as a link with little traffic shows less than its capacity.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

REMEMBERED_S: Final = 10.0
"""Seconds that a sample counts: after that, a cellular link may have changed."""

SAMPLES_MAX: Final = 256
"""Samples kept; the oldest are dropped."""


class Sent(NamedTuple):
    """State of the estimate when a delivery was sent."""

    at_s: float
    acknowledged_bytes: int
    acknowledged_at_s: float


class LinkRate:
    """Estimate for one link; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._acknowledged_bytes = 0
        self._acknowledged_at_s = 0.0
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=SAMPLES_MAX)
        """(when, bytes a second, seconds to the answer)."""

    def begin(self) -> None:
        """Start over: a new connection may use another link."""
        self._samples.clear()

    def sent(self, now: float, *, idle: bool) -> Sent:
        """Record that a delivery is sent; `idle`: no other one was unsettled."""
        if idle:
            self._acknowledged_at_s = now
        return Sent(now, self._acknowledged_bytes, self._acknowledged_at_s)

    def acknowledged(self, sent: Sent, size: int, now: float) -> None:
        """Record the answer to a delivery of `size` bytes."""
        self._acknowledged_bytes += size
        self._acknowledged_at_s = now
        seconds = now - min(sent.at_s, sent.acknowledged_at_s)
        if seconds > 0:
            self._samples.append((now, (self._acknowledged_bytes - sent.acknowledged_bytes) / seconds, now - sent.at_s))
        while self._samples and self._samples[0][0] < now - REMEMBERED_S:
            self._samples.popleft()

    @property
    def bytes_s(self) -> float:
        """Bytes a second; 0 before the first answer."""
        return max((rate for _, rate, _ in self._samples), default=0.0)

    @property
    def answer_s(self) -> float:
        """Shortest time to an answer; 0 before the first answer."""
        return min((answer for _, _, answer in self._samples), default=0.0)
