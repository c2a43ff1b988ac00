"""Readings made in this process: the same as Spark makes, of whatever devices send and clocks say."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import pyarrow as pa
import pytest

from spark import delta_log, gathered, schemas
from spark.decoding.limits import BODY_BYTES_MAX
from spark.here import births, clocks
from spark.here import readings as here
from spark.jobs import catalog, runner
from spark.jobs import readings as readings_job
from spark.tables import Lake
from spark.transaction import Transaction
from tests.spark import lakes
from tests.spark.decoding.test_sparkplug import metric
from tests.spark.lakes import START, Row, message
from tests.spark.test_replay import born, cut_before_readings, sparkplug
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20_261_127
_MS = 1_000
TIMES = (
    START,
    START - timedelta(days=9),
    START + timedelta(days=400),
    datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
    datetime(2019, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2038, 1, 19, tzinfo=UTC),
)
BODIES: tuple[bytes, ...] = (
    b"21.5",
    b"+21.5",
    b"true",
    b"null",
    b"",
    b"\xff\xfe",
    b"not a number",
    b"NaN",
    b"9007199254740993",
    b'{"t": 1.5, "air": {"humidity": 40, "cells": [1, 2.5, "x", null]}}',
    b'{"t": NaN, "u": 2}',
    b'{"state": "on", "ok": false}',
    b'{"t": 20.5, "ts": %d}' % (START.timestamp() * _MS),
    b'{"t": 20.5, "ts": %d}' % ((START - timedelta(days=3)).timestamp() * _MS),
    b'{"t": 20.5, "timestamp": "1970-01-01T00:00:05Z"}',
    b'{"t": 20.5, "timestamp": "2099-01-01T00:00:05Z"}',
    b'[{"ts": %d, "t": 20}, {"ts": %d, "t": 21}]' % (START.timestamp() * _MS, START.timestamp() * _MS + 1_500),
    b'[{"bn": "urn:dev:mac:0024befffe804ff1:", "n": "temp", "u": "Cel", "v": 23.1}, {"n": "label", "vs": "a"}]',
    b"{" + b'"k": {' * 20 + b"}" * 21,
    json.dumps({"said": "x" * 5_000}).encode(),
    b'{"a": ' + b" " * BODY_BYTES_MAX + b"1}",
    cbor2.dumps({"t": 4.5, "n": [1, 2]}),
)
ADDRESSES = ("plant/load", "a/b/", "a/b//", "///", "Gerät", "a/\n", "x")
CONTENT_TYPES = (
    None,
    None,
    "application/json",
    "text/plain",
    "application/cbor",
    "application/senml+json",
    "image/png",
)


def sent(randoms: random.Random, number: int) -> Row:
    received = randoms.choice((START, START + timedelta(seconds=number), *TIMES))
    return message(
        number,
        at=received,
        event_time=randoms.choice((received, received, *TIMES)),
        ingested_at=START + timedelta(seconds=number),
        address=randoms.choice(ADDRESSES),
        device=f"d{number % 3}",
        body=randoms.choice(BODIES),
        content_type=randoms.choice(CONTENT_TYPES),
        clock_quality=randoms.choice(("good", "bounded", "unknown")),
        lane=randoms.choice(("live", "backlog")),
    )


def rows(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    made = lake.at(name).delta().to_pyarrow_table().select(schemas.DERIVED[name].columns.names).to_pylist()
    return sorted((tuple(row.values()) for row in made), key=repr)


def take(lake: Lake, *messages: Row) -> None:
    lakes.write(lake.place, "telemetry", messages)
    steps = runner.one_pass(lake, catalog.chosen(["readings"]), lambda _: None)
    assert [step.error for step in steps] == [None]


def engine(lake: Lake, name: str) -> str:
    """Who made the last commit of a table."""
    entry = lake.commit(name, lake.at(name).delta().version())
    assert entry is not None
    return "spark" if "Spark" in str(entry.info.get("engineInfo")) else "here"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_makes_the_same_readings_and_rejects(spark: SparkSession, tmp_path: Path) -> None:
    randoms = random.Random(chosen_seed(SEED))
    messages = [sent(randoms, number) for number in range(1_500)]
    ours, theirs = (Lake(spark, tmp_path / str(own), here=own) for own in (True, False))
    for lake in (ours, theirs):
        for first in (0, 1_000):
            take(lake, *messages[first : first + 1_000])
    assert (engine(ours, "readings"), engine(theirs, "readings")) == ("here", "spark")
    for name, least in (("readings", 500), ("reject", 300)):
        found = rows(ours, name)
        assert found == rows(theirs, name)
        assert len(found) > least
    assert ours.provenance("readings") is not None


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["twice", "born a lot", "told a lot", "rejected"])
def test_what_spark_knows_more_of_is_left_to_it(lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    take(lake, message(0, body=b"1"), message(1, body=b"x"))
    assert engine(lake, "readings") == "here"
    if kind == "rejected":  # and then the program dies
        lakes.write(lake.place, "telemetry", [message(2, body=b"y"), message(3, body=b"2")])
        with cut_before_readings(monkeypatch):
            readings_job.JOB.run(lake.for_job())
        assert len(rows(lake, "reject")) == 2
    elif kind == "twice":  # a message without a birth, that is
        lakes.write(lake.place, "telemetry", [sparkplug(9, "NDATA", 5, metric(None, (13, 1.0), alias=1))] * 2)
    elif kind == "born a lot":
        lakes.write(lake.place, "telemetry", [sparkplug(9, "NBIRTH", 4, born("speed", 1), born("load", 2))])
        lakes.write(lake.place, "telemetry", [sparkplug(9, "NDATA", 5, metric(None, (13, 1.0), alias=1))])
        monkeypatch.setattr(births, "METRICS_MAX", 2)
    else:
        lakes.write(lake.place, "telemetry", [message(9, body=b"2")])
        lakes.write(lake.place, "clock_offsets", [lakes.clock_offset(0, 9, known="measured", whole=True)])
        monkeypatch.setattr(clocks, "ROWS_MAX", 0)
    made: list[str] = []
    monkeypatch.setattr(here, "decoded", lambda *_: made.append("here"))
    (step,) = runner.one_pass(lake, catalog.chosen(["readings"]), lambda _: None)
    assert (step.error, made) == (None, [])
    assert len(rows(lake, "readings")) == {"twice": 1, "born a lot": 5, "told a lot": 2, "rejected": 2}[kind]
    assert len(rows(lake, "reject")) == (1 if kind in ("born a lot", "told a lot") else 2)
    assert len(rows(lake, "sparkplug_births")) == (3 if kind == "born a lot" else 0)


def test_a_large_message_is_not_there_once_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 messages of 200 KiB with 1 000 values each, half of them nulls within lists, would be 10 GB."""
    monkeypatch.setattr(here, "REJECTS_AT_ONCE", 3_000)
    values = ", ".join(["1"] * 500 + ['"' + "x" * 300 + '"'] * 500)
    body = ('{"said": "' + "y" * 40_000 + '", "v": [' + values + "]}").encode()
    wrong = json.dumps(["\ud800"] * 1_000).encode()
    session: Any = None
    lake = Lake(session, tmp_path / "lake")
    lakes.write(lake.place, "telemetry", [message(n, body=body if n % 2 else wrong) for n in range(50)])
    files = delta_log.files(lake.at("telemetry").delta())
    before = pa.total_allocated_bytes()
    parts = []
    for part in lake.columns_of("telemetry", files, here.MESSAGE):
        for found in here.decoded(part):
            parts.append((len(found.readings), len(found.rejects)))
            assert pa.total_allocated_bytes() - before < 100_000_000
    assert [sum(each) for each in zip(*parts, strict=True)] == [25 * 1_001, 25 * 1_000]
    assert max(rejects for _, rejects in parts) == 3_000


def test_many_rows_become_some_files_of_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = None
    lake = Lake(session, tmp_path / "lake")
    lake.ensure("readings")
    monkeypatch.setattr(gathered, "PART_BYTES", 10_000)
    monkeypatch.setattr(here, "MESSAGES_AT_ONCE", 500)
    days = [message(n, body=b"%d" % n, at=START + timedelta(days=n % 2)) for n in range(4_000)]
    lakes.write(lake.place, "telemetry", days)
    writer = gathered.Writer(lake.at("readings"))
    for part in lake.columns_of("telemetry", delta_log.files(lake.at("telemetry").delta()), here.MESSAGE):
        for found in here.decoded(part):
            writer.add(found.readings)
    marker = gathered.commit(Transaction("job", 1), None)
    assert writer.commit(marker)
    assert lake.rows("readings") == 4_000
    assert len(lake.at("readings").delta().file_uris()) == 8
    assert not gathered.Writer(lake.at("readings")).commit(marker)
