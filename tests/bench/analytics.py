"""Queries on a lake's readings: Spark as the jobs use it, compared with DuckDB and polars on the same files.

The queries follow public benchmarks: the windows of our own rollup, TSBS' IoT queries (last reading, average load,
daily activity, breakdown frequency) and RIoTBench's statistics. All engines read the Parquet files of one Delta table
on every core and produce all result rows. A result with other rows ends the run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Goal, Result, at_least
from tests.bench.scratch import scratch_folder

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

ROWS: Final = 1_000_000
ROWS_FULL: Final = (1_000_000, 10_000_000, 100_000_000)
FILE_ROWS: Final = 1_000_000
GATEWAYS, DEVICES, METRICS = 40, 5, ("temperature", "humidity", "pressure", "load")
START: Final = datetime(2026, 3, 14, tzinfo=UTC)
EVERY_S: Final = 5
"""Seconds between two readings of a series."""
THRESHOLD: Final = 70.0
GOAL_ROWS: Final = 10_000_000
ROLLUP_ROWS_PER_S: Final = 4_000_000
"""Least rate of one-minute windows, from the given number of readings on."""

_SERIES = "gateway, device, metric"
_MINUTES = f"""
    SELECT {_SERIES}, date_trunc('minute', event_time) AS minute, count(value), min(value), max(value), sum(value),
        max_by(value, event_time), max(event_time), max(ingested_at)
    FROM readings GROUP BY {_SERIES}, date_trunc('minute', event_time)"""
_LAST = f"SELECT {_SERIES}, max(event_time), max_by(value, event_time) FROM readings GROUP BY {_SERIES}"
_LOAD = """
    SELECT gateway, date_trunc('day', event_time), avg(value) FROM readings WHERE metric = 'load'
    GROUP BY gateway, date_trunc('day', event_time)"""
_ACTIVITY = """
    SELECT gateway, device, day, count(*) FROM (
        SELECT DISTINCT gateway, device, date_trunc('day', event_time) AS day, date_trunc('minute', event_time)
        FROM readings) AS minutes
    GROUP BY gateway, device, day"""
_BREAKDOWNS = f"""
    SELECT {_SERIES}, count(*) FROM (
        SELECT {_SERIES}, value, lag(value) OVER (PARTITION BY {_SERIES} ORDER BY event_time) AS before FROM readings
    ) AS steps WHERE value >= {THRESHOLD} AND before < {THRESHOLD} GROUP BY {_SERIES}"""
_STATISTICS = f"""
    SELECT {_SERIES}, avg(value), var_samp(value), approx_count_distinct(value) FROM readings GROUP BY {_SERIES}"""


Answer = TypeVar("Answer")


class Question(NamedTuple):
    """A query in SQL for Spark and DuckDB, and its polars version."""

    name: str
    about: str
    sql: str
    frame: Callable[[pl.LazyFrame], pl.LazyFrame]


def _minutes(readings: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415 - a second; other benchmarks need none of it

    value, at = pl.col("value"), pl.col("event_time")
    last = value.sort_by(at).last().alias("last")
    return readings.group_by("gateway", "device", "metric", at.dt.truncate("1m").alias("minute")).agg(
        value.count().alias("count"),
        value.min().alias("min"),
        value.max().alias("max"),
        value.sum().alias("sum"),
        last,
        at.max().alias("last_at"),
        pl.col("ingested_at").max().alias("revised_at"),
    )


def _last(readings: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415

    at = pl.col("event_time")
    return readings.group_by("gateway", "device", "metric").agg(at.max(), pl.col("value").sort_by(at).last())


def _load(readings: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415

    of_load = readings.filter(pl.col("metric") == "load")
    return of_load.group_by("gateway", pl.col("event_time").dt.truncate("1d")).agg(pl.col("value").mean())


def _activity(readings: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415

    at = pl.col("event_time")
    minutes = readings.select("gateway", "device", at.dt.truncate("1d").alias("day"), at.dt.truncate("1m")).unique()
    return minutes.group_by("gateway", "device", "day").len()


def _breakdowns(readings: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415

    value, series = pl.col("value"), ("gateway", "device", "metric")
    before = value.shift(1).over(*series, order_by="event_time")
    return readings.filter((value >= THRESHOLD) & (before < THRESHOLD)).group_by(*series).len()


def _statistics(readings: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415

    value = pl.col("value")
    figures = (value.mean().alias("mean"), value.var().alias("variance"), value.approx_n_unique().alias("distinct"))
    return readings.group_by("gateway", "device", "metric").agg(*figures)


QUESTIONS: Final = (
    Question("minutes", "windows of a minute: count, min, max, sum, last", _MINUTES, _minutes),
    Question("last", "the last reading of each series (TSBS last-loc)", _LAST, _last),
    Question("load", "a gateway's average load by day (TSBS avg-load)", _LOAD, _load),
    Question("activity", "minutes in which a device sent, by day (TSBS daily-activity)", _ACTIVITY, _activity),
    Question("breakdowns", "times a series rose above a bound (TSBS breakdown-frequency)", _BREAKDOWNS, _breakdowns),
    Question("statistics", "mean, second moment, distinct values (RIoTBench STATS)", _STATISTICS, _statistics),
)


def write(table: Path, rows: int) -> None:
    """Write a table of readings: a fleet's series in time order, in as many files as a hub with compaction leaves."""
    for _ in commits(table, rows):
        pass


def commits(table: Path, rows: int) -> Iterator[int]:
    """Write the same table commit by commit, one for each value taken; yield the rows of each commit."""
    import deltalake  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    from spark import schemas  # noqa: PLC0415

    schema = schemas.READINGS.arrow
    series = GATEWAYS * DEVICES * len(METRICS)
    start_us = int(START.timestamp() * 1_000_000)
    names = {
        "gateway": pa.array([f"gateway-{number:02}" for number in range(GATEWAYS)]),
        "device": pa.array([f"device-{number}" for number in range(DEVICES)]),
        "metric": pa.array(METRICS),
    }
    randoms = np.random.default_rng(7)
    for first in range(0, rows, FILE_ROWS):
        number = np.arange(first, min(first + FILE_ROWS, rows))
        one, step = number % series, number // series
        at = start_us + step * EVERY_S * 1_000_000 + one
        made: dict[str, Any] = {
            "gateway": names["gateway"].take(pa.array(one // (DEVICES * len(METRICS)))),
            "device": names["device"].take(pa.array(one // len(METRICS) % DEVICES)),
            "metric": names["metric"].take(pa.array(one % len(METRICS))),
            "sequence": step,
            "event_time": at,
            "received_at": at,
            "ingested_at": at + 1_500_000,
            "suspect": np.zeros(len(number), bool),
            "value": np.round(60 + 15 * np.sin(step / 500 + one) + randoms.normal(0, 2, len(number)), 2),
            "event_date": (at // 86_400_000_000).astype("int32"),
        }
        usual = {"tenant": "default", "epoch": "e1", "address": "plant/load", "clock_quality": "good"}
        usual |= {"time_source": "device", "lane": "live"}
        columns = {field.name: made.get(field.name, [usual.get(field.name)] * len(number)) for field in schema}
        arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
        written = pa.Table.from_arrays(arrays, schema=schema)
        deltalake.write_deltalake(table, written, mode="append", partition_by=["event_date"])
        yield len(number)


def _of_spark(spark: SparkSession, question: Question) -> int:
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    seen = Observation()
    found = spark.sql(question.sql).observe(seen, F.count(F.lit(1)).alias("rows"))
    found.write.format("noop").mode("overwrite").save()  # every row is computed, and none is stored
    return int(seen.get["rows"])


def of_duckdb(files: Sequence[str], question: Question) -> int:
    """Run the query; return the number of rows."""
    import duckdb  # noqa: PLC0415

    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.from_parquet(list(files), hive_partitioning=True).create_view("readings")
        return int(connection.sql(question.sql).to_arrow_table().num_rows)


def of_polars(files: Sequence[str], question: Question) -> int:
    """Run the query; return the number of rows."""
    import polars as pl  # noqa: PLC0415

    return question.frame(pl.scan_parquet(list(files), hive_partitioning=True)).collect().height


def taken(ask: Callable[[], Answer]) -> tuple[float, Answer]:
    """Return the seconds that the call took, and its result."""
    begin = time.perf_counter()
    answer = ask()
    return time.perf_counter() - begin, answer


def _asked(spark: SparkSession, files: Sequence[str], rows: int, rounds: int) -> Iterator[Result]:
    for question in QUESTIONS:
        ask: dict[str, Callable[[], int]] = {
            "waypost": partial(_of_spark, spark, question),
            "duckdb": partial(of_duckdb, files, question),
            "polars": partial(of_polars, files, question),
        }
        answers = {name: taken(each)[1] for name, each in ask.items()}  # a first run warms up: Java compiles
        if len(set(answers.values())) != 1:
            raise LoadFailed(f"{question.name}: the answers differ in their rows: {answers}")
        rates: dict[str, list[float]] = {name: [] for name in ask}
        for _ in range(rounds):
            for name, each in ask.items():
                rates[name].append(rows / taken(each)[0])
        median = {name: statistics.median(found) for name, found in rates.items()}
        say(f"  {question.name}, {rows:,} rows: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in median.items()))
        goal: Goal | None = None
        if question.name == "minutes" and rows >= GOAL_ROWS:
            goal = at_least(ROLLUP_ROWS_PER_S, median["waypost"])
        for peer in ("duckdb", "polars"):
            ratio = statistics.median(a / b for a, b in zip(rates["waypost"], rates[peer], strict=True))
            yield Result(
                f"analytics-{question.name}", f"{question.about}; {rows:,} readings", "rows/s", median["waypost"],
                goal, peer, median[peer], ratio, details={f"{name}_rounds": found for name, found in rates.items()},
            )  # fmt: skip
            goal = None


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    import deltalake  # noqa: PLC0415

    from spark import session  # noqa: PLC0415

    results: list[Result] = []
    with scratch_folder() as folder:
        spark = session.start("waypost-bench", session.SessionOptions(log=Path(folder) / "spark.log"))
        try:
            for rows in ROWS_FULL if settings.full else (ROWS,):
                table = Path(folder) / f"readings-{rows}"
                write(table, rows)
                files = deltalake.DeltaTable(table).file_uris()
                spark.read.format("delta").load(str(table)).createOrReplaceTempView("readings")
                results += _asked(spark, files, rows, settings.rounds)
        finally:
            session.stop(spark)
    return results


BENCHMARK: Final = Benchmark(
    "analytics", "questions to the readings of a lake, beside DuckDB and polars on the same files", 90, _run
)
