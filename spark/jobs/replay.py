"""Read rejected messages again: after a schema was registered, a birth has landed, or a clock offset is known.

A message moves from `reject` to `readings` once, wherever it is interrupted:
1. its values that cannot be read are appended to `reject`;
2. its readings are appended, only to the version of `readings` from the beginning; they carry the version of `reject`
   they were found in (column `replay`);
3. messages with such readings leave `reject`, and so do values of messages that are still rejected as a whole;
4. an empty commit to `readings` records the end, and which rejects belong to the readings from now on.

The next run finishes an interrupted one with steps 3 and 4. Before, it commits to `readings`, so that a run which is
still alive elsewhere fails at step 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from spark import session
from spark.conflict import ConcurrentWrite
from spark.decoding import reasons
from spark.jobs import decoding, last_births
from spark.jobs.job import JobResult, add_results
from spark.lake import SparkLake
from spark.lineage import TableLineage, TableState, list_versions
from spark.sink import BatchTransaction, Sink
from spark.transforms import births, clocks, readings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MESSAGE: Final = ("tenant", "gateway", "epoch", "address", "sequence")
_KEY: Final = (*MESSAGE, "ingest_date")


@dataclass(frozen=True, slots=True)
class RejectFilter:
    """Filter of rejects: with this reason, of addresses that match this pattern; None: any."""

    reason: str | None = None
    address: str | None = None

    def condition(self) -> Column:
        """Return the condition for rows of `reject`: messages that could not be read as a whole."""
        condition = F.col("metric") == ""
        if self.reason is not None:
            condition &= F.col("reason") == self.reason
        if self.address is not None:
            condition &= F.col("address").rlike(_pattern_regex(self.address))
        return condition


def _pattern_regex(pattern: str) -> str:
    """Return an MQTT pattern as a regular expression for Java and Python."""
    *before, last = ("[^/]*" if level == "+" else re.escape(level) for level in pattern.split("/"))
    if last == re.escape("#"):
        return f"(?s)^{'/'.join(before)}(/.*)?(?!.)" if before else ""
    return f"(?s)^{'/'.join((*before, last))}(?!.)"


@dataclass(frozen=True, slots=True)
class Replay:
    """Step of job `readings` that reads messages again which something new may have made readable."""

    name = "replay"
    inputs = ("telemetry",)
    outputs = ("reject", "readings")

    def run(self, lake: SparkLake) -> JobResult:
        """Read rejected messages again when they are due.

        All rejected messages after a schema was registered, nameless ones after a birth has landed, held ones after
        their gateway has reported on its clock, and every hour, as some may have waited long enough.
        """
        rejects = lake.state("reject")
        if rejects is None or lake.state("readings") is None:
            return JobResult(0, 0)
        finish(lake)
        outcomes = []
        for chosen, mark in _find_due(lake, rejects):
            outcomes.append(replay(lake, chosen))
            Sink(lake, mark, None).commit_empty("reject")
        return add_results(outcomes)

    def forget(self, lake: SparkLake) -> None:
        """Leave the tables to the step that follows the messages: they are its outputs, too."""


@dataclass(frozen=True, slots=True)
class ManualReplay:
    """Step of command `replay`: read these rejects again, whether anything is new or not."""

    chosen: RejectFilter
    name = "replay"
    inputs = ("telemetry",)
    outputs = ("reject", "readings")

    def run(self, lake: SparkLake) -> JobResult:
        """Run `replay`."""
        return replay(lake, self.chosen)

    def forget(self, lake: SparkLake) -> None:
        """Leave the tables as they are."""


def _find_due(lake: SparkLake, rejects: TableState) -> Sequence[tuple[RejectFilter, BatchTransaction]]:
    marks = []
    registered = lake.state("payload_schemas")
    if registered is not None:  # by version: of a schema that was removed and comes again are the messages between, too
        marks.append(
            (RejectFilter(), BatchTransaction(f"replay-schemas@{registered.id}/{rejects.id}", registered.version))
        )
    born = lake.state(last_births.BIRTHS)
    if born is not None and born.version > 0:  # in most lakes no birth ever lands
        marks.append(
            (RejectFilter(reasons.NO_BIRTH), BatchTransaction(f"replay-births@{born.id}/{rejects.id}", born.version))
        )
    offsets = lake.state("clock_offsets")
    if offsets is not None and lake.rows("clock_offsets"):
        hours = int(clocks.now().timestamp()) // 3600  # rises by one with each hour and each report
        mark = BatchTransaction(f"replay-clocks@{offsets.id}/{rejects.id}", offsets.version + hours)
        marks.append((RejectFilter(reasons.CLOCK), mark))
    applied = ((lake.transaction_version("reject", mark.application), chosen, mark) for chosen, mark in marks)
    return [(chosen, mark) for version, chosen, mark in applied if version is None or version < mark.version]


def replay(lake: SparkLake, chosen: RejectFilter) -> JobResult:
    """Read chosen rejects again; those that are readable now move to `readings`. Rows in: messages that were read.

    Raises `ConcurrentWrite` if another pass reads rejects again at the same time.
    """
    finish(lake)
    rejects, readings_table = lake.find("reject"), lake.find("readings")
    if rejects is None or readings_table is None:
        return JobResult(0, 0)
    version = rejects.version()
    keys = session.checkpoint(lake.read("reject", version).where(chosen.condition()).select(*_KEY).distinct())
    dates = [row[0] for row in keys.select("ingest_date").distinct().collect()]
    if not dates:
        return JobResult(0, 0)
    messages = lake.read("telemetry").where(F.col("ingest_date").isin(dates)).join(keys, list(_KEY), "left_semi")
    rows = session.checkpoint(decode(lake, messages, version))
    good = rows.where(F.col("reason").isNull()).withColumn("replay", F.lit(version))
    of_values = rows.where(F.col("metric") != "").join(good.select(*MESSAGE).distinct(), list(MESSAGE), "left_semi")
    sink = Sink(lake, BatchTransaction(_begin_application(str(rejects.metadata().id)), version), None)
    if not sink.append("reject", readings.rejects(of_values), read=rejects):
        raise ConcurrentWrite("reject")
    before = sink.rows_written
    if not sink.append("readings", readings.readings(good), read=readings_table):
        raise ConcurrentWrite("readings")
    written = sink.rows_written - before
    _remove_moved(lake)
    _mark_done(lake, version)
    return JobResult(keys.count(), written)


def decode(lake: SparkLake, messages: DataFrame, version: int) -> DataFrame:
    """Return the values of messages by what is registered and known now, named by the births that have landed."""
    pins = decoding.pin(lake, ("replay", version))
    rows = decoding.decode(lake, messages, pins)
    return births.name_metrics(rows, last_births.read_births(lake, rows, pins.births))


def finish(lake: SparkLake) -> None:
    """Finish a replay that was interrupted, or that is still alive elsewhere and must not continue."""
    rejects, readings_table = lake.state("reject"), lake.state("readings")
    if rejects is None or readings_table is None:
        return
    started = lake.transaction_version("reject", _begin_application(rejects.id))
    done = lake.transaction_version("readings", _done_application(rejects.id))
    if started is None or (done is not None and done >= started):
        return
    Sink(lake, None, None).commit_empty("readings")  # the fence
    _remove_moved(lake)
    _mark_done(lake, started)


def _begin_application(rejects: str) -> str:
    return f"replay/{rejects}"


def _done_application(rejects: str) -> str:
    return f"replay-done/{rejects}"


def _mark_done(lake: SparkLake, version: int) -> None:
    rejects, readings_table = lake.state("reject"), lake.open("readings")
    if rejects is None:
        return
    known = (made_of for _, made_of in list_versions(readings_table) if made_of is not None)
    made_of = next(known, None)
    found = TableLineage(made_of.sources, {"reject": rejects}) if made_of is not None else None
    Sink(lake, BatchTransaction(_done_application(rejects.id), version), found).commit_empty("readings")


def _remove_moved(lake: SparkLake) -> None:
    """Remove rejects that have become readings, and then values of messages that are rejected as a whole."""
    moved = lake.read("readings").where(F.col("replay") >= 0)
    keys = moved.select(*MESSAGE, F.to_date("ingested_at").alias("ingest_date")).distinct()
    sink = Sink(lake, None, None)
    sink.remove("reject", keys, _KEY, "old.metric = ''")
    rejects = lake.read("reject")
    whole = rejects.where("metric = ''").select(*_KEY).distinct()
    of_values = rejects.where("metric <> ''").join(whole, list(_KEY), "left_semi").select(*_KEY).distinct()
    sink.remove("reject", of_values, _KEY, "old.metric <> ''")
