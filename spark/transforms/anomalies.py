"""readings, detector_states -> anomalies and the states after them: each series in the order of its event times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
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


def judged(readings: DataFrame, states: DataFrame) -> DataFrame:
    """Anomalies of `readings`, and one more row a series with the state after them; `score` is null in that.

    Readings without a number, those whose event time is not to be believed, and numbers that only say which reading it
    is (`spark.detector.numbering`) are not judged.
    """
    values = readings.where(F.col("value").isNotNull() & ~F.col("suspect")).select(*SERIES, *_VALUES)
    return values.groupBy(*SERIES).cogroup(states.groupBy(*SERIES)).applyInArrow(_judge, _SQL)


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
    found: list[dict[str, Any]] = []
    judged_, late = 0, 0
    for row in readings.sort_by([("event_time", "ascending"), ("sequence", "ascending")]).to_pylist():
        if last is not None and row["event_time"] < last:
            late += 1
            continue
        last = row["event_time"]
        if isinstance(state, Numbering):
            if state.add(row["value"]):
                continue
            state = Detector()
        judged_ += 1
        finding = state.add(last.timestamp(), row["value"])
        if finding.score >= REPORTED:
            found.append(row | finding._asdict())
    after = {"state": dumps(state), "last_at": last, "judged": judged_, "late": late}
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
