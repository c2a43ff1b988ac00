"""Tables of analytics for the pages of a hub: a week of a pump with two unusual values, delays, an outage, a gap."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.spark import gold

HOURS = 7 * 24
UNUSUAL = (30, 90)
"""Hours before now with an unusual value."""
HOSTILE = "<img src=x onerror=alert(1)>\u202etxt"


def fill(lake: Path, gateway: str = "north-hall", *, hostile: bool = True) -> None:
    """Write the tables of one gateway, up to this hour. `hostile`: also of a device named `HOSTILE`."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    names: dict[str, Any] = {
        "gateway": gateway,
        "device": "pump7",
        "address": "plant/pump7/temp",
        "metric": "temperature",
    }
    hours = [now - timedelta(hours=before) for before in range(HOURS)]
    rows = [_window(at, number, **names, unit="°C") for number, at in enumerate(hours) if not 50 <= number < 56]
    others = [_window(hours[0], 0, **{**names, "device": HOSTILE, "metric": HOSTILE})] if hostile else []
    gold.put(lake, "rollup_1h", *rows, *others)
    gold.put(lake, "rollup_1m", *rows, *others)
    gold.put(lake, "rollup_1d", *rows[::24], *others)
    unusual = [
        gold.anomaly(
            0, 34.5, event_time=hours[each], event_date=hours[each].date(), sequence=each, expected=21.3, **names
        )
        for each in UNUSUAL
    ]
    gold.put(lake, "anomalies", *unusual)
    fresh = {"gateway": gateway, **dict.fromkeys(("first_event_time", "last_event_time", "last_ingested_at"), now)}
    gold.put(lake, "gateway_freshness", gold.fresh(None, **fresh), gold.fresh("pump7", **fresh))
    slo = [gold.slo(3_600, at, gateway=gateway, p95_s=2.0 + math.sin(number / 7)) for number, at in enumerate(hours)]
    gold.put(lake, "delivery_slo", *slo)
    began = now - timedelta(hours=20)
    cut = {"began": began, "until": began + timedelta(hours=3), "drain_began": began + timedelta(hours=3)}
    drained = cut["until"] + timedelta(seconds=100)
    gold.put(lake, "outages", gold.outage(0, 1, 2, gateway=gateway, messages=1_200) | cut | {"drained": drained})
    gold.put(lake, "device_health", gold.device("pump7", gateway=gateway, battery=71.0, battery_per_day=-0.4))
    gap = {"missing": 7, "explained": False, "reason": None, "first_sequence": 100, "last_sequence": 106}
    gold.put(lake, "gaps", gold.address(gateway=gateway, **gap))
    gold.put(lake, "completeness_hourly", *(_hour(at, gateway, number) for number, at in enumerate(hours)))


def _window(at: datetime, number: int, **more: Any) -> dict[str, Any]:
    mean = 21 + 2 * math.sin(2 * math.pi * at.hour / 24) + (13 if number in UNUSUAL else 0)
    times = {"window_start": at, "last_at": at, "revised_at": at, "event_date": at.date(), "event_hour": at.hour}
    return gold.window(0, mean - 0.8, mean + 0.8, **times, **more)


def _hour(at: datetime, gateway: str, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"tenant": "default", "gateway": gateway, "epoch": "e1", "address": "plant", "hour": at}
    row |= {
        "first_sequence": 1_000 * number,
        "last_sequence": 1_000 * number + 999,
        "accepted": 1_000,
        "given_up": "{}",
    }
    return row | {
        "landed": 993 if number == 40 else 1_000,
        "waiting": 0,
        "unexplained": 7 * (number == 40),
        "settled": True,
    }
