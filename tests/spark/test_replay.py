"""Sparkplug's births, and rejects that become readings: once, wherever it stops."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from spark import registry, schemas
from spark.conflict import Overtaken
from spark.decoding import reasons
from spark.decoding.schema import BadSchema, PayloadSchema
from spark.jobs import readings as readings_job
from spark.jobs import replay
from spark.jobs.replay import Chosen
from spark.lineage import rows_changed
from spark.lake import Lake
from spark.transforms import births, readings
from tests.spark.decoding.test_sparkplug import field, metric
from tests.spark.lakes import START, message
from tests.spark.test_jobs import land, run, table

if TYPE_CHECKING:
    from tests.spark.conftest import Make

NODE = "spBv1.0/plant/{}/press"
NOW = datetime(2026, 3, 14, tzinfo=UTC)


def sparkplug(sequence: int, kind: str, second: int, *metrics: bytes, **override: Any) -> dict[str, Any]:
    """A message of one node, received at that second."""
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
    decoded = readings.decoded(frame("telemetry", *rows)).localCheckpoint()
    known = births.births(decoded)
    assert known.schema.names == schemas.SPARKPLUG_BIRTHS.columns.names
    named = births.named(decoded, known).localCheckpoint()
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


def of(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    column = "value" if name == "readings" else "reason"
    return sorted(table(lake, name, "address", "sequence", "metric", column))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_could_not_be_read_is_read_once_when_it_can(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A birth that lands after its data, and a schema that is registered after its messages; stopped at every step."""
    land(
        lake,
        sparkplug(0, "NDATA", 5, metric(None, (13, 1.0), alias=1)),
        message(1, address="stat/a/POWER", body=b"ON"),
        message(2, address="stat/b/POWER", body=b"OFF"),
        message(3, body=b"21.5"),
        message(4, body=json.dumps({"t": 1, "u": 1e300}).replace("e+300", "e999").encode()),
    )
    run(lake, "readings")
    before = [("load/cpu", 3, "cpu", 21.5), ("load/cpu", 4, "t", 1.0)]
    kept = [("load/cpu", 4, "u", reasons.NOT_FINITE)]
    nameless = (NODE.format("NDATA"), 0, "", reasons.NO_BIRTH)
    unread = [(f"stat/{name}/POWER", number, "", reasons.NOT_A_VALUE) for number, name in ((1, "a"), (2, "b"))]
    assert (of(lake, "readings"), of(lake, "reject")) == (before, [*kept, nameless, *unread])
    assert replay.replay(lake, Chosen()).rows_out == 0

    registry.register(lake.path("payload_schemas"), PayloadSchema("stat/+/POWER", "text"), NOW)
    for dies_in in ("append", "remove"):
        with monkeypatch.context() as patch:
            _power_cut(patch, dies_in)
            with pytest.raises(RuntimeError, match="power cut"):
                replay.replay(lake, Chosen(reasons.NOT_A_VALUE, "stat/+/#"))
    after = [*before, ("stat/a/POWER", 1, "POWER", None), ("stat/b/POWER", 2, "POWER", None)]
    assert of(lake, "readings") == after
    assert of(lake, "reject") == [*kept, nameless, *unread]  # until the next run ends what was begun

    land(lake, sparkplug(0, "NBIRTH", 4, born("speed", 1, datatype=9)))
    for _ in range(2):
        run(lake, "readings")
        births_of = [(NODE.format("NBIRTH"), 0, name, 1.0) for name in ("online", "speed")]
        assert of(lake, "readings") == sorted([*after, *births_of, (NODE.format("NDATA"), 0, "speed", 1.0)])
        assert of(lake, "reject") == kept
    made_of = lake.provenance("readings")
    state = lake.state("telemetry")
    assert made_of is not None
    assert state is not None
    assert made_of.telemetry == state
    rejects = deltalake.DeltaTable(lake.path("reject"))
    assert made_of.beside["reject"].id == str(rejects.metadata().id)
    assert not rows_changed(rejects, made_of.beside["reject"].version)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_has_moved_is_not_read_again_when_a_pass_was_stopped_before_it_could_end_that(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(lake, message(0, address="a/x", body=b"up"))
    run(lake, "readings")
    registry.register(lake.at("payload_schemas"), PayloadSchema("a/+", "text"), NOW)
    with monkeypatch.context() as patch:
        _power_cut(patch, "append")
        with pytest.raises(RuntimeError, match="power cut"):
            replay.replay(lake, Chosen())
    land(lake, message(0, address="b/x", body=b"down"))
    for step in readings_job.JOB.steps:
        if not isinstance(step, replay.Replay):
            step.run(lake.for_job())
    assert table(lake, "reject", "address") == [("a/x",), ("b/x",)]
    replay.replay(lake, Chosen())
    assert table(lake, "readings", "address") == [("a/x",)]
    assert table(lake, "reject", "address") == [("b/x",)]


@contextmanager
def cut_before_readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is done meanwhile dies when it comes to its readings."""
    append = Lake.append

    def dies(self: Lake, name: str, *rest: Any) -> bool:
        if name == "readings":
            raise RuntimeError("power cut")
        return append(self, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "append", dies)
        with pytest.raises(RuntimeError, match="power cut"):
            yield


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_an_attempt_rejected_that_died_is_no_reading_of_the_next_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema is registered between the two, and another one removed."""
    registry.register(lake.at("payload_schemas"), PayloadSchema("b/+", "text"), NOW)
    land(lake, message(0, address="a/x", body=b"up"), message(1, address="b/x", body=b"down"), message(2, body=b"7"))
    with cut_before_readings(monkeypatch):
        readings_job.JOB.run(lake.for_job())
    assert table(lake, "reject", "address") == [("a/x",)]
    registry.register(lake.at("payload_schemas"), PayloadSchema("a/+", "text"), NOW + timedelta(seconds=1))
    registry.remove(lake.at("payload_schemas"), "b/+", None, NOW + timedelta(seconds=2))
    for _ in range(2):
        run(lake, "readings")
        assert table(lake, "readings", "address") == [("a/x",), ("load/cpu",)]
        assert table(lake, "reject", "address") == [("b/x",)]
    registry.register(lake.at("payload_schemas"), PayloadSchema("b/+", "text"), NOW + timedelta(seconds=3))
    run(lake, "readings")
    assert table(lake, "readings", "address") == [("a/x",), ("b/x",), ("load/cpu",)]
    assert table(lake, "reject") == []
    registry.remove(lake.at("payload_schemas"), "b/+", None, NOW + timedelta(seconds=4))
    land(lake, message(2, address="b/x", body=b"up"))
    run(lake, "readings")
    assert table(lake, "reject", "address") == [("b/x",)]
    registry.register(lake.at("payload_schemas"), PayloadSchema("b/+", "text"), NOW + timedelta(seconds=5))
    run(lake, "readings")
    assert table(lake, "reject") == []


def _mixed(lake: Lake) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Two messages of which a value can be read, and one cannot, once they are known for CBOR; what becomes of them."""
    body = b"\xa2\x61t\x01\x61u\xf9\x7c\x00"  # {"t": 1, "u": infinity} without the tag that says it is CBOR
    sent = (message(number, address=f"a/{number}", body=body, content_type="x/y") for number in range(2))
    land(lake, *sent)
    run(lake, "readings")
    registry.register(lake.at("payload_schemas"), PayloadSchema("a/+", "cbor"), NOW)
    good = [(f"a/{number}", number, "t", 1.0) for number in range(2)]
    bad = [(f"a/{number}", number, "u", reasons.NOT_FINITE) for number in range(2)]
    return good, bad


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_replay_that_died_before_its_readings_leaves_no_value_rejected_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever the next one chooses."""
    good, bad = _mixed(lake)
    with cut_before_readings(monkeypatch):
        replay.replay(lake, Chosen(address="a/0"))
    assert [row for row in of(lake, "reject") if row[2]] == bad[:1]
    replay.replay(lake, Chosen(address="a/1"))
    assert (of(lake, "readings"), [row for row in of(lake, "reject") if row[2]]) == (good[1:], bad[1:])
    replay.replay(lake, Chosen(address="a/#"))
    assert (of(lake, "readings"), of(lake, "reject")) == (good, bad)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("of_values", [True, False])
def test_of_two_who_read_rejects_again_at_once_one_does(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, of_values: bool
) -> None:
    """The other one does it all while this one is about to write the rejects of values, or the readings."""
    good, bad = _mixed(lake)
    append = Lake.append

    def late(self: Lake, name: str, *rest: Any) -> bool:
        if name == ("reject" if of_values else "readings"):
            monkeypatch.setattr(Lake, "append", append)
            land(lake, message(9, address="b/9", body=b"up"))  # the rejects are others now
            run(lake, "readings")
        return append(self, name, *rest)

    monkeypatch.setattr(Lake, "append", late)
    with pytest.raises(Overtaken, match="another pass"):
        replay.replay(lake.for_job(), Chosen(address="a/#"))
    run(lake, "readings")
    rejected = [(address, *rest) for address, *rest in of(lake, "reject") if address != "b/9"]
    assert (of(lake, "readings"), [tuple(row) for row in rejected]) == (good, bad)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_messages_of_a_file_that_is_gone_are_named_and_the_others_read(lake: Lake) -> None:
    land(lake, message(0, address="a/x", body=b"up"))
    (gone,) = deltalake.DeltaTable(lake.path("telemetry")).file_uris()
    land(lake, message(1, address="a/x", body=b"down"))
    run(lake, "readings")
    assert len(table(lake, "reject")) == 2
    Path(gone.removeprefix("file://")).unlink()
    registry.register(lake.at("payload_schemas"), PayloadSchema("a/+", "text"), NOW)
    step = run(lake, "readings")["readings"]
    (note,) = step.notes
    assert "missing and set aside: 1 row of gateway gw1, sequences 0 to 0" in note
    assert table(lake, "readings", "sequence", "text") == [(1, "down")]
    assert table(lake, "reject", "sequence") == [(0,)]


def _power_cut(patch: pytest.MonkeyPatch, name: str) -> None:
    """The next call that ends a step of a replay does not return; one before it does."""
    whole = getattr(Lake, name)

    def dies(self: Lake, table_name: str, *rest: Any) -> Any:
        if name == "remove" or table_name == "readings":
            if name == "append":
                whole(self, table_name, *rest)
            raise RuntimeError("power cut")
        return whole(self, table_name, *rest)

    patch.setattr(Lake, name, dies)


class TestRegistry:
    """Without a JVM."""

    def test_the_newest_of_a_tenant_and_pattern_holds(self, tmp_path: Path) -> None:
        path = str(tmp_path / "payload_schemas")
        assert registry.registered(path) == []
        first, other = PayloadSchema("a/+", "json"), PayloadSchema("a/+", "cbor", tenant="t")
        for number, schema in enumerate((first, other, PayloadSchema("a/+", "text", units={"*": "V"}))):
            registry.register(path, schema, NOW + timedelta(seconds=number))
        assert registry.registered(path) == [other, PayloadSchema("a/+", "text", units={"*": "V"})]
        registry.remove(path, "a/+", None, NOW + timedelta(seconds=9))
        assert registry.registered(path) == [other]
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
        assert (re.search(replay._expression(pattern), address) is not None) is fits
