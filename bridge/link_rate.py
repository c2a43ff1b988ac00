"""How many bytes a second a link carries, and how soon it answers, by the acknowledgements of what was sent.

As BBR estimates it (draft-ietf-ccwg-bbr, section 4.1): what was acknowledged between the sending and the answer of one
delivery, over that time; of late the highest, as a link with little to carry shows less than it could.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

REMEMBERED_S: Final = 10.0
"""How long a rate, or an answer's time, counts: a cellular link is another one after that."""

SAMPLES_MAX: Final = 256
"""Samples remembered; with more the oldest go."""


class Sent(NamedTuple):
    """What is remembered of a delivery when it is sent."""

    at_s: float
    acknowledged_bytes: int
    acknowledged_at_s: float


class LinkRate:
    """See the module's docstring; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._acknowledged_bytes = 0
        self._acknowledged_at_s = 0.0
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=SAMPLES_MAX)
        """(when, bytes a second, seconds to the answer)."""

    def begin(self) -> None:
        """Another connection, and perhaps another link."""
        self._samples.clear()

    def sent(self, now: float, *, idle: bool) -> Sent:
        """A delivery leaves; `idle`: nothing else was under way."""
        if idle:
            self._acknowledged_at_s = now
        return Sent(now, self._acknowledged_bytes, self._acknowledged_at_s)

    def acknowledged(self, sent: Sent, size: int, now: float) -> None:
        """Its answer has come; `size` bytes were sent."""
        self._acknowledged_bytes += size
        self._acknowledged_at_s = now
        seconds = now - min(sent.at_s, sent.acknowledged_at_s)
        if seconds > 0:
            self._samples.append((now, (self._acknowledged_bytes - sent.acknowledged_bytes) / seconds, now - sent.at_s))
        while self._samples and self._samples[0][0] < now - REMEMBERED_S:
            self._samples.popleft()

    @property
    def bytes_s(self) -> float:
        """0 before anything was acknowledged."""
        return max((rate for _, rate, _ in self._samples), default=0.0)

    @property
    def answer_s(self) -> float:
        """The shortest time an answer took; 0 before anything was acknowledged."""
        return min((answer for _, _, answer in self._samples), default=0.0)
