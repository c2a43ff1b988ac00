"""Changes of the last day, counted from now."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from spark.report import limits
from spark.report.devices import DeviceHealth
from spark.report.fleet import GatewaySummary
from spark.report.tracks import Anomalies


class Changes(msgspec.Struct):
    """Changes since `since`, in seconds since 1970.

    These are gateways with first data, gateways that fell silent, outages that ended, unusual values, and restarts of
    devices that need a look.
    """

    since: float
    new_gateways: int
    silent_gateways: int
    outages: int
    anomalies: int
    restarts: int


def read(
    members: list[GatewaySummary],
    now: float,
    outages_since: Callable[[float], int],
    found: Anomalies,
    health: DeviceHealth,
) -> Changes | None:
    """Return the changes; None if the lake is younger than the period, because then all of it is new."""
    since = now - limits.CHANGES_S
    # The clock of a gateway may have been at 1970 once: its first data is not that old, nor known to be new.
    first = [at for at in (member.first_at for member in members) if at is not None and at >= limits.PLAUSIBLE_FROM_S]
    if not first or min(first) >= since:
        return None
    silent = [member.silent_s for member in members if member.silent_s is not None]
    boots = [row["last_boot_at"] for row in health.worst if row["last_boot_at"] is not None]
    return Changes(
        since,
        new_gateways=sum(at >= since for at in first),
        silent_gateways=sum(limits.SILENT_S < each <= limits.CHANGES_S for each in silent),
        outages=outages_since(since),
        anomalies=sum(number for second, number in found.hours if second >= since),
        restarts=sum(at >= since for at in boots),
    )
