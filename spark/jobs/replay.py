"""Rejected messages read again: those of which a schema was registered since, whose Sparkplug birth has landed, or
whose gateway has told how far its clock was off.

A message moves from `reject` to `readings` once, wherever it is stopped:

1. those of its values that cannot be read are appended to `reject`, under a transaction marker of the version of
   `reject` it was found in;
2. its readings are appended under the same version; they carry it (column `replay`);
3. what `readings` has of that version leaves `reject`;
4. an empty commit to `readings` says that this is done, and which rejects belong to them from here on.

A run that was stopped between 2 and 4 is finished by the next one first, from what 2 wrote: nothing is decoded for it.
Of one that was stopped before 2, what 1 wrote is taken back, once its readings cannot come any more. Of two at once one
goes on: a marker that another one has moved since the rejects were read refuses what goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from spark import delta_log, registry, schemas, session
from spark.conflict import Overtaken
from spark.decoding import reasons
from spark.jobs import last_births, stamps
from spark.jobs.damage import Damage
from spark.jobs.outcome import Outcome, merged
from spark.jobs.progress import Position, Span
from spark.provenance import Provenance, State
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import births, clocks, readings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LOOKED_BACK = 20
"""Commits: a pass writes one or two of `readings`, and a replay one that says nothing."""
MESSAGE = ("tenant", "gateway", "epoch", "address", "sequence")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which rejects are read again: with this reason, of addresses that match this pattern; None: any."""

    reason: str | None = None
    address: str | None = None

    def condition(self) -> Column:
        """For rows of `reject`: messages that could not be read as a whole."""
        condition = F.col("metric") == ""
        if self.reason is not None:
            condition &= F.col("reason") == self.reason
        if self.address is not None:
            condition &= F.col("address").rlike(_expression(self.address))
        return condition


def _expression(pattern: str) -> str:
    """An MQTT pattern as a regular expression of Java's, and of Python's."""
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
        """Whole messages once a schema was registered, nameless ones once a birth has landed, held ones once their
        gateway has told something of its clock, and each hour, as some may have been held for long enough."""
        rejects = lake.state("reject")
        if rejects is None or lake.state("readings") is None:
            return Outcome(0, 0)
        finish(lake, rejects)
        outcomes = []
        for chosen, mark in _due(lake, rejects):
            outcomes.append(replay(lake, chosen))
            lake.append("reject", schemas.REJECT.arrow.empty_table(), mark)
        return merged(outcomes)


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


def _due(lake: Lake, rejects: State) -> Sequence[tuple[Chosen, Transaction]]:
    marks = []
    registered = lake.state("payload_schemas")
    if registered is not None:  # by version: of a schema that was removed and comes again are the messages between, too
        marks.append((Chosen(), Transaction(f"replay-schemas@{registered.id}/{rejects.id}", registered.version)))
    born = lake.state("sparkplug_births")
    if born is not None and born.version > 0:  # in most lakes no birth ever lands
        marks.append((Chosen(reasons.NO_BIRTH), Transaction(f"replay-births@{born.id}/{rejects.id}", born.version)))
    offsets = lake.state("clock_offsets")
    if offsets is not None and lake.rows("clock_offsets"):
        hours = int(clocks.now().timestamp()) // 3600  # more by one where one has passed, or something was told
        mark = Transaction(f"replay-clocks@{offsets.id}/{rejects.id}", offsets.version + hours)
        marks.append((Chosen(reasons.CLOCK), mark))
    applied = ((lake.transaction_version("reject", mark.application), chosen, mark) for chosen, mark in marks)
    return [(chosen, mark) for version, chosen, mark in applied if version is None or version < mark.version]


def replay(lake: Lake, chosen: Chosen) -> Outcome:
    """Read `chosen` rejects again; those that are readable now move to `readings`. Rows in: messages looked at.

    Raises `Overtaken` where another pass has read some again meanwhile, whichever it chose."""
    rejects, there = lake.state("reject"), lake.state("readings")
    if rejects is None or there is None:
        return Outcome(0, 0)
    finish(lake, rejects)
    applied = _applied(lake, rejects, there)
    rejects = lake.state("reject") or rejects  # those that left it just now are no candidates
    damage = Damage(lake, "telemetry", "replay")
    again = _again(lake, chosen, rejects.version, damage)
    if not again.messages:
        return Outcome(0, 0)
    _append(lake, "reject", again.rejects, applied.values.next(rejects.version))
    _append(lake, "readings", again.readings, applied.readings.next(rejects.version))
    finish(lake, rejects)
    return Outcome(again.messages, lake.rows_written("readings", there.version), damage.notes)


class _Again(NamedTuple):
    """How many messages were read again; of those that are readable now the values that are not, and the others."""

    messages: int
    rejects: DataFrame
    readings: DataFrame


def _again(lake: Lake, chosen: Chosen, version: int, damage: Damage) -> _Again:
    """Of rejects at this version."""
    candidates = lake.read("reject", version).where(chosen.condition())
    keys = session.kept(candidates.select(*MESSAGE, "ingest_date").distinct())
    dates = [row["ingest_date"] for row in keys.select("ingest_date").distinct().collect()]
    for files in damage.attempts(_landed_on(lake, dates)):
        with damage.noticed(files):
            messages = lake.rows_of("telemetry", files)
            rows = session.kept(decoded(lake, messages.join(keys, [*MESSAGE, "ingest_date"], "left_semi")))
    good = rows.where(F.col("reason").isNull()).withColumn("replay", F.lit(version))
    of_values = rows.where(F.col("metric") != "").join(good.select(*MESSAGE).distinct(), list(MESSAGE), "left_semi")
    return _Again(keys.count(), readings.rejects(of_values), readings.readings(good))


def _append(lake: Lake, name: str, rows: DataFrame | pa.Table, mark: Transaction) -> None:
    if not lake.append(name, rows, mark):
        raise Overtaken(name)


class _Mark(NamedTuple):
    """A step of replays: its application, the table it writes to, the last version of `reject` it was done for."""

    application: str
    table: str
    version: int

    def next(self, version: int) -> Transaction:
        return Transaction(self.application, version, self.version, self.table)


class _Applied(NamedTuple):
    """Rejects of values; readings; the end."""

    values: _Mark
    readings: _Mark
    done: _Mark


def _applied(lake: Lake, rejects: State, there: State) -> _Applied:
    def mark(step: str, name: str, table: State) -> _Mark:
        application = f"{step}@{rejects.id}/{there.id}"
        applied = lake.transaction_version(name, application)
        return _Mark(application, table.id, -1 if applied is None else applied)

    # In the order in which they are written: whoever is at it is seen behind the last of his.
    return _Applied(
        mark("replay-values", "reject", rejects),
        mark("replay", "readings", there),
        mark("replay-done", "readings", there),
    )


def _landed_on(lake: Lake, dates: Sequence[date]) -> Span:
    """The messages of these days."""
    telemetry = lake.state("telemetry")
    if telemetry is None:
        return Span((), Position(0), None)
    lake.check_readable("telemetry", telemetry.version)
    folders = tuple(f"ingest_date={each}/" for each in dates)
    files = delta_log.files(lake.opened("telemetry", telemetry.version))
    return Span([file for file in files if file.path.startswith(folders)], Position(telemetry.version), None)


def decoded(lake: Lake, telemetry: DataFrame) -> DataFrame:
    """`readings.decoded` by what is registered in `lake`, named by the births that have landed."""
    rows = readings.decoded(stamps.judged(lake, telemetry), registry.registered(lake.at("payload_schemas")))
    return births.named(rows, last_births.known(lake, telemetry))


def finish(lake: Lake, rejects: State) -> None:
    """Bring to its end a replay that was stopped on the way."""
    there = lake.state("readings")
    if there is None:
        return
    applied = _applied(lake, rejects, there)
    version = applied.readings.version
    if applied.values.version > version:  # its readings did not come, and shall not now
        version = applied.values.version
        _append(lake, "readings", schemas.READINGS.arrow.empty_table(), applied.readings.next(version))
    if applied.done.version >= version:
        return
    _remove_moved(lake, version)
    nothing = schemas.READINGS.arrow.empty_table()
    lake.append("readings", nothing, applied.done.next(version), _made_of(lake, there.version))


def _remove_moved(lake: Lake, version: int) -> None:
    """Take the messages from the rejects whose readings a replay of this version has written, and values that a replay
    had rejected whose readings did not come."""
    moved = lake.read("readings").where(F.col("replay") == version)
    keys = moved.select(*MESSAGE, F.to_date("ingested_at").alias("ingest_date")).distinct()
    lake.remove("reject", keys, (*MESSAGE, "ingest_date"), "old.metric = ''")
    _take_back_values(lake)


def _take_back_values(lake: Lake) -> None:
    """Of a message that is rejected as a whole no value is: those stand there of which the readings did not come."""
    rejects, name = lake.read("reject"), [*MESSAGE, "ingest_date"]
    whole = rejects.where("metric = ''").select(*name).distinct()
    of_values = rejects.where("metric <> ''").join(whole, name, "left_semi").select(*name).distinct()
    if not of_values.isEmpty():
        lake.remove("reject", of_values, name, "old.metric <> ''")


def _made_of(lake: Lake, version: int) -> Provenance | None:
    """What `readings` was made of when that was said last, with the rejects of now."""
    beside = lake.state("reject")
    made_of = next(
        filter(None, (lake.provenance("readings", at) for at in range(version, max(-1, version - _LOOKED_BACK), -1))),
        None,
    )
    if made_of is None or beside is None:
        return None
    return Provenance(made_of.sources, {"reject": beside})
