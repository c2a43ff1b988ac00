"""readings, detector_states -> anomalies and the states after them: each series in the order of its event times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.kernels import detect
from spark.kernels.detect import SERIES
from spark.transforms.times import event_date

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLD = {
    "state": "new.state",
    "last_at": "greatest(old.last_at, new.last_at)",
    "judged": "old.judged + new.judged",
    "late": "old.late + new.late",
}
"""Combines the state of a series with that after further readings."""


def judge(readings: DataFrame, states: DataFrame, tasks: int) -> DataFrame:
    """Return the anomalies of `readings`, and one more row per series with the state after them and a null `score`.

    Not judged are readings without a number, those with an implausible event time, and numbers that only number
    readings (`spark.detector.numbering`). `tasks`: number of parts of the series.
    """
    values = readings.where(F.col("value").isNotNull() & ~F.col("suspect")).select(*SERIES, *detect.VALUES)
    series, known = (rows.repartition(tasks, *SERIES).groupBy(*SERIES) for rows in (values, states))
    return series.cogroup(known).applyInArrow(detect.judge_series, detect.SQL)


def anomalies(judged_: DataFrame) -> DataFrame:
    """Return the rows of table `anomalies`."""
    rows = judged_.where(F.col("score").isNotNull()).withColumn("event_date", event_date("event_time"))
    return rows.select(*schemas.ANOMALIES.columns.names)


def states(judged_: DataFrame) -> DataFrame:
    """Return the rows of table `detector_states` for the series of these readings."""
    return judged_.where(F.col("score").isNull()).select(*schemas.DETECTOR_STATES.columns.names)
