"""Job `rollups` over ten million readings: as one query, in passes of a million, and when it catches up.

Catching up is the first pass of a fresh session over all readings. Steady passes find a million new readings each and
continue the windows of earlier passes. As one query, only the job's windows are computed, in turn with DuckDB, polars,
and Spark as on a cluster on the same files. All windows have the table's percentiles; the final tables are compared
with DuckDB's result.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.bench import analytics
from tests.bench.analytics import Question
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.passes import Meter
from tests.bench.result import Goal, Result, at_least
from tests.bench.scratch import scratch_folder

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

ROWS: Final = 10_000_000
WARM_PASSES: Final = 6
CATCH_UP_ROWS_PER_S: Final = 600_000
STEADY_ROWS_PER_S: Final = 1_000_000
BATCH_ROWS_PER_S: Final = analytics.ROLLUP_ROWS_PER_S

_KEYS: Final = ("tenant", "gateway", "device", "address", "metric")
_SERIES = ", ".join(_KEYS)
_SQL = f"""
    SELECT {_SERIES}, date_trunc('minute', event_time) AS window_start, count(value) AS count, min(value), max(value),
        sum(value), avg(value), max_by(value, event_time), max(event_time), max_by(sequence, event_time),
        quantile_disc(value, [0.5, 0.95]), count_if(suspect), max(ingested_at)
    FROM readings GROUP BY {_SERIES}, date_trunc('minute', event_time)"""


def _frame(readings: pl.LazyFrame) -> pl.LazyFrame:
    import polars as pl  # noqa: PLC0415 - a second; other benchmarks need none of it

    value, at = pl.col("value"), pl.col("event_time")
    return readings.group_by(*_KEYS, at.dt.truncate("1m").alias("window_start")).agg(
        value.count().alias("count"),
        value.min().alias("min"),
        value.max().alias("max"),
        value.sum().alias("sum"),
        value.mean().alias("mean"),
        value.sort_by(at).last().alias("last"),
        at.max().alias("last_at"),
        pl.col("sequence").sort_by(at).last().alias("last_sequence"),
        value.quantile(0.5).alias("p50"),
        value.quantile(0.95).alias("p95"),
        pl.col("suspect").sum(),
        pl.col("ingested_at").max().alias("revised_at"),
    )


WINDOWS: Final = Question("windows", "windows of a minute as `rollup_1m` has them", _SQL, _frame)


class Taken(NamedTuple):
    """Time for this many readings. `cpu_s`: of all processes."""

    rows: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    def __str__(self) -> str:
        return f"{self.rate:,.0f} readings/s, {self.cpu_s:.1f} s of processor time"


def _passes(spark: SparkSession, meter: Meter, lake: Path, rows: int) -> Taken:
    from spark.jobs import catalog, runner  # noqa: PLC0415
    from spark.lake import SparkLake  # noqa: PLC0415

    (job,) = (job for job in catalog.JOBS if job.name == "rollups")
    cpu_s = meter.cpu_s()
    seconds, step = analytics.taken(lambda: runner.run_pass(SparkLake(spark, lake), [job], lambda _: None)[0])
    if step.error is not None or step.rows_in != rows:
        raise LoadFailed(f"{step.rows_in:,} of {rows:,} readings taken: {step.error}")
    return Taken(rows, seconds, meter.cpu_s() - cpu_s)


def _steady(spark: SparkSession, meter: Meter, lake: Path, rounds: int) -> Iterator[Taken]:
    """Run passes after those in which Java compiles most of the code."""
    passes = WARM_PASSES + rounds
    for number, rows in enumerate(analytics.commits(lake / "readings", passes * analytics.FILE_ROWS)):
        found = _passes(spark, meter, lake, rows)
        say(f"  steady {number + 1}/{passes}: {found}")
        if number >= WARM_PASSES:
            yield found


def _computed(spark: SparkSession, lake: Path) -> int:
    """Compute the rows as the job does, and return their number."""
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from spark.lake import SparkLake  # noqa: PLC0415
    from spark.transforms import rollups  # noqa: PLC0415

    seen = Observation()
    found = rollups.by_minute(SparkLake(spark, lake).read("readings")).observe(seen, F.count(F.lit(1)).alias("rows"))
    found.write.format("noop").mode("overwrite").save()  # every row is computed, and none is stored
    return int(seen.get["rows"])


def _batch(spark: SparkSession, meter: Meter, lake: Path, rounds: int) -> dict[str, list[Taken]]:
    files = _files(lake)
    ask: dict[str, Callable[[], int]] = {
        "waypost": partial(_computed, spark, lake),
        "duckdb": partial(analytics.of_duckdb, files, WINDOWS),
        "polars": partial(analytics.of_polars, files, WINDOWS),
    }
    answers = {name: each() for name, each in ask.items()}  # a first run warms up: Java compiles
    if len(set(answers.values())) != 1:
        raise LoadFailed(f"the windows differ in number: {answers}")
    found: dict[str, list[Taken]] = {name: [] for name in ask}
    for number in range(rounds):
        for name, each in ask.items():
            cpu_s = meter.cpu_s()
            seconds, _ = analytics.taken(each)
            found[name].append(Taken(ROWS, seconds, meter.cpu_s() - cpu_s))
            say(f"  batch {number + 1}/{rounds}, {name}: {found[name][-1]}")
    return found


def _files(lake: Path) -> Sequence[str]:
    import deltalake  # noqa: PLC0415

    return deltalake.DeltaTable(lake / "readings").file_uris()


def _check(lake: Path) -> None:
    """Raise LoadFailed unless `rollup_1m` has every window of the readings once, with the correct content."""
    import deltalake  # noqa: PLC0415
    import duckdb  # noqa: PLC0415

    columns = f"{_SERIES}, window_start, count, min, max, last, last_at, last_sequence, suspect, revised_at"
    truth = f"""
        SELECT {_SERIES}, date_trunc('minute', event_time), count(value), min(value), max(value),
            arg_max(value, event_time), max(event_time), arg_max(sequence, event_time), count_if(suspect),
            max(ingested_at)
        FROM readings GROUP BY {_SERIES}, date_trunc('minute', event_time)"""
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        for name in ("readings", "rollup_1m"):
            connection.register(name, deltalake.DeltaTable(lake / name).to_pyarrow_dataset())
        ours = f"SELECT {columns} FROM rollup_1m"
        wrong = f"(({truth}) EXCEPT ALL ({ours})) UNION ALL (({ours}) EXCEPT ALL ({truth}))"
        ((count,),) = connection.sql(f"SELECT count(*) FROM ({wrong})").fetchall()
    if count:
        raise LoadFailed(f"{lake.name}: {count:,} windows are not what DuckDB finds")


def _result(name: str, about: str, goal: float, found: Sequence[Taken]) -> Result:
    rate = statistics.median(each.rate for each in found)
    details: dict[str, Any] = {
        "cpu_s": statistics.median(each.cpu_s for each in found),
        "rounds": [each.rate for each in found],
    }
    return Result(f"rollups-{name}", about, "rows/s", rate, at_least(goal, rate), details=details)


def _beside_peers(found: dict[str, list[Taken]]) -> Iterator[Result]:
    result = _result("batch", f"{WINDOWS.about}, computed of {ROWS:,} readings", BATCH_ROWS_PER_S, found["waypost"])
    goal: Goal | None = result.goal
    for peer in ("duckdb", "polars"):
        ratio = statistics.median(a.rate / b.rate for a, b in zip(found["waypost"], found[peer], strict=True))
        theirs = statistics.median(each.rate for each in found[peer])
        yield result._replace(goal=goal, peer=peer, peer_value=theirs, ratio=ratio)
        goal = None


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    from spark import session  # noqa: PLC0415

    with scratch_folder() as scratch:
        folder = Path(scratch)
        all_at_once, by_and_by = folder / "all", folder / "steady"
        analytics.write(all_at_once / "readings", ROWS)
        spark = session.start("waypost-bench", session.SessionOptions(log=folder / "spark.log"))
        try:
            meter = Meter()
            catch_up = _passes(spark, meter, all_at_once, ROWS)
            say(f"  catching up: {catch_up}")
            steady = list(_steady(spark, meter, by_and_by, settings.rounds))
            batch = _batch(spark, meter, all_at_once, settings.rounds)
        finally:
            session.stop(spark)
        for lake in (all_at_once, by_and_by):
            _check(lake)
    about = f"job `rollups`, the first pass of a session, over {ROWS:,} readings"
    return [
        *_beside_peers(batch),
        _result("steady", "the same over a million new readings a pass, warm", STEADY_ROWS_PER_S, steady),
        _result("catch-up", about, CATCH_UP_ROWS_PER_S, [catch_up]),
    ]


BENCHMARK: Final = Benchmark(
    "rollups", "windows of ten million readings: at once, steadily, catching up; beside DuckDB and polars", 240, _run
)
