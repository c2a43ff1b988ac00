"""readings, detector_states -> anomalies and the states after them: each series in the order of its event times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.detector.series import Stopped, judge
from spark.transforms.times import kept_under

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERIES = schemas.DETECTOR_STATES.keys
FOLD = {
    "state": "new.state",
    "last_at": "greatest(old.last_at, new.last_at)",
    "judged": "old.judged + new.judged",
    "late": "old.late + new.late",
}
"""How the state of a series and that after further readings become one."""
_VALUES = ("event_time", "sequence", "value", "ingested_at")
_TIME = pa.timestamp("us", "UTC")
_FIELDS: tuple[tuple[str, str, pa.DataType], ...] = (
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
"""Of an anomaly and of a state, for Spark and for Arrow."""
_SCHEMA = pa.schema([(name, kind) for name, _, kind in _FIELDS])
_SQL = ", ".join(f"{name} {kind}" for name, kind, _ in _FIELDS)


def judged(readings: DataFrame, states: DataFrame, tasks: int) -> DataFrame:
    """Anomalies of `readings`, and one more row a series with the state after them; `score` is null in that.

    Readings without a number, those whose event time is not to be believed, and numbers that only say which reading it
    is (`spark.detector.numbering`) are not judged. `tasks`: into how many the series are divided.
    """
    values = readings.where(F.col("value").isNotNull() & ~F.col("suspect")).select(*SERIES, *_VALUES)
    series, known = (rows.repartition(tasks, *SERIES).groupBy(*SERIES) for rows in (values, states))
    return series.cogroup(known).applyInArrow(_judge, _SQL)


def anomalies(judged_: DataFrame) -> DataFrame:
    """As table `anomalies` has them."""
    rows = judged_.where(F.col("score").isNotNull()).withColumn("event_date", kept_under("event_time"))
    return rows.select(*schemas.ANOMALIES.columns.names)


def states(judged_: DataFrame) -> DataFrame:
    """As table `detector_states` has them, of the series of these readings."""
    return judged_.where(F.col("score").isNull()).select(*schemas.DETECTOR_STATES.columns.names)


def _judge(series: tuple[pa.Scalar[Any], ...], readings: pa.Table, states_: pa.Table) -> pa.Table:
    if not readings.num_rows:
        return _SCHEMA.empty_table()
    names = {name: part.as_py() for name, part in zip(SERIES, series, strict=True)}
    rows = readings.sort_by([("event_time", "ascending"), ("sequence", "ascending")])
    found = judge(names["metric"], _us(rows["event_time"]), rows["value"].to_numpy(), _stopped(states_))
    reported = rows.take(pa.array(found.anomalies, pa.int64())).to_pylist()
    reported = [row | each._asdict() for row, each in zip(reported, found.anomalies.values(), strict=True)]
    after = {
        "state": found.stopped.state,
        "last_at": pa.scalar(found.stopped.last_us, _TIME),
        "judged": found.judged,
        "late": found.late,
    }
    return pa.Table.from_pylist([row | names for row in [*reported, after]], _SCHEMA)


def _stopped(states_: pa.Table) -> Stopped | None:
    """Where a series stopped, if it is known."""
    if not states_.num_rows:
        return None
    return Stopped(states_["state"][0].as_py(), int(_us(states_["last_at"])[0]))


def _us(column: pa.ChunkedArray) -> Any:
    return column.cast(_TIME).cast(pa.int64()).to_numpy()
