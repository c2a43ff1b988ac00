"""`rollups`: readings -> rollup_1m, rollup_1h.

No watermark: a gateway that was offline for a week is right, not late. Each batch names the hours it touches, and just
these hours are recomputed from all their readings, as they are after the batch, and put in place of what was there.
Late data so corrects history, and running a batch again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark.jobs.following import Batch, Following
from spark.jobs.outcome import Job
from spark.tables import Lake
from spark.transforms import rollups
from spark.transforms.times import date_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR = timedelta(hours=1)
_RANGES_PER_COMMIT = 100
"""Stretches of hours replaced in one commit: bounds the predicate that Delta matches against every file."""
RANGES_MAX = 500
"""Stretches of one batch, so five commits at most, of some seconds each."""


def hour_ranges(hours: Iterable[datetime]) -> list[tuple[datetime, datetime]]:
    """Hours as stretches `[from, upto)` of adjacent ones, in order."""
    ranges: list[tuple[datetime, datetime]] = []
    for hour in sorted(set(hours)):
        if ranges and ranges[-1][1] == hour:
            ranges[-1] = (ranges[-1][0], hour + _HOUR)
        else:
            ranges.append((hour, hour + _HOUR))
    return ranges


def joined(ranges: Sequence[tuple[datetime, datetime]], most: int) -> list[tuple[datetime, datetime]]:
    """So many stretches at most: over the shortest gaps they become one, and the hours between are recomputed, too."""
    gaps = sorted(range(1, len(ranges)), key=lambda i: ranges[i][0] - ranges[i - 1][1])
    closed = set(gaps[: max(0, len(ranges) - most)])
    found: list[tuple[datetime, datetime]] = []
    for i, (start, upto) in enumerate(ranges):
        if i in closed:
            found[-1] = (found[-1][0], upto)
        else:
            found.append((start, upto))
    return found


def predicate(ranges: Iterable[tuple[datetime, datetime]], column: str) -> str:
    """SQL that holds for rows whose `column` is in one of `ranges`; names the partition, so other days are not read."""
    return " OR ".join(
        f"(event_date >= DATE'{date_of(start)}' AND event_date <= DATE'{date_of(upto)}'"
        f" AND {column} >= TIMESTAMP'{start:%Y-%m-%d %H:%M:%S}Z' AND {column} < TIMESTAMP'{upto:%Y-%m-%d %H:%M:%S}Z')"
        for start, upto in ranges
    )


def _touched(readings: DataFrame) -> list[list[tuple[datetime, datetime]]]:
    hours = readings.select(F.unix_seconds(F.date_trunc("hour", "event_time")).alias("hour")).distinct().collect()
    ranges = joined(hour_ranges(datetime.fromtimestamp(row["hour"], UTC) for row in hours), RANGES_MAX)
    return [ranges[start : start + _RANGES_PER_COMMIT] for start in range(0, len(ranges), _RANGES_PER_COMMIT)]


def _take(lake: Lake, batch: Batch) -> None:
    version = batch.source.version if batch.source is not None else None
    parts = _touched(batch.rows)
    for number, ranges in enumerate(parts, start=1):
        source = lake.read("readings", version).where(predicate(ranges, "event_time"))
        minutes = rollups.by_minute(source).persist()
        made_of = batch.made_of if number == len(parts) else None
        try:
            lake.replace_where("rollup_1m", minutes, predicate(ranges, "window_start"), made_of)
            lake.replace_where("rollup_1h", rollups.by_hour(minutes), predicate(ranges, "window_start"), made_of)
        finally:
            minutes.unpersist()


_FOLLOWING = Following("rollups", "readings", ("rollup_1m", "rollup_1h"), revision=2, each=_take)
JOB = Job("rollups", "count, min, max, sum, mean, last per metric and minute, hour", _FOLLOWING.run)
