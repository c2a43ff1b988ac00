"""Windows in plain Python, one reading at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

Row = dict[str, Any]
SERIES = ("tenant", "gateway", "device", "address", "metric")


def reading(sequence: int, at: datetime, value: float | None, **override: Any) -> Row:
    row: Row = {"tenant": "t", "gateway": "g", "epoch": "e", "device": "d", "address": "a", "metric": "m"}
    row |= {"sequence": sequence, "value": value, "event_time": at, "ingested_at": at, "suspect": False, "unit": None}
    return row | override


def plain(rows: Sequence[Row], width: timedelta) -> dict[tuple[Any, ...], Row]:
    """Compute the same windows row by row."""
    held: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["value"] is not None:
            start = datetime(1, 1, 1, tzinfo=UTC) + (row["event_time"] - datetime(1, 1, 1, tzinfo=UTC)) // width * width
            held.setdefault((*(row[name] for name in SERIES), start), []).append(row)
    return {key: _plain(key, group) for key, group in held.items()}


def _plain(key: tuple[Any, ...], rows: list[Row]) -> Row:
    values, start = sorted(row["value"] for row in rows), key[-1]
    last = max(rows, key=lambda row: (row["event_time"], row["sequence"], row["value"], row["unit"] or ""))
    believed = start >= datetime(2020, 1, 1, tzinfo=UTC)
    return {
        **dict(zip((*SERIES, "window_start"), key, strict=True)),
        "count": len(rows),
        "min": values[0],
        "max": values[-1],
        "sum": pytest.approx(math.fsum(values), rel=1e-9, abs=1e-6),
        "mean": pytest.approx(math.fsum(values) / len(values), rel=1e-9, abs=1e-6),
        "last": last["value"],
        "last_at": last["event_time"],
        "last_sequence": last["sequence"],
        "unit": last["unit"],
        "p50": values[math.ceil(0.5 * len(values)) - 1],
        "p95": values[math.ceil(0.95 * len(values)) - 1],
        "suspect": sum(row["suspect"] for row in rows),
        "revised_at": max(row["ingested_at"] for row in rows),
        "event_date": start.date() if believed else date(1970, 1, 1),
        "event_hour": start.hour if believed else 0,
    }


BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
