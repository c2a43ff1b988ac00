"""Pacing of a connector: rate limit, monthly budget, quiet hours, and a staggered start.

The live lane may overdraw the rate; a backlog spends only what is left, so it never delays a reading. A used-up budget
stops both lanes until the end of the month (UTC); status, manifests and ledger are still sent. Sans-I/O: `now` is
seconds of a monotonic clock, `utc_s` seconds since 1970.
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from bridge.lane import BatchLane
from bridge.resources.fields import Bytes, Live, ResourcePart, Seconds

HOURS: Final = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"
DAY_S: Final = 86_400
CHECK_INTERVAL_S_MAX: Final = 60.0
"""Longest interval between checks of quiet hours and month: the wall clock may be set."""
BURST_S: Final = 1.0
"""Seconds of unused rate that may be spent at once (token bucket)."""


class PaceSettings(ResourcePart, frozen=True, kw_only=True):
    """Limits on the amount and the time of sending, for one connector. Unset fields do not limit."""

    rate: Live[Bytes | None] = None
    """Bytes a second."""
    monthly_budget: Live[Bytes | None] = None
    """Bytes in both directions in a month, UTC, without the overhead of TLS, TCP and IP."""
    quiet_hours: Live[Annotated[str, msgspec.Meta(pattern=HOURS)] | None] = None
    """Hours without backlog traffic, UTC: ``22:00-06:00``."""
    quiet_live: Live[bool] = msgspec.field(default=False, name="quietForLive")
    """Live messages wait for the end of the quiet hours, too."""
    start_jitter_s: Live[Seconds] = msgspec.field(default=0.0, name="startJitter")
    """Longest delay of a backlog after link-up. The delay follows from the gateway's name, which spreads a fleet."""


class Spent(msgspec.Struct):
    """Used part of the budget of a month; kept over restarts."""

    month: str = ""
    """Month as ``2026-11``."""
    bytes: int = 0


def month_of(utc_s: float) -> str:
    """Return the month of a time, in the form of `Spent.month`."""
    return datetime.datetime.fromtimestamp(utc_s, datetime.UTC).strftime("%Y-%m")


class Pacer:
    """Applies `PaceSettings` to the traffic of a connector."""

    def __init__(
        self, pace: PaceSettings, gateway: str, *, utc_s: Callable[[], float], spent: Spent | None = None
    ) -> None:
        """`spent`: saved by the previous process."""
        self.pace: Final = pace
        self.spent: Final = spent or Spent()
        self._utc_s = utc_s
        self._jitter_s = zlib.crc32(gateway.encode()) / 2**32 * pace.start_jitter_s
        self._quiet = _minutes(pace.quiet_hours)
        self._starts_at = 0.0
        self._level = float(pace.rate or 0) * BURST_S
        self._level_at = 0.0
        self._follow_month(clock_good=False)

    def begin(self, now: float) -> None:
        """Record that the link is up."""
        self._starts_at, self._level_at = now + self._jitter_s, now

    def count_bytes(self, size: int) -> None:
        """Count bytes that crossed the link in either direction."""
        self.spent.bytes += size

    def sent(self, size: int, now: float) -> None:
        """Count a batch that was sent."""
        if self.pace.rate:
            self._fill(now)
            self._level -= size

    def waits_until(self, lane: BatchLane, size: int, now: float) -> float | None:
        """Return None when this lane may send a batch of about `size` bytes now, else the time to ask again."""
        if self.is_used_up or self.is_quiet(lane):
            return now + CHECK_INTERVAL_S_MAX
        if lane is BatchLane.BACKLOG and now < self._starts_at:
            return self._starts_at
        rate = self.pace.rate
        if not rate:
            return None
        self._fill(now)
        wanted = 0.0 if lane is BatchLane.LIVE else min(float(size), rate * BURST_S)
        return None if self._level >= wanted else now + (wanted - self._level) / rate

    def is_quiet(self, lane: BatchLane) -> bool:
        """Return True in quiet hours that apply to this lane."""
        if self._quiet is None or (lane is BatchLane.LIVE and not self.pace.quiet_live):
            return False
        first, last = self._quiet
        minute = int(self._utc_s() % DAY_S // 60)
        return first <= minute < last if first <= last else minute >= first or minute < last

    @property
    def used(self) -> float:
        """Used share of the month's budget; 0 without a budget."""
        return self.spent.bytes / self.pace.monthly_budget if self.pace.monthly_budget else 0.0

    @property
    def is_used_up(self) -> bool:
        """True when the budget is used up: nothing more is sent this month."""
        return self.used >= 1.0

    def check_month(self, *, clock_good: bool) -> None:
        """Check whether the month is over. Call it every few seconds."""
        self._follow_month(clock_good=clock_good)

    # --- inside -----------------------------------------------------------------------------------------------

    def _follow_month(self, *, clock_good: bool) -> None:
        """Reset the counter when the month changes. A clock that may be wrong cannot go back to an earlier month."""
        month = month_of(self._utc_s())
        if month > self.spent.month or (clock_good and month != self.spent.month):
            self.spent.month, self.spent.bytes = month, 0

    def _fill(self, now: float) -> None:
        rate = float(self.pace.rate or 0)
        self._level = min(self._level + (now - self._level_at) * rate, rate * BURST_S)
        self._level_at = now


def _minutes(hours: str | None) -> tuple[int, int] | None:
    """Return the minutes of the day at which quiet hours begin and end."""
    if hours is None:
        return None
    first, last = ((int(part[:2]) * 60 + int(part[3:])) for part in hours.split("-"))
    return first, last
