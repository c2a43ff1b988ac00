"""Sparkplug births and rejects: a reject becomes readings exactly once, despite crashes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from spark import registry, schemas
from spark.conflict import ConcurrentWrite
from spark.decoding import reasons
from spark.decoding.schema import BadSchema, PayloadSchema
from spark.jobs import readings as readings_job
from spark.jobs import replay, runner
from spark.jobs.replay import RejectFilter
from spark.lake import SparkLake
from spark.lineage import rows_changed
from spark.sink import Sink
from spark.transforms import births, readings
from tests.spark.decoding.test_sparkplug import field, metric
from tests.spark.lakes import START, message
from tests.spark.test_jobs import land, run, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Make

MixedLake = tuple[SparkLake, list[tuple[Any, ...]], list[tuple[Any, ...]]]
"""Lake, and the readings and rejects that a replay leaves in it."""
NODE = "spBv1.0/plant/{}/press"
NOW = datetime(2026, 3, 14, tzinfo=UTC)


def sparkplug(sequence: int, kind: str, second: int, *metrics: bytes, **override: Any) -> dict[str, Any]:
    """Build a message of one node, received at that second."""
    at = START + timedelta(seconds=second)
    return message(sequence, at=at, address=NODE.format(kind), epoch=kind, body=b"".join(metrics), **override)


def born(name: str, alias: int, datatype: int = 3) -> bytes:
    unit = field(9, field(1, "engUnit") + field(2, field(1, 12) + field(8, "rpm")))
    return field(2, field(1, name) + field(2, alias) + field(4, datatype) + unit + field(10, 1))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_data_goes_by_the_last_birth_received_before_it(frame: Make) -> None:
    rows = [
        sparkplug(0, "NBIRTH", 10, born("speed", 1), born("load", 2, datatype=1)),
        sparkplug(1, "NBIRTH", 20, born("torque", 1)),
        sparkplug(2, "NBIRTH", 30, born("other", 9), gateway="gw2"),
        sparkplug(0, "NDATA", 5, metric(None, (10, 5), alias=1)),
        sparkplug(1, "NDATA", 10, metric(None, (10, 2**32 - 10), alias=1)),
        sparkplug(2, "NDATA", 19, metric(None, (10, 0xFE), alias=2), metric("named", (13, 1.5))),
        sparkplug(3, "NDATA", 20, metric(None, (10, 20), alias=1)),
        sparkplug(4, "NDATA", 40, metric(None, (10, 7), alias=2), metric(None, (10, 8), alias=1)),
        sparkplug(5, "NDATA", 41, metric("torque", (10, 2**32 - 1))),
        sparkplug(6, "NDATA", 42, metric("unheard of", (10, 2**32 - 1))),
    ]
    decoded = readings.decode_messages(frame("telemetry", *rows)).localCheckpoint()
    known = births.births(decoded)
    assert known.schema.names == schemas.SPARKPLUG_BIRTHS.columns.names
    named = births.name_metrics(decoded, known).localCheckpoint()
    good = readings.readings(named).where("address LIKE '%NDATA%'").collect()
    assert {(row["sequence"], row["metric"], row["value"], row["unit"]) for row in good} == {
        (1, "speed", -10.0, "rpm"),
        (2, "load", -2.0, "rpm"),
        (2, "named", 1.5, None),
        (3, "torque", 20.0, "rpm"),
        (5, "torque", -1.0, "rpm"),
    }
    bad = readings.rejects(named).collect()
    assert sorted((row["sequence"], row["metric"], row["reason"]) for row in bad) == [
        (number, "", reasons.NO_BIRTH) for number in (0, 4, 6)
    ]
    assert all(bytes(row["body"]) for row in bad)


def of(lake: SparkLake, name: str) -> list[tuple[Any, ...]]:
    column = "value" if name == "readings" else "reason"
    return sorted(table(lake, name, "address", "sequence", "metric", column))


@contextmanager
def cut_after(monkeypatch: pytest.MonkeyPatch, commits: int) -> Iterator[None]:
    """Fail inside the block after this many commits."""
    written = 0

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def dies(self: Sink, *arguments: Any, **named: Any) -> Any:
            nonlocal written
            if written == commits:
                raise RuntimeError("power cut")
            written += 1
            return write(self, *arguments, **named)

        return dies

    with monkeypatch.context() as patch:
        for name in ("append", "remove", "commit_empty"):
            patch.setattr(Sink, name, dying(getattr(Sink, name)))
        with pytest.raises(RuntimeError, match="power cut"):
            yield


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_could_not_be_read_is_read_once_when_it_can(lake: SparkLake, tmp_path: Path) -> None:
    """A birth and a schema come after their messages; a file of these messages is missing in between."""
    land(lake, message(1, address="stat/a/POWER", body=b"ON"))
    (uri,) = deltalake.DeltaTable(lake.path("telemetry")).file_uris()
    path, away = Path(uri.removeprefix("file://")), tmp_path / "away"
    land(
        lake,
        sparkplug(0, "NDATA", 5, metric(None, (13, 1.0), alias=1)),
        message(3, body=b"21.5"),
        message(4, body=json.dumps({"t": 1, "u": 1e300}).replace("e+300", "e999").encode()),
    )
    run(lake, "readings")
    before = [("load/cpu", 3, "cpu", 21.5), ("load/cpu", 4, "t", 1.0)]
    kept = [("load/cpu", 4, "u", reasons.NOT_FINITE)]
    nameless = (NODE.format("NDATA"), 0, "", reasons.NO_BIRTH)
    unread = ("stat/a/POWER", 1, "", reasons.NOT_A_VALUE)
    assert (of(lake, "readings"), of(lake, "reject")) == (before, [*kept, nameless, unread])

    registry.register(lake.at("payload_schemas"), PayloadSchema("stat/+/POWER", "text"), NOW)
    land(lake, sparkplug(0, "NBIRTH", 4, born("speed", 1, datatype=9)))
    births_of = [(NODE.format("NBIRTH"), 0, name, 1.0) for name in ("online", "speed")]
    read = [("stat/a/POWER", 1, "POWER", None), *births_of, (NODE.format("NDATA"), 0, "speed", 1.0)]
    path.rename(away)
    (step,) = runner.run_pass(lake, [readings_job.JOB], lambda _: None)
    assert (step.state, step.integrity) == ("failed", True)
    assert f"{path} is missing. Restore it from a copy" in (step.error or "")
    assert (of(lake, "readings"), of(lake, "reject")) == (sorted([*before, *births_of]), [*kept, nameless, unread])
    away.rename(path)
    for _ in range(2):
        run(lake, "readings")
        assert of(lake, "readings") == sorted([*before, *read])
        assert of(lake, "reject") == kept
    made_of = lake.lineage("readings")
    assert made_of is not None
    telemetry = made_of.telemetry
    assert telemetry is not None
    assert telemetry.is_same(lake.state("telemetry"))
    rejects = deltalake.DeltaTable(lake.path("reject"))
    assert made_of.siblings["reject"].id == str(rejects.metadata().id)
    assert not rows_changed(rejects, made_of.siblings["reject"].version)


def _mixed(lake: SparkLake, count: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Land messages with one readable value and one unreadable value, once they count as CBOR; return the results."""
    body = b"\xa2\x61t\x01\x61u\xf9\x7c\x00"  # {"t": 1, "u": infinity} without the tag of CBOR
    sent = (message(number, address=f"a/{number}", body=body, content_type="x/y") for number in range(count))
    land(lake, *sent)
    _take(lake)
    registry.register(lake.at("payload_schemas"), PayloadSchema("a/+", "cbor"), NOW)
    good = [(f"a/{number}", number, "t", 1.0) for number in range(count)]
    bad = [(f"a/{number}", number, "u", reasons.NOT_FINITE) for number in range(count)]
    return good, bad


@pytest.fixture(scope="module")
def once_mixed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> MixedLake:
    """Lake with one message with a readable and an unreadable value, and the results; copied by `mixed`."""
    lake = SparkLake(spark, tmp_path_factory.mktemp("mixed") / "lake")
    return lake, *_mixed(lake, 1)


@pytest.fixture
def mixed(once_mixed: MixedLake, tmp_path: Path) -> MixedLake:
    """Lake with one message with a readable and an unreadable value, and the results."""
    lake, good, bad = once_mixed
    return SparkLake(lake.session, shutil.copytree(lake.place.uri, tmp_path / "lake")), good, bad


def _take(lake: SparkLake) -> None:
    """Process new messages without a retry of rejects."""
    readings_job.JOB.steps[0].run(lake)


def _whole(lake: SparkLake) -> list[str]:
    """Return the addresses of messages that were rejected as a whole."""
    return sorted(row[0] for row in of(lake, "reject") if not row[2])


def _values(lake: SparkLake) -> list[tuple[Any, ...]]:
    return [row for row in of(lake, "reject") if row[2]]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_replay_that_dies_between_any_two_commits_moves_each_message_once(
    lake: SparkLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay writes rejects of values, then readings, then each removal; its repetition may crash at every step
    too.
    """
    good, bad = _mixed(lake, 4)
    moved: list[int] = []
    for commits in (1, 2, 3, 4):
        number = commits - 1
        with cut_after(monkeypatch, commits):
            replay.replay(lake, RejectFilter(address=f"a/{number}"))
        if commits > 1:
            moved.append(number)
        if commits < 4:  # the fence, each removal
            with cut_after(monkeypatch, commits):
                replay.finish(lake)
        replay.finish(lake)
        assert of(lake, "readings") == [good[each] for each in moved]
        assert _values(lake) == [bad[each] for each in moved]
        assert _whole(lake) == [f"a/{each}" for each in range(4) if each not in moved]
        version = lake.version("readings")
        replay.finish(lake)
        assert lake.version("readings") == version, "there is nothing left to end"
    run(lake, "readings")
    assert (of(lake, "readings"), of(lake, "reject")) == (good, bad)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_message_with_the_numbers_of_one_that_has_moved_stays(
    mixed: MixedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message with the same numbers lands on another address while the replay has not removed its moved rejects."""
    lake, good, bad = mixed
    with cut_after(monkeypatch, 2):
        replay.replay(lake, RejectFilter())
    land(lake, message(0, address="b/x", body=b"down"))
    _take(lake)
    assert _whole(lake) == ["a/0", "b/x"]
    replay.finish(lake)
    assert (of(lake, "readings"), _values(lake), _whole(lake)) == (good, bad, ["b/x"])


def _all_of_it(lake: SparkLake) -> None:
    replay.replay(lake, RejectFilter(address="a/#"))


def _end_of_it(lake: SparkLake) -> None:
    replay.finish(lake)


def _more_rejects(lake: SparkLake) -> None:
    land(lake, message(9, address="b/9", body=b"up"))
    _take(lake)
    replay.replay(lake, RejectFilter(address="a/#"))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("table_name", "other"),
    [
        ("reject", _all_of_it),
        *(
            pytest.param(*meeting, marks=pytest.mark.slow)
            for meeting in (("reject", _more_rejects), ("readings", _all_of_it), ("readings", _end_of_it))
        ),
    ],
)
def test_of_two_replays_at_once_one_does_it(
    mixed: MixedLake, monkeypatch: pytest.MonkeyPatch, table_name: str, other: Callable[[SparkLake], None]
) -> None:
    """The other replay runs just before this one writes the rejects of values, or the readings."""
    lake, good, bad = mixed
    append = Sink.append

    def late(self: Sink, name: str, *arguments: Any, **named: Any) -> bool:
        if name == table_name:
            monkeypatch.setattr(Sink, "append", append)
            other(lake)
        return append(self, name, *arguments, **named)

    monkeypatch.setattr(Sink, "append", late)
    with pytest.raises(ConcurrentWrite, match="another pass"):
        replay.replay(lake, RejectFilter(address="a/#"))
    if other is _end_of_it:
        assert (of(lake, "readings"), _values(lake), _whole(lake)) == ([], [], ["a/0"])
        replay.replay(lake, RejectFilter(address="a/#"))
    assert (of(lake, "readings"), _values(lake)) == (good, bad)
    assert _whole(lake) == (["b/9"] if other is _more_rejects else [])


@contextmanager
def cut_before_readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail inside the block before the readings are written."""
    append = Sink.append

    def dies(self: Sink, name: str, *arguments: Any, **named: Any) -> bool:
        if name == "readings":
            raise RuntimeError("power cut")
        return append(self, name, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "append", dies)
        with pytest.raises(RuntimeError, match="power cut"):
            yield


@pytest.fixture(scope="module")
def rejected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkLake:
    """Lake with a batch that died between its rejects and its readings; one schema came since, and another went."""
    lake = SparkLake(spark, tmp_path_factory.mktemp("rejected") / "lake")
    registry.register(lake.at("payload_schemas"), PayloadSchema("b/+", "text"), NOW)
    land(lake, message(0, address="a/x", body=b"up"), message(1, address="b/x", body=b"down"), message(2, body=b"7"))
    with pytest.MonkeyPatch.context() as monkeypatch, cut_before_readings(monkeypatch):
        _take(lake)
    assert table(lake, "reject", "address") == [("a/x",)]
    registry.register(lake.at("payload_schemas"), PayloadSchema("a/+", "text"), NOW + timedelta(seconds=1))
    registry.remove(lake.at("payload_schemas"), "b/+", None, NOW + timedelta(seconds=2))
    return lake


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("replayed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_batch_that_died_before_its_readings_is_read_as_it_was_rejected(
    rejected: SparkLake, tmp_path: Path, replayed: bool
) -> None:
    """A manual replay may come before the second attempt."""
    lake = SparkLake(rejected.session, shutil.copytree(rejected.place.uri, tmp_path / "lake"))
    if replayed:
        replay.replay(lake, RejectFilter())
        assert table(lake, "readings", "address") == [("a/x",)]
    for _ in range(2):
        run(lake, "readings")
        assert table(lake, "readings", "address") == [("a/x",), ("b/x",), ("load/cpu",)]
        assert table(lake, "reject") == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_messages_without_a_schema_are_read_again_when_it_comes_back(lake: SparkLake) -> None:
    """A second registration counts as much as the first, although the schemas are equal."""
    for second in (0, 10):
        land(lake, message(second, address="b/x", body=b"up"))
        run(lake, "readings")
        assert table(lake, "reject", "sequence") == [(second,)]
        registry.register(lake.at("payload_schemas"), PayloadSchema("b/+", "text"), NOW + timedelta(seconds=second))
        replay.Replay().run(lake)
        assert table(lake, "reject") == []
        registry.remove(lake.at("payload_schemas"), "b/+", None, NOW + timedelta(seconds=second + 1))


class TestRegistry:
    """Registry of schemas, without a JVM."""

    def test_the_newest_of_a_tenant_and_pattern_holds(self, tmp_path: Path) -> None:
        path = str(tmp_path / "payload_schemas")
        assert registry.load_schemas(path) == []
        first, other = PayloadSchema("a/+", "json"), PayloadSchema("a/+", "cbor", tenant="t")
        for number, schema in enumerate((first, other, PayloadSchema("a/+", "text", units={"*": "V"}))):
            registry.register(path, schema, NOW + timedelta(seconds=number))
        assert registry.load_schemas(path) == [other, PayloadSchema("a/+", "text", units={"*": "V"})]
        registry.remove(path, "a/+", None, NOW + timedelta(seconds=9))
        assert registry.load_schemas(path) == [other]
        with pytest.raises(registry.UnknownSchema):
            registry.remove(path, "a/+", None, NOW)

    def test_a_bad_one_and_too_many_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = str(tmp_path / "payload_schemas")
        with pytest.raises(BadSchema):
            registry.register(path, PayloadSchema("a/#/b", "json"), NOW)
        monkeypatch.setattr(registry, "SCHEMAS_MAX", 2)
        for pattern in ("a", "b", "b"):
            registry.register(path, PayloadSchema(pattern, "json"), NOW)
        with pytest.raises(BadSchema, match="2 schemas"):
            registry.register(path, PayloadSchema("c", "json"), NOW)

    @pytest.mark.parametrize(
        ("pattern", "address", "fits"),
        [
            ("a/+", "a/b", True), ("a/+", "a/b/c", False), ("a/#", "a", True), ("a/#", "a/b/c", True), ("#", "x", True),
            ("a.b", "axb", False), ("+/b", "a/b", True), ("a/+/#", "a/b", True), ("a/+/#", "a", False),
        ],
    )  # fmt: skip
    def test_a_pattern_as_a_regular_expression(self, pattern: str, address: str, fits: bool) -> None:
        assert (re.search(replay._pattern_regex(pattern), address) is not None) is fits
