"""readings, detector_states -> anomalies and the states after them: each series in the order of its event times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.detector import numbering
from spark.detector.detector import REPORTED, Detector
from spark.detector.numbering import Numbering
from spark.detector.state import StateError, dumps, loads
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
    state, last = _known(names["metric"], states_.to_pylist())
    rows = readings.sort_by([("event_time", "ascending"), ("sequence", "ascending")])
    timely = rows if last is None else rows.filter(pc.greater_equal(rows["event_time"], last))
    values, times_s = timely["value"].to_numpy(), timely["event_time"].cast(_TIME).cast(pa.int64()).to_numpy() / 1e6
    begin = 0
    if isinstance(state, Numbering):
        begin = state.take(values.tolist())
        if begin < len(values):
            state = Detector()
    found: list[dict[str, Any]] = []
    if isinstance(state, Detector):
        findings = state.judge(times_s[begin:], values[begin:])
        places = np.flatnonzero(findings.scores >= REPORTED).tolist()
        reported = timely.take(pa.array([begin + place for place in places], pa.int64())).to_pylist()
        found = [row | findings[place]._asdict() for row, place in zip(reported, places, strict=True)]
    after = {
        "state": dumps(state),
        "last_at": timely["event_time"][-1].as_py() if timely.num_rows else last,
        "judged": timely.num_rows - begin,
        "late": rows.num_rows - timely.num_rows,
    }
    return pa.Table.from_pylist([row | names for row in [*found, after]], _SCHEMA)


def _known(metric: str, states_: Sequence[dict[str, Any]]) -> tuple[Detector | Numbering, datetime | None]:
    """The state of a series where it stopped; a new one where there is none of this format."""
    for row in states_:
        try:
            return loads(row["state"]), row["last_at"]
        except StateError:
            return _new(metric), row["last_at"]
    return _new(metric), None


def _new(metric: str) -> Detector | Numbering:
    return Numbering() if numbering.by_name(metric) else Detector()
