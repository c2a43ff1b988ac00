"""What a connector may spend of its link, and when: a rate, a budget for the month, quiet hours, a start of its own.

The live lane may go into debt with the rate, a backlog spends what is there: so a backlog never makes a reading wait. A
budget that is used up stops both until the month (UTC) is over; what a gateway says of itself and its ledger go on.
Sans-I/O: `now` is seconds of a clock that does not go back, `utc_s` seconds since 1970.
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
LOOK_S_MAX: Final = 60.0
"""How soon it is looked again whether hours are quiet, or a month is over: a wall clock may be set."""
BURST_S: Final = 1.0
"""What was not spent of the rate counts for so long."""


class PaceSettings(ResourcePart, frozen=True, kw_only=True):
    """What a connector may send, and when. Without any of it: as the link allows."""

    rate: Live[Bytes | None] = None
    """Bytes a second."""
    monthly_budget: Live[Bytes | None] = None
    """Bytes both ways in a month, UTC, without what TLS, TCP and IP add."""
    quiet_hours: Live[Annotated[str, msgspec.Meta(pattern=HOURS)] | None] = None
    """``22:00-06:00``, UTC: no backlog is sent then."""
    quiet_live: Live[bool] = msgspec.field(default=False, name="quietForLive")
    """What comes waits for the end of the quiet hours as well."""
    start_jitter_s: Live[Seconds] = msgspec.field(default=0.0, name="startJitter")
    """A backlog begins so long after link-up at most; how long, the gateway's name says: so a fleet does not storm."""


class Spent(msgspec.Struct):
    """What has been spent of the budget of a month; kept over restarts."""

    month: str = ""
    """``2026-11``."""
    bytes: int = 0


def month_of(utc_s: float) -> str:
    """As `Spent.month`."""
    return datetime.datetime.fromtimestamp(utc_s, datetime.UTC).strftime("%Y-%m")


class Pacer:
    """A `PaceSettings` as it is kept to."""

    def __init__(
        self, pace: PaceSettings, gateway: str, *, utc_s: Callable[[], float], spent: Spent | None = None
    ) -> None:
        """`spent` is what a former process kept."""
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
        """The link is up."""
        self._starts_at, self._level_at = now + self._jitter_s, now

    def carried(self, size: int) -> None:
        """So many bytes crossed the link, one way or the other."""
        self.spent.bytes += size

    def sent(self, size: int, now: float) -> None:
        """A batch left."""
        if self.pace.rate:
            self._fill(now)
            self._level -= size

    def waits_until(self, lane: BatchLane, size: int, now: float) -> float | None:
        """When to ask again whether this lane may send a batch of about `size` bytes; None: now."""
        if self.is_used_up or self.is_quiet(lane):
            return now + LOOK_S_MAX
        if lane is BatchLane.BACKLOG and now < self._starts_at:
            return self._starts_at
        rate = self.pace.rate
        if not rate:
            return None
        self._fill(now)
        wanted = 0.0 if lane is BatchLane.LIVE else min(float(size), rate * BURST_S)
        return None if self._level >= wanted else now + (wanted - self._level) / rate

    def is_quiet(self, lane: BatchLane) -> bool:
        """The hours are, and this lane keeps to them."""
        if self._quiet is None or (lane is BatchLane.LIVE and not self.pace.quiet_live):
            return False
        first, last = self._quiet
        minute = int(self._utc_s() % DAY_S // 60)
        return first <= minute < last if first <= last else minute >= first or minute < last

    @property
    def used(self) -> float:
        """Share of the month's budget that is spent; 0 without one."""
        return self.spent.bytes / self.pace.monthly_budget if self.pace.monthly_budget else 0.0

    @property
    def is_used_up(self) -> bool:
        """Nothing more is sent this month."""
        return self.used >= 1.0

    def look(self, *, clock_good: bool) -> None:
        """Called every few seconds: a month may be over."""
        self._follow_month(clock_good=clock_good)

    # --- inside -----------------------------------------------------------------------------------------------

    def _follow_month(self, *, clock_good: bool) -> None:
        """A month that is over counts no more. A clock that may be wrong does not take one back that has begun."""
        month = month_of(self._utc_s())
        if month > self.spent.month or (clock_good and month != self.spent.month):
            self.spent.month, self.spent.bytes = month, 0

    def _fill(self, now: float) -> None:
        rate = float(self.pace.rate or 0)
        self._level = min(self._level + (now - self._level_at) * rate, rate * BURST_S)
        self._level_at = now


def _minutes(hours: str | None) -> tuple[int, int] | None:
    """The minutes of the day at which quiet hours begin and end."""
    if hours is None:
        return None
    first, last = ((int(part[:2]) * 60 + int(part[3:])) for part in hours.split("-"))
    return first, last
