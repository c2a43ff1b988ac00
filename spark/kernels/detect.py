"""Judge values of one series with its detector, continuing from its last state."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from spark.detector.series import SeriesProgress, judge_values

SERIES: Final = ("tenant", "gateway", "device", "address", "metric")
"""Key of a series."""
VALUES: Final = ("event_time", "sequence", "value", "ingested_at")
"""Columns of readings that are judged, in addition to those of the series."""
_TIME: Final = pa.timestamp("us", "UTC")
_FIELDS: Final[tuple[tuple[str, str, pa.DataType], ...]] = (
    *((name, "string", pa.string()) for name in SERIES),
    ("event_time", "timestamp", _TIME),
    ("sequence", "bigint", pa.int64()),
    ("value", "double", pa.float64()),
    ("ingested_at", "timestamp", _TIME),
    ("score", "double", pa.float64()),
    ("rule", "string", pa.string()),
    ("expected", "double", pa.float64()),
    ("state", "binary", pa.binary()),
    ("last_at", "timestamp", _TIME),
    ("judged", "bigint", pa.int64()),
    ("late", "bigint", pa.int64()),
)
"""Columns of an anomaly and of a state, for Spark and for Arrow."""
_SCHEMA: Final = pa.schema([(name, kind) for name, _, kind in _FIELDS])
SQL: Final = ", ".join(f"{name} {kind}" for name, kind, _ in _FIELDS)


def judge_series(series: tuple[pa.Scalar[Any], ...], readings: pa.Table, states_: pa.Table) -> pa.Table:
    """Return the anomalies among the readings of one series, and one more row with its state after them.

    `states_`: its previous state, or no row. A series without readings gives no row.
    """
    if not readings.num_rows:
        return _SCHEMA.empty_table()
    names = {name: part.as_py() for name, part in zip(SERIES, series, strict=True)}
    rows = readings.sort_by([("event_time", "ascending"), ("sequence", "ascending")])
    found = judge_values(names["metric"], _us(rows["event_time"]), rows["value"].to_numpy(), _read_progress(states_))
    reported = rows.take(pa.array(found.anomalies, pa.int64())).to_pylist()
    reported = [row | each._asdict() for row, each in zip(reported, found.anomalies.values(), strict=True)]
    after = {
        "state": found.stopped.state,
        "last_at": pa.scalar(found.stopped.last_us, _TIME),
        "judged": found.judged,
        "late": found.late,
    }
    return pa.Table.from_pylist([row | names for row in [*reported, after]], _SCHEMA)


def _read_progress(states_: pa.Table) -> SeriesProgress | None:
    """Return where a series stopped, if known."""
    if not states_.num_rows:
        return None
    return SeriesProgress(states_["state"][0].as_py(), int(_us(states_["last_at"])[0]))


def _us(column: pa.ChunkedArray) -> Any:
    return column.cast(_TIME).cast(pa.int64()).to_numpy()
