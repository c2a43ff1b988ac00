"""readings, detector_states -> anomalies and the states after them: each series in the order of its event times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark import schemas
from spark.kernels import detect
from spark.kernels.detect import SERIES
from spark.transforms.times import kept_under

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLD = {
    "state": "new.state",
    "last_at": "greatest(old.last_at, new.last_at)",
    "judged": "old.judged + new.judged",
    "late": "old.late + new.late",
}
"""How the state of a series and that after further readings become one."""


def judged(readings: DataFrame, states: DataFrame, tasks: int) -> DataFrame:
    """Anomalies of `readings`, and one more row a series with the state after them; `score` is null in that.

    Readings without a number, those whose event time is not to be believed, and numbers that only say which reading it
    is (`spark.detector.numbering`) are not judged. `tasks`: into how many the series are divided.
    """
    values = readings.where(F.col("value").isNotNull() & ~F.col("suspect")).select(*SERIES, *detect.VALUES)
    series, known = (rows.repartition(tasks, *SERIES).groupBy(*SERIES) for rows in (values, states))
    return series.cogroup(known).applyInArrow(detect.judge_series, detect.SQL)


def anomalies(judged_: DataFrame) -> DataFrame:
    """As table `anomalies` has them."""
    rows = judged_.where(F.col("score").isNotNull()).withColumn("event_date", kept_under("event_time"))
    return rows.select(*schemas.ANOMALIES.columns.names)


def states(judged_: DataFrame) -> DataFrame:
    """As table `detector_states` has them, of the series of these readings."""
    return judged_.where(F.col("score").isNull()).select(*schemas.DETECTOR_STATES.columns.names)
