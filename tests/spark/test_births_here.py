"""Sparkplug's data named in this process: the same tables as Spark makes, of whatever nodes send."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark import columns, registry, schemas
from spark.decoding import reasons
from spark.decoding.schema import PayloadSchema
from spark.here import births
from spark.here import readings as here
from spark.jobs import catalog, replay
from spark.jobs.following import Following
from spark.tables import Lake
from tests.spark import lakes
from tests.spark.decoding.test_sparkplug import AT_MS, field, metric, payload
from tests.spark.lakes import START, Row, message
from tests.spark.test_readings_here import rows
from tests.spark.test_replay import born, cut_before_readings, sparkplug
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_261_127
TABLES = ("readings", "reject", "sparkplug_births")
NAMES = ("speed", "load", "Drehmoment/größer", "x" * 300, "T")
ALIASES = (0, 1, 2, 3, 2**63, 2**64 - 1)
DATATYPES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 34, 2**32 - 1)
WHOLE = (0, 1, 0x7F, 0x80, 0xFF, 0x8000, 0xFFFF, 2**31, 2**32 - 1, 2**32 - 10)
LONG = (5, 2**53, 2**53 + 1, 2**63, 2**64 - 1, 2**64 - 2**53 - 1)
NODES = ("{}/press", "{}/press", "{}/saw")
JSON = ('{"who": "n1", "speed": 4, "T": -1}', '{"speed": 3}', "7", "x", '{"": 1}')


def said(randoms: random.Random) -> tuple[int, bytes | str | float]:
    """A value, in the field of its kind."""
    kinds: list[tuple[int, Sequence[Any]]] = [
        (10, WHOLE), (10, WHOLE), (10, WHOLE), (11, LONG), (13, (1.5, -0.0)), (14, (0, 1)), (15, ("on", "")),
        (7, (1,)), (16, (b"x",)), (17, (b"",)),
        (18, (metric("volts", (10, 400)), metric(None, (10, 2**32 - 1), alias=2))),
    ]  # fmt: skip
    number, values = randoms.choice(kinds)
    return number, randoms.choice(values)


def metrics(randoms: random.Random, kind: str) -> bytes:
    """Births name most, data leaves most out; some names and aliases are there twice."""
    found = []
    for _ in range(randoms.randrange(1, 6)):
        is_named = randoms.random() < (0.9 if "BIRTH" in kind else 0.4)
        alias = randoms.choice(ALIASES) if not is_named or randoms.random() < 0.6 else None
        fields = [said(randoms)]
        if randoms.random() < (0.8 if "BIRTH" in kind else 0.2):
            fields.append((4, randoms.choice(DATATYPES)))
        if randoms.random() < 0.3:
            fields.append((3, AT_MS + randoms.randrange(5)))
        if randoms.random() < 0.3:
            unit = field(1, 12) + field(8, randoms.choice(("rpm", "Cel")))
            fields.append((9, field(1, "engUnit") + field(2, unit)))
        name = randoms.choice(NAMES[:3] * 20 + NAMES) if is_named else None
        found.append(metric(name, *fields, alias=alias))
    if randoms.random() < 0.3:
        found.append(metric("bdSeq", (4, 8), (11, randoms.randrange(9))))
    return payload(*found, seq=randoms.randrange(256))


def sent(randoms: random.Random, number: int) -> Row:
    """Of one of some nodes, devices, or of something that speaks no Sparkplug."""
    second = randoms.choice((number // 4, number // 4, randoms.randrange(100)))
    at = datetime(1970, 1, 1, tzinfo=UTC) if randoms.random() < 0.03 else START
    received = at + timedelta(seconds=second)
    kind = randoms.choice(("NBIRTH", "DBIRTH", "NDATA", "DDATA", *("NDATA", "DDATA") * 2, "NDEATH", "DDEATH", "NCMD"))
    node = randoms.choice(NODES).format(kind) + ("/motor" if kind[0] == "D" else "")
    group, body = randoms.choice(("plant", "plant", "größer")), metrics(randoms, kind)
    address = f"spBv1.0/{group}/{node}"
    other = randoms.random()
    if other < 0.25:
        address = randoms.choice(
            (
                "spBv1.0/STATE/host",
                "spBv1.0/json/NDATA/n1",
                "spBv1.0/json/NBIRTH/n1",
                "load/cpu",
                "a/b/",
                "spBv1.0/NDATA",
            )
        )
        body = randoms.choice(JSON).encode()
    elif other < 0.3:
        body = randoms.choice((b"\xff", b"", payload(*[metric("m", (10, 1))] * 1_100)))
    return message(
        number,
        at=received,
        event_time=randoms.choice((received, received, received - timedelta(days=1))),
        ingested_at=START + timedelta(seconds=number),
        tenant=randoms.choice(("default", "default", "other")),
        gateway=randoms.choice(("gw1", "gw1", "Gerät")),
        epoch=randoms.choice(("e1", "e2")),
        device=randoms.choice(("d1", "n1")),
        address=address,
        body=body,
        clock_quality=randoms.choice(("good", "bounded", "unknown")),
    )


def follow(lake: Lake) -> None:
    """The step that takes messages, without the one that reads rejects again."""
    step = catalog.chosen(["readings"])[0].steps[0]
    assert isinstance(step, Following)
    step.run(lake)


def take(lake: Lake, *messages: Row) -> None:
    lakes.write(lake.place, "telemetry", messages)
    follow(lake)


@pytest.fixture
def alone(tmp_path: Path) -> Lake:
    """A lake without a session: nothing here needs one."""
    session: Any = None
    return Lake(session, tmp_path / "alone", here=True)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_makes_the_same_of_sparkplug(alone: Lake, larger: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "MESSAGES_AT_ONCE", 70)
    monkeypatch.setattr(columns, "ROWS", 100)
    randoms = random.Random(chosen_seed(SEED))
    messages = [sent(randoms, number) for number in range(1_600)]
    schema = PayloadSchema("spBv1.0/json/#", "json", device="who")
    for lake in (alone, larger):
        registry.register(lake.at("payload_schemas"), schema, START)
        for first in range(0, 1_600, 100):
            lakes.write(lake.place, "telemetry", messages[first : first + 100])
            if first in (0, 700, 1_500):
                follow(lake)
    for name in TABLES:
        found = rows(alone, name)
        assert found == rows(larger, name)
        assert len(found) > 400
    why = alone.at("reject").delta().to_pyarrow_table()["reason"].to_pylist()
    assert why.count(reasons.NO_BIRTH) > 50
    read = alone.at("readings").delta().to_pyarrow_table().to_pylist()
    of_data = [row for row in read if "DATA" in row["address"]]
    assert len({row["metric"] for row in of_data}) > 5
    assert any((row["value"] or 0) < 0 for row in of_data)
    assert {row["unit"] for row in of_data} == {None, "rpm", "Cel"}


def test_data_goes_by_births_of_its_batch_and_of_those_before(alone: Lake) -> None:
    data = metric(None, (10, 2**32 - 10), alias=1)
    take(alone, sparkplug(0, "NBIRTH", 4, born("speed", 1)), sparkplug(0, "NDATA", 5, data), message(7))
    take(alone, sparkplug(1, "NDATA", 6, data), sparkplug(2, "NDATA", 3, data), sparkplug(3, "NDATA", 9, data))
    take(alone, sparkplug(4, "NDATA", 30, data), sparkplug(1, "NBIRTH", 20, born("torque", 1, datatype=7)))
    found = {row[4]: row for row in rows(alone, "readings") if "NDATA" in row[3]}
    names = schemas.READINGS.columns.names
    said = {
        number: tuple(row[names.index(name)] for name in ("metric", "value", "unit")) for number, row in found.items()
    }
    speed, torque = ("speed", -10.0, "rpm"), ("torque", 2.0**32 - 10, "rpm")
    assert said == {0: speed, 1: speed, 3: speed, 4: torque}
    (reject,) = rows(alone, "reject")
    assert (reject[4], reject[6], reject[9], reject[11]) == (2, "", reasons.NO_BIRTH, data)
    assert len(rows(alone, "sparkplug_births")) == 4


def test_other_processes_name_data_as_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "MESSAGES_A_TASK", 60)
    randoms = random.Random(chosen_seed(SEED))
    kept = [{name: row[name] for name in here.MESSAGE} for row in (sent(randoms, number) for number in range(400))]
    messages = pa.Table.from_pylist(kept, pa.schema([schemas.TELEMETRY.arrow.field(name) for name in here.MESSAGE]))
    is_birth = births.is_birth(messages)
    found = [names for names, _ in here.decoded_births(messages.filter(pa.array(is_birth)))]
    since = births.since([messages])
    assert since is not None
    known = births.known(found, since)
    assert known is not None
    alone, together = (list(here.all_decoded([messages], (), processes, known)) for processes in (1, 2))
    for table in ("readings", "rejects"):
        one, other = (
            sorted(str(row) for each in found for row in getattr(each, table).to_pylist())
            for found in (alone, together)
        )
        assert len(one) > 50
        assert one == other


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("own", [True, False])
def test_births_have_a_new_version_where_there_are_new_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Rejects that wait for one were read again after each batch with data of Sparkplug, in Spark."""
    lake = Lake(spark, tmp_path, here=own)
    data = metric(None, (13, 1.0), alias=1)
    take(lake, sparkplug(0, "NBIRTH", 4, born("speed", 1)), sparkplug(0, "NDATA", 3, data))
    rejects = lake.state("reject")
    assert rejects is not None
    due = [mark.application for _, mark in replay._due(lake, rejects)]
    for _, mark in replay._due(lake, rejects):
        lake.append("reject", schemas.REJECT.arrow.empty_table(), mark)
    take(lake, sparkplug(1, "NDATA", 5, data))
    assert (len(due), replay._due(lake, rejects)) == (1, [])
    assert len(rows(lake, "readings")) == 3


def test_births_that_an_attempt_wrote_which_died_are_there_once(alone: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    data = sparkplug(0, "NDATA", 5, metric(None, (13, 1.0), alias=1))
    lakes.write(alone.place, "telemetry", [data, sparkplug(0, "NBIRTH", 4, born("speed", 1))])
    with cut_before_readings(monkeypatch):
        follow(alone)
    assert (len(rows(alone, "sparkplug_births")), rows(alone, "readings")) == (2, [])
    follow(alone)
    assert (len(rows(alone, "sparkplug_births")), len(rows(alone, "readings"))) == (2, 3)


class TestKnown:
    """What is held of births, for whom."""

    def test_births_that_later_ones_have_replaced_are_not_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(births, "METRICS_MAX", 8)
        before = [[birth(second, metric=f"m{number}") for number in range(3)] for second in range(9)]
        others = [[birth(0, gateway="gw2"), birth(0, device="other")], [birth(12)]]
        for there in (before + others, others + before[::-1]):
            found = births.known(map(births_of, there), {("default", "gw1"): at(10)})
            assert found is not None
            assert sorted(map(str, births.opened(found).metrics["metric"].to_pylist())) == ["m", "m", "m0", "m1", "m2"]

    def test_more_than_are_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(births, "METRICS_MAX", 8)
        for there in ([9], [5, 4], [0, 9, 0]):
            parts = [
                births_of([birth(0, metric=f"{part}/{number}") for number in range(count)])
                for part, count in enumerate(there)
            ]
            assert births.known(parts, {("default", "gw1"): at(10)}) is None
            assert births.known(parts, {("default", "gw2"): at(10)}) is not None

    def test_nothing_is_known(self) -> None:
        nothing = births.known([births_of([])], {("default", "gw1"): 0})
        assert nothing is not None
        assert len(births.opened(nothing).metrics) == 0


def at(second: int) -> int:
    return int((START + timedelta(seconds=second)).timestamp()) * 1_000_000


def birth(second: int, **override: Any) -> Row:
    row = {"tenant": "default", "gateway": "gw1", "device": "plant/press", "metric": "m"}
    return {**row, "received_at": START + timedelta(seconds=second), **override}


def births_of(rows: Sequence[Row]) -> pa.Table:
    """As they are read."""
    arrow = pa.schema([schemas.SPARKPLUG_BIRTHS.arrow.field(name) for name in births.BIRTH])
    return columns.fitted(
        pa.Table.from_pylist([{name: row.get(name) for name in births.BIRTH} for row in rows], arrow), arrow
    )
