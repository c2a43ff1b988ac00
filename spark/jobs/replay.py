"""Rejected messages read again: those of which a schema was registered since, whose Sparkplug birth has landed, or
whose gateway has told how far its clock was off.

A message moves from `reject` to `readings` once, wherever it is stopped:

1. those of its values that cannot be read are appended to `reject`;
2. its readings are appended, only to the version of `readings` that was there at the begin; they carry the version of
   `reject` they were found in (column `replay`);
3. messages that have such readings leave `reject`, and so do values of messages that are still there as a whole;
4. an empty commit to `readings` says that this is done, and which rejects belong to them from here on.

A run that was stopped is finished by the next one with steps 3 and 4. Before, it commits to `readings`: then a run that
is still alive elsewhere fails at step 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from spark import session
from spark.conflict import Overtaken
from spark.decoding import reasons
from spark.jobs import decoding, last_births
from spark.jobs.outcome import Outcome, merged
from spark.lake import Lake
from spark.lineage import TableLineage, TableState, versions
from spark.sink import Sink, Transaction
from spark.transforms import births, clocks, readings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MESSAGE: Final = ("tenant", "gateway", "epoch", "address", "sequence")
_KEY: Final = (*MESSAGE, "ingest_date")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rejects to be read again: with this reason, of addresses that match this pattern; None: any."""

    reason: str | None = None
    address: str | None = None

    def condition(self) -> Column:
        """Return the condition for rows of `reject`: messages that could not be read as a whole."""
        condition = F.col("metric") == ""
        if self.reason is not None:
            condition &= F.col("reason") == self.reason
        if self.address is not None:
            condition &= F.col("address").rlike(_expression(self.address))
        return condition


def _expression(pattern: str) -> str:
    """Return an MQTT pattern as a regular expression of Java's, and of Python's."""
    *before, last = ("[^/]*" if level == "+" else re.escape(level) for level in pattern.split("/"))
    if last == re.escape("#"):
        return f"(?s)^{'/'.join(before)}(/.*)?(?!.)" if before else ""
    return f"(?s)^{'/'.join((*before, last))}(?!.)"


@dataclass(frozen=True, slots=True)
class Replay:
    """The step of job `readings` that reads again what something new may have made readable."""

    name = "replay"
    inputs = ("telemetry",)
    outputs = ("reject", "readings")

    def run(self, lake: Lake) -> Outcome:
        """Read again: all whole messages once a schema was registered, nameless ones once a birth has landed, held
        ones once their gateway has reported on its clock, and each hour, as some may have waited long enough."""
        rejects = lake.state("reject")
        if rejects is None or lake.state("readings") is None:
            return Outcome(0, 0)
        finish(lake)
        outcomes = []
        for chosen, mark in _due(lake, rejects):
            outcomes.append(replay(lake, chosen))
            Sink(lake, mark, None).note("reject")
        return merged(outcomes)

    def forget(self, lake: Lake) -> None:
        """Leave the tables to the step that follows the messages: they are its outputs, too."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """The step of command `replay`: these rejects, whether anything new has made them readable or not."""

    chosen: Chosen
    name = "replay"
    inputs = ("telemetry",)
    outputs = ("reject", "readings")

    def run(self, lake: Lake) -> Outcome:
        """See `replay`."""
        return replay(lake, self.chosen)

    def forget(self, lake: Lake) -> None:
        """Leave the tables as they are."""


def _due(lake: Lake, rejects: TableState) -> Sequence[tuple[Chosen, Transaction]]:
    marks = []
    registered = lake.state("payload_schemas")
    if registered is not None:  # by version: of a schema that was removed and comes again are the messages between, too
        marks.append((Chosen(), Transaction(f"replay-schemas@{registered.id}/{rejects.id}", registered.version)))
    born = lake.state(last_births.BIRTHS)
    if born is not None and born.version > 0:  # in most lakes no birth ever lands
        marks.append((Chosen(reasons.NO_BIRTH), Transaction(f"replay-births@{born.id}/{rejects.id}", born.version)))
    offsets = lake.state("clock_offsets")
    if offsets is not None and lake.rows("clock_offsets"):
        hours = int(clocks.now().timestamp()) // 3600  # rises by one with each hour and each report
        mark = Transaction(f"replay-clocks@{offsets.id}/{rejects.id}", offsets.version + hours)
        marks.append((Chosen(reasons.CLOCK), mark))
    applied = ((lake.transaction_version("reject", mark.application), chosen, mark) for chosen, mark in marks)
    return [(chosen, mark) for version, chosen, mark in applied if version is None or version < mark.version]


def replay(lake: Lake, chosen: Chosen) -> Outcome:
    """Read `chosen` rejects again; those that are readable now move to `readings`. Rows in: messages looked at.

    Raises `Overtaken` where another pass reads some again at the same time, whichever it chose.
    """
    finish(lake)
    rejects, there = lake.find("reject"), lake.find("readings")
    if rejects is None or there is None:
        return Outcome(0, 0)
    version = rejects.version()
    keys = session.kept(lake.read("reject", version).where(chosen.condition()).select(*_KEY).distinct())
    dates = [row[0] for row in keys.select("ingest_date").distinct().collect()]
    if not dates:
        return Outcome(0, 0)
    messages = lake.read("telemetry").where(F.col("ingest_date").isin(dates)).join(keys, list(_KEY), "left_semi")
    rows = session.kept(decoded(lake, messages, version))
    good = rows.where(F.col("reason").isNull()).withColumn("replay", F.lit(version))
    of_values = rows.where(F.col("metric") != "").join(good.select(*MESSAGE).distinct(), list(MESSAGE), "left_semi")
    sink = Sink(lake, Transaction(_application(str(rejects.metadata().id)), version), None)
    if not sink.append("reject", readings.rejects(of_values), read=rejects):
        raise Overtaken("reject")
    before = sink.rows_written
    if not sink.append("readings", readings.readings(good), read=there):
        raise Overtaken("readings")
    written = sink.rows_written - before
    _remove_moved(lake)
    _note_done(lake, version)
    return Outcome(keys.count(), written)


def decoded(lake: Lake, messages: DataFrame, version: int) -> DataFrame:
    """Return `readings.decoded` rows by what is registered and known now, named by the births that have landed."""
    pins = decoding.pin(lake, ("replay", version))
    rows = decoding.decode(lake, messages, pins)
    return births.named(rows, last_births.known(lake, rows, pins.births))


def finish(lake: Lake) -> None:
    """Bring to its end a replay that was stopped on the way, or is still alive elsewhere and must not go on."""
    rejects, there = lake.state("reject"), lake.state("readings")
    if rejects is None or there is None:
        return
    begun = lake.transaction_version("reject", _application(rejects.id))
    done = lake.transaction_version("readings", _done(rejects.id))
    if begun is None or (done is not None and done >= begun):
        return
    Sink(lake, None, None).note("readings")  # the fence
    _remove_moved(lake)
    _note_done(lake, begun)


def _application(rejects: str) -> str:
    return f"replay/{rejects}"


def _done(rejects: str) -> str:
    return f"replay-done/{rejects}"


def _note_done(lake: Lake, version: int) -> None:
    rejects, there = lake.state("reject"), lake.open("readings")
    if rejects is None:
        return
    known = (made_of for _, made_of in versions(there) if made_of is not None)
    made_of = next(known, None)
    found = TableLineage(made_of.sources, {"reject": rejects}) if made_of is not None else None
    Sink(lake, Transaction(_done(rejects.id), version), found).note("readings")


def _remove_moved(lake: Lake) -> None:
    """Take the messages that have readings of a replay from the rejects, and then the values of messages that are
    rejected as a whole: their readings did not come."""
    moved = lake.read("readings").where(F.col("replay") >= 0)
    keys = moved.select(*MESSAGE, F.to_date("ingested_at").alias("ingest_date")).distinct()
    sink = Sink(lake, None, None)
    sink.remove("reject", keys, _KEY, "old.metric = ''")
    rejects = lake.read("reject")
    whole = rejects.where("metric = ''").select(*_KEY).distinct()
    of_values = rejects.where("metric <> ''").join(whole, list(_KEY), "left_semi").select(*_KEY).distinct()
    sink.remove("reject", of_values, _KEY, "old.metric <> ''")
