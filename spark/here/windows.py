"""Windows of a minute, an hour, a day, made in this process, column by column: what `spark.transforms.rollups` makes
of rows.

Spark takes a row at a time, and an object for each sketch: that is some 5 us of processor time a reading, where columns
take a twentieth. Both make the same windows; a property test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.here import sketches
from spark.here.groups import Groups, Numbers, key, numbers
from spark.here.times import TIME, hour_kept_under, kept_under

SERIES: Final = ("tenant", "gateway", "device", "address", "metric")
READING: Final = (*SERIES, "event_time", "sequence", "value", "suspect", "ingested_at")
"""Columns of readings that windows are made of."""


def of_readings(readings: pa.Table, width_us: int) -> pa.Table:
    """One row per series and window that has a numeric reading, with the columns of the rollup tables."""
    if readings["value"].null_count:
        readings = readings.filter(pc.is_valid(readings["value"]))
    at, sequence, value = (numbers(readings[name]) for name in ("event_time", "sequence", "value"))
    groups = Groups(key(readings, SERIES, at // width_us))
    newest = groups.newest(at, sequence, value)
    values, starts = groups.ascending(value)
    counts = groups.counts
    made = sketches.of(values, starts, counts)
    columns = {
        "count": counts,
        "min": values[starts],
        "max": values[starts + counts - 1],
        "sum": groups.sum(value),
        "last": value[newest],
        "last_at": at[newest],
        "last_sequence": sequence[newest],
        "suspect": groups.sum(numbers(readings["suspect"]).astype(np.int64)),
        "revised_at": groups.greatest(numbers(readings["ingested_at"])),
    }
    quantiles = sketches.quantiles_of(values, starts, counts, made)
    window_start = (at[groups.first] // width_us) * width_us
    return _table(readings, groups, window_start, columns, made, quantiles)


def combined(windows: pa.Table, width_us: int) -> pa.Table:
    """Windows of one series and one width, which are of different readings, made one; wider ones by a larger width."""
    start, last, last_at, last_sequence = (
        numbers(windows[name]) for name in ("window_start", "last", "last_at", "last_sequence")
    )
    groups = Groups(key(windows, SERIES, start // width_us))
    newest = groups.newest(last_at, last_sequence, last)
    columns = {
        "count": groups.sum(numbers(windows["count"])),
        "min": groups.least(numbers(windows["min"])),
        "max": groups.greatest(numbers(windows["max"])),
        "sum": groups.sum(numbers(windows["sum"])),
        "last": last[newest],
        "last_at": last_at[newest],
        "last_sequence": last_sequence[newest],
        "suspect": groups.sum(numbers(windows["suspect"])),
        "revised_at": groups.greatest(numbers(windows["revised_at"])),
    }
    known = [numbers(windows[name]) for name in ("p50", "p95")]
    made, quantiles = sketches.combined(windows["sketch"].combine_chunks(), known, groups)
    return _table(windows, groups, (start[groups.first] // width_us) * width_us, columns, made, quantiles)


def _table(
    rows: pa.Table,
    groups: Groups,
    window_start: Numbers,
    columns: Mapping[str, Numbers],
    made: pa.Array,
    quantiles: list[Numbers],
) -> pa.Table:
    found = {name: pa.array(column) for name, column in columns.items()}
    for name in ("last_at", "revised_at"):
        found[name] = found[name].cast(TIME)
    return pa.table(
        {
            **{name: rows[name].take(groups.first) for name in SERIES},
            "window_start": pa.array(window_start).cast(TIME),
            **found,
            "mean": pa.array(columns["sum"] / columns["count"]),
            "p50": pa.array(quantiles[0]),
            "p95": pa.array(quantiles[1]),
            "sketch": made,
            "event_date": kept_under(window_start),
            "event_hour": hour_kept_under(window_start),
        }
    )
