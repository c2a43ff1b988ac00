"""Rejects read again in this process: the same comes of them as by Spark, of whatever was sent; Spark has what is a
lot."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark import delta_log, gathered, registry, remove_here, schemas
from spark.decoding import reasons
from spark.decoding.schema import PayloadSchema
from spark.here import births, clocks, rejects
from spark.jobs import catalog, replay, runner
from spark.jobs.replay import Chosen
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import clocks as transforms
from tests.spark import lakes
from tests.spark.decoding.test_sparkplug import metric
from tests.spark.lakes import START, Row, message
from tests.spark.test_readings_here import rows, sent
from tests.spark.test_replay import born, sparkplug
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_261_128
HOUR = timedelta(hours=1)
WRONG_CLOCK = {"gateway": "gw2", "epoch": "c"}


@pytest.fixture
def alone(tmp_path: Path) -> Lake:
    """A lake without Spark on one machine."""
    return Lake(None, tmp_path / "alone", here=True)


def read(lake: Lake) -> None:
    (step,) = runner.one_pass(lake, catalog.chosen(["readings"]), lambda _: None)
    assert step.error is None


def landed() -> list[Row]:
    """Messages of some days: many of them cannot be read, some wait for a birth, and some for the time."""
    randoms = random.Random(chosen_seed(SEED))
    messages = [sent(randoms, number) | {"clock_quality": "good"} for number in range(400)]
    for row in messages:
        row["ingested_at"] += timedelta(days=randoms.randrange(3))
    nameless = [metric(None, (13, 1.5), alias=alias) for alias in (1, 2)]
    kinds = ([nameless[0]], nameless, [nameless[0], metric("named", (10, 7))], [b"\xff"])
    messages += [sparkplug(n, "NDATA", 20 + n, *randoms.choice(kinds), gateway="gw3") for n in range(30)]
    late = {"ingested_at": START + 5 * HOUR, "clock_quality": "unknown"}
    messages += [message(n, body=randoms.choice((b"7", b"x", b"")), **late, **WRONG_CLOCK) for n in range(30)]
    return [row | {"ingest_date": row["ingested_at"].date()} for row in messages]


def told(first: int | None = None, last: int | None = None, **override: Any) -> Row:
    heard = {"told_at": START, "heard_at": START + 5 * HOUR, **WRONG_CLOCK}
    return lakes.clock_offset(first, last, **heard | override | ({} if first is not None else {"epoch": None}))


def found(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """Which version of the rejects a reading was one of is told by no two lakes alike."""
    tables = {name: rows(lake, name) for name in ("readings", "reject", "sparkplug_births")}
    place = schemas.READINGS.columns.names.index("replay")
    tables["readings"] = [(*row[:place], row[place] is None, *row[place + 1 :]) for row in tables["readings"]]
    return {name: sorted(each, key=repr) for name, each in tables.items()}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_same_comes_of_rejects_as_by_spark(
    spark: SparkSession, alone: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms, "now", lambda: START + 6 * HOUR)
    theirs = Lake(spark, tmp_path / "theirs", few=True, here=False)
    lakes_of = (alone, theirs)
    messages = landed()

    def equal() -> dict[str, list[tuple[Any, ...]]]:
        one, other = map(found, lakes_of)
        assert one == other
        return one

    for lake in lakes_of:
        lakes.write(lake.place, "clock_offsets", [told()])
        lakes.write(lake.place, "telemetry", messages[::2])
        lakes.write(lake.place, "telemetry", messages[1::2])
        read(lake)
    before = equal()
    seen = {row[schemas.REJECT.columns.names.index("reason")] for row in before["reject"]}
    assert {reasons.NO_BIRTH, reasons.CLOCK, reasons.NOT_A_VALUE} <= seen
    for lake in lakes_of:
        registry.register(lake.at("payload_schemas"), PayloadSchema("plant/+", "text"), START)
        registry.register(lake.at("payload_schemas"), PayloadSchema("a/#", "json"), START)
        again = replay.replay(lake.for_job(), Chosen(reasons.NOT_A_VALUE, "a/#"))
        assert again.rows_in > 0
    equal()
    for lake in lakes_of:
        lakes.write(lake.place, "telemetry", [sparkplug(0, "NBIRTH", 4, born("speed", 1), gateway="gw3")])
        lakes.write(lake.place, "clock_offsets", [told(0, 19, known="measured", offset_low_us=9, offset_high_us=9)])
        read(lake)
    after = equal()
    assert len(after["readings"]) > len(before["readings"]) + 40  # others are readable whatever their content type says
    assert 50 < len(after["reject"]) < len(before["reject"])
    for lake in lakes_of:
        read(lake)
        assert replay.replay(lake.for_job(), Chosen(address="none/+")).rows_in == 0
    assert equal() == after
    made_of = alone.provenance("readings")
    assert made_of is not None
    assert made_of.beside["reject"].id == str(alone.at("reject").delta().metadata().id)


@pytest.mark.parametrize("reason", [reasons.NO_BIRTH, reasons.CLOCK, reasons.NOT_A_VALUE])
def test_rejects_are_read_again_without_spark(alone: Lake, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """Spark was started for that each hour while a message was held, and after each birth and schema."""
    now = [START + 6 * HOUR]
    monkeypatch.setattr(transforms, "now", lambda: now[0])
    lakes.write(alone.place, "clock_offsets", [told()])
    lakes.write(alone.place, "telemetry", landed())
    read(alone)

    def waiting() -> int:
        return sum(row["reason"] == reason for row in alone.at("reject").delta().to_pyarrow_table().to_pylist())

    before = waiting()
    assert before > 5
    now[0] += HOUR
    read(alone)
    assert waiting() == before
    match reason:
        case reasons.CLOCK:
            now[0] += 30 * HOUR
        case reasons.NO_BIRTH:
            lakes.write(alone.place, "telemetry", [sparkplug(0, "NBIRTH", 4, born("speed", 1), gateway="gw3")])
        case _:
            registry.register(alone.at("payload_schemas"), PayloadSchema("#", "text"), START)
    read(alone)
    assert waiting() < before


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "much",
    ["messages", "rejects", *(pytest.param(much, marks=pytest.mark.slow) for much in ("births", "offsets", "log"))],
)
def test_what_is_a_lot_is_left_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch, much: str) -> None:
    lakes.write(lake.place, "telemetry", [message(n, address="a/x", body=b"up") for n in range(4)])
    nameless = metric(None, (13, 1.0), alias=1)
    lakes.write(lake.place, "telemetry", [sparkplug(0, "NDATA", 5, nameless)])
    lakes.write(lake.place, "clock_offsets", [lakes.clock_offset(0, 9, known="measured", whole=True)])
    read(lake)
    lakes.write(lake.place, "telemetry", [sparkplug(0, "NBIRTH", 4, born("speed", 1), born("load", 2))])
    for step in catalog.chosen(["readings"])[0].steps[:1]:
        step.run(lake.for_job())
    assert (len(rows(lake, "reject")), len(rows(lake, "readings"))) == (5, 3)
    registry.register(lake.at("payload_schemas"), PayloadSchema("a/+", "text"), START)
    match much:
        case "messages":
            monkeypatch.setattr(rejects, "MESSAGES_MAX", 4)
        case "rejects":
            monkeypatch.setattr(replay, "REJECTS_MAX", 4)
        case "births":
            monkeypatch.setattr(births, "METRICS_MAX", 2)
        case "offsets":
            monkeypatch.setattr(clocks, "ROWS_MAX", 0)
        case _:
            monkeypatch.setattr(replay, "_LOOKED_BACK", 0)
    asked: list[str] = []
    removed, decoded = Lake.remove, replay.decoded

    def remove(self: Lake, *rest: Any) -> None:
        asked.append("removed")
        removed(self, *rest)

    def decode(*rest: Any) -> Any:
        asked.append("decoded")
        return decoded(*rest)

    monkeypatch.setattr(Lake, "remove", remove)
    monkeypatch.setattr(replay, "decoded", decode)
    assert replay.replay(lake.for_job(), Chosen()).rows_in == 5
    of_both = {"messages": ["decoded", "removed"], "rejects": ["removed"], "log": ["removed"]}
    assert asked == of_both.get(much, ["decoded"])
    assert (len(rows(lake, "reject")), len(rows(lake, "readings"))) == (0, 8)


def test_only_files_that_hold_some_are_written_anew(alone: Lake) -> None:
    alone.ensure("reject")
    for day in range(3):
        at = START + timedelta(days=day)
        kept = {"ingested_at": at, "ingest_date": at.date(), "event_time": at, "body": b"b", "reason": "r"}
        made = [message(n) | {"metric": name} | kept for n, name in enumerate(("", "t", "u"))]
        table = schemas.REJECT.arrow
        for first in (0, 2):
            some = [{name: row[name] for name in table.names} for row in made[first : first + 2]]
            alone.append("reject", table.empty_table().from_pylist(some, table), Transaction(f"d{day}", first))
    before = set(alone.at("reject").delta().file_uris())
    days = [((START + timedelta(days=day)).date(),) for day in range(2)]

    def removed(mark: Transaction) -> bool:
        commit = gathered.commit(mark, None)
        return remove_here.remove(alone.at("reject"), schemas.REJECT, days, rejects.is_whole, rejects.REJECT, commit)

    mark = Transaction("removal", 1)
    assert removed(mark)
    after = set(alone.at("reject").delta().file_uris())
    assert (len(before), len(before & after), len(after)) == (6, 4, 6)
    left = sorted((row[6], row[12].day) for row in rows(alone, "reject"))
    assert left == [("", 16), ("t", 14), ("t", 15), ("t", 16), ("u", 14), ("u", 15), ("u", 16)]
    assert not removed(mark)
    entry = delta_log.entry(alone.at("reject"), alone.at("reject").delta().version())
    assert entry is not None
    assert (entry.takes_away, entry.transactions) == (True, {"removal": 1})
