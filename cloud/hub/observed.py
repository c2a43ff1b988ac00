"""Observations of a gateway by its hub, as the registry keeps them, and the figures by which a fleet is ordered and
searched. Pure.

The observations are JSON. A database cannot order gateways by them, so the figures are columns too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from cloud.hub.version_rank import UNRANKED, rank_version

NO_TIME_US: Final = 1 << 62
"""Time in the place of an unknown one: after all others. UTC microseconds of any calendar are far below."""
RECENT_US: Final = 60 * 1_000_000
"""Age up to which the oldest waiting message of a gateway does not count as old: it changes with each report of a
gateway that sends, and each change of an ordered column is a change of its indexes too."""
ROOM_HOURS_MAX: Final = 1_000_000.0
"""Hours of room beyond which a report counts as this many: a century."""
ROOM_STEP: Final = 0.05
"""Share of the room by which the end of the room has to move before it is written: estimates differ a little in each
report."""
ROOM_STEP_US_MIN: Final = 60 * 1_000_000
"""Smallest such step."""


class ObservedState(msgspec.Struct, frozen=True):
    """Observations of a gateway by its hub, as the registry keeps them for other hubs and for the next start."""

    status: dict[str, Any] | None = None
    newest_received_at: int = 0
    dropped: int = 0


def decode_observed(text: str) -> ObservedState | None:
    """Decode observations in the registry; return None for those of a newer program."""
    try:
        return msgspec.json.decode(text, type=ObservedState)
    except msgspec.DecodeError:
        return None


class DangerFigures(NamedTuple):
    """Figures that order a fleet by danger, and its version. Times are UTC microseconds, `NO_TIME_US` if unknown."""

    refusing: bool = False
    """The card is full."""
    oldest_at: int = NO_TIME_US
    """Arrival of the oldest waiting message; unknown for one younger than `RECENT_US`."""
    full_at: int = NO_TIME_US
    """Time at which the card is full if nothing is sent."""
    waiting: int = 0
    """Waiting messages."""
    room_step_us: int = ROOM_STEP_US_MIN
    """Move of `full_at` that is not worth a write."""
    version: str | None = None
    """Version of its program."""
    version_rank: int = UNRANKED
    """Order of that version (`cloud.hub.version_rank`)."""

    @property
    def kind(self) -> tuple[bool, bool]:
        """Return what conditions depend on: whether it refuses messages, and whether some have waited for long."""
        return self.refusing, self.oldest_at < NO_TIME_US


class _Status(msgspec.Struct):
    reported_at: int | None = None
    backlog_messages: int | None = None
    backlog_oldest_at: int | None = None
    room_hours: float | None = None
    version: str | None = None


class _Observed(msgspec.Struct):
    status: _Status | None = None


_decode: Final = msgspec.json.Decoder(_Observed).decode


def danger_of(observed: str | None) -> DangerFigures:
    """Return the figures of observations, JSON; of those of a newer program that cannot be read, nothing is known."""
    try:
        status = _decode(observed).status if observed is not None else None
    except msgspec.DecodeError:
        status = None
    return _figures(status) if status is not None else DangerFigures()


def danger_of_status(status: Mapping[str, Any] | None) -> DangerFigures:
    """Return the figures of a status; of that of a newer program that cannot be read, nothing is known."""
    try:
        return _figures(msgspec.convert(status, _Status)) if status is not None else DangerFigures()
    except msgspec.ValidationError:
        return DangerFigures()


def _figures(status: _Status) -> DangerFigures:
    reported_us, oldest_us = _microseconds(status.reported_at), _microseconds(status.backlog_oldest_at)
    if not oldest_us or reported_us - oldest_us < RECENT_US:
        oldest_us = NO_TIME_US
    full_us, step_us = NO_TIME_US, ROOM_STEP_US_MIN
    if status.room_hours is not None:
        room_us = int(min(max(0.0, status.room_hours), ROOM_HOURS_MAX) * 3.6e9)
        full_us = min(reported_us + room_us, NO_TIME_US - 1)
        step_us = max(ROOM_STEP_US_MIN, int(ROOM_STEP * room_us))
    waiting = min(max(0, status.backlog_messages or 0), NO_TIME_US)
    refusing, version = status.room_hours == 0, status.version
    return DangerFigures(refusing, oldest_us, full_us, waiting, step_us, version, rank_version(version))


def _microseconds(milliseconds: int | None) -> int:
    return min(max(0, milliseconds or 0) * 1_000, NO_TIME_US - 1)
