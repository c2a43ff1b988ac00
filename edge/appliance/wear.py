"""Wear of the card: bytes written so far, rates, and the days left of its rated endurance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from edge.broker.store.wear import HOUR_S, WearTotals
from edge.output.amounts import counted, size, span

DAY_S: Final = 24 * HOUR_S
WINDOWS_S: Final = {"hour": HOUR_S, "day": DAY_S, "week": 7 * DAY_S}
"""Windows for rates, in seconds of running."""
RATE_SPAN_S_MIN: Final = 600.0
"""Shortest time for a rate: the writes of a start-up alone say nothing about a day."""
MANY_WRITTEN_PER_BYTE: Final = 30.0
"""Bytes the gateway writes per byte of messages: a small message with a sync of its own costs about 70."""
FEW_PAYLOAD_BYTES_S: Final = 20_000.0
"""With more than this the messages share their commits anyway."""


class Outlook(msgspec.Struct, kw_only=True):
    """Wear of the card, from the totals of `edge.broker.store.wear.WearTotals`; None: not known."""

    device: str | None = None
    """Name of the block device the store is on."""
    running_s: float
    payload_bytes: int
    process_bytes: int | None
    device_bytes: int | None
    written_per_payload_byte: float | None
    """Bytes that the gateway's process writes per byte of bodies."""
    bytes_per_day: dict[str, float]
    """Bytes written to the device in a day of running, by window; those of the process where the device is not known.
    Empty when the gateway has not run for long enough."""
    own_bytes_per_day: dict[str, float] = {}
    """Bytes written by the gateway's process in a day of running, by window."""
    endurance_bytes: float | None = None
    """Rated endurance of the device: ``spec.storage.enduranceTerabytes`` of the Gateway resource."""
    used: float | None = None
    """Used share of its life, from 0 to 1: the larger of the counted share and the one that the device reports."""
    days_left: float | None = None
    """Days of running until its endurance is used up, at the higher rate of the last day and the last week; None: not
    known, or never."""


def outlook(
    now: WearTotals,
    rows: Sequence[WearTotals],
    *,
    endurance_bytes: float | None = None,
    life_used: float | None = None,
    device: str | None = None,
) -> Outlook:
    """Return the wear and its outlook. `rows`: earlier totals, oldest first. `life_used`: as the device reports."""
    written, own, payload = _written(now), now.process_bytes, now.payload_bytes
    rates = {name: rate for name, window_s in WINDOWS_S.items() if (rate := _rate(now, rows, window_s)) is not None}
    alone, own_rows = _own(now), [_own(row) for row in rows]
    own_rates = {
        name: each for name, span_s in WINDOWS_S.items() if (each := _rate(alone, own_rows, span_s)) is not None
    }
    counted = written / endurance_bytes if endurance_bytes else None
    known = [share for share in (counted, life_used) if share is not None]
    used = max(known) if known else None
    pace = max((rates[name] for name in ("day", "week") if name in rates), default=0.0)
    left = None
    if endurance_bytes and used is not None and (pace or used >= 1):
        left = max(0.0, (1 - used) * endurance_bytes) / pace if used < 1 else 0.0
    return Outlook(
        device=device,
        running_s=now.seconds,
        payload_bytes=payload,
        process_bytes=own or None,
        device_bytes=now.device_bytes or None,
        written_per_payload_byte=own / payload if own and payload else None,
        bytes_per_day=rates,
        own_bytes_per_day=own_rates,
        endurance_bytes=endurance_bytes,
        used=used,
        days_left=left,
    )


def _written(totals: WearTotals) -> int:
    return totals.device_bytes or totals.process_bytes


def _own(totals: WearTotals) -> WearTotals:
    """Return the totals without the writes of other programs."""
    return totals._replace(device_bytes=0)


def _rate(now: WearTotals, rows: Sequence[WearTotals], window_s: float) -> float | None:
    """Return bytes a day since the newest row that is at least as old as the window, or since the first row."""
    if not _written(now):
        return None
    start = WearTotals() if not rows or rows[0].seconds < HOUR_S else rows[0]
    for row in rows:
        if row.seconds <= now.seconds - window_s:
            start = row
    seconds = now.seconds - start.seconds
    if seconds < RATE_SPAN_S_MIN:
        return None
    if start.seconds and not (now.device_bytes and start.device_bytes):  # the device is or was unknown
        return max(0, now.process_bytes - start.process_bytes) / seconds * DAY_S
    return max(0, _written(now) - _written(start)) / seconds * DAY_S


def written_line(seen: Outlook) -> str:
    """Format the bytes written for people: by the gateway first, then by all programs."""
    device, own = seen.device_bytes, seen.process_bytes
    if device is None and own is None:
        return "not known: the kernel does not report it"
    parts = []
    if own is not None:
        factor = seen.written_per_payload_byte
        ratio = "" if factor is None else f", {factor:.1f} bytes written per byte of messages"
        parts.append(f"{size(own)} by the gateway{ratio}")
    if device is not None:
        parts.append(f"{size(device)} to {_disk(seen)} by all programs")
    return f"{'; '.join(parts)}; in {span(seen.running_s)} of running"


def lasting_line(seen: Outlook) -> str:
    """Format rates and remaining life for people: the gateway's rate first, then that of all programs."""
    parts = []
    if seen.own_bytes_per_day:
        parts.append(f"{_pace(seen.own_bytes_per_day)} a day by the gateway")
    if seen.device_bytes is not None and seen.bytes_per_day:
        parts.append(f"{_pace(seen.bytes_per_day)} a day to {_disk(seen)} by all programs")
    pace = "; ".join(parts) or "running too short a time to tell the rate"
    if seen.endurance_bytes is None:
        used = "" if seen.used is None else f", {seen.used:.0%} of its life used, as the device reports"
        return f"{pace}{used}; set spec.storage.enduranceTerabytes of the Gateway resource to know for how long"
    of = f"{seen.used or 0:.1%} of {size(seen.endurance_bytes)} used"
    if seen.used is not None and seen.used >= 1:
        return f"{pace}; {of}: its rated endurance is exceeded"
    if seen.days_left is None:
        return f"{pace}; {of}"
    return f"{pace}; {of}, {counted(round(seen.days_left), 'day')} left"


def advice(seen: Outlook) -> str | None:
    """Return advice that reduces the wear; None without any, or when it is too early to judge."""
    factor = seen.written_per_payload_byte
    if factor is None or factor < MANY_WRITTEN_PER_BYTE or seen.running_s < RATE_SPAN_S_MIN:
        return None
    if seen.payload_bytes / seen.running_s > FEW_PAYLOAD_BYTES_S:
        return None
    return (
        f"{factor:.0f} bytes are written per byte of messages, as each message is synced alone: set "
        "`durability: batch:100` at addresses where senders can wait 100 ms for the acknowledgement; it writes far less"
    )


def _pace(rates: dict[str, float]) -> str:
    return ", ".join(f"{size(rate)} (last {name})" for name, rate in rates.items())


def _disk(seen: Outlook) -> str:
    return f"the whole disk {seen.device}" if seen.device else "the whole disk"
