"""Sparkplug's data named by the last births and those since: as by all, which are read where data came late."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cloud.place.place import Place
from spark import columns, delta_log, schemas
from spark.here import births as here
from spark.jobs import last_births, replay
from spark.jobs.last_births import BIRTHS, LAST_BIRTHS, STEP
from spark.jobs.readings import JOB
from spark.tables import Lake
from spark.transforms import births
from tests.spark import lakes
from tests.spark.decoding.test_sparkplug import metric
from tests.spark.lakes import START
from tests.spark.test_births_here import NAMES, at, birth, follow, sent, take
from tests.spark.test_readings_here import rows
from tests.spark.test_replay import born, sparkplug
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from tests.spark.conftest import Make

SEED = 20_261_130
DATA = metric(None, (13, 1.0), alias=1)


@pytest.fixture
def alone(tmp_path: Path) -> Lake:
    """A lake without a session: nothing here needs one."""
    return Lake(None, tmp_path / "alone", here=True)


class Reads:
    """Which files of births were read."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._columns_read = columns.read

    def read(self, place: Place, files: Sequence[delta_log.File], schema: pa.Schema) -> Iterator[pa.Table]:
        if place.name == BIRTHS:
            self._paths += [file.path for file in files]
        return self._columns_read(place, files, schema)

    def count(self) -> int:
        """Of files since the last question."""
        count, self._paths = len(self._paths), []
        return count


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    monkeypatch.setattr(columns, "read", found.read)
    return found


def is_born(lake: Lake, *seconds: int, **override: Any) -> None:
    """A birth each, in commits of their own."""
    for second in seconds:
        take(lake, sparkplug(second, "NBIRTH", second, born(f"m{second}", 1), **override))


def named(lake: Lake) -> dict[int, str]:
    """What data is called, by its sequence."""
    names = schemas.READINGS.columns.names
    read = [dict(zip(names, row, strict=True)) for row in rows(lake, "readings")]
    return {row["sequence"]: row["metric"] for row in read if "NDATA" in row["address"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(2))
def test_names_are_those_by_all_births(
    alone: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    randoms = random.Random(chosen_seed(SEED) + number)
    messages = [sent(randoms, sequence) for sequence in range(600)]
    by_all, first = Lake(None, tmp_path / "all", here=True), 0
    answers, are_enough = set[bool](), here.are_enough

    def asked(last: pa.Table, since: here.Since) -> bool:
        answers.add(are_enough(last, since))
        return are_enough(last, since)

    monkeypatch.setattr(here, "are_enough", asked)
    while first < len(messages):
        some = messages[first : first + randoms.choice((1, 30, 60))]
        first += len(some)
        if randoms.random() < 0.5:  # of one gateway, that is in time
            some.sort(key=lambda row: row["received_at"])
        take(alone, *some)
        with monkeypatch.context() as patch:
            patch.setattr(last_births, "_last", lambda _: None)
            take(by_all, *some)
        if randoms.random() < 0.8:  # else it was stopped between the two steps
            STEP.run(alone)
        if randoms.random() < 0.1:
            for name in (BIRTHS, LAST_BIRTHS):
                alone.ensure(name)
                alone.at(name).delta().optimize.compact()
    STEP.run(alone)
    for name in ("readings", "reject", BIRTHS):
        assert rows(alone, name) == rows(by_all, name)
    found = pa.concat_tables(alone.read_here(LAST_BIRTHS, here.LAST))
    expected = here.last(pa.concat_tables(by_all.read_here(BIRTHS, here.LAST)))
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))
    assert answers == {True, False}


def test_only_what_was_born_since_is_read(alone: Lake, reads: Reads) -> None:
    is_born(alone, 1, 2, 3)
    take(alone, sparkplug(0, "NDATA", 4, DATA))
    assert reads.count() == 3
    STEP.run(alone)
    assert reads.count() == 3
    take(alone, sparkplug(1, "NDATA", 5, DATA))
    assert reads.count() == 0
    is_born(alone, 6)
    take(alone, sparkplug(2, "NDATA", 7, DATA))
    assert reads.count() == 1
    STEP.run(alone)
    assert reads.count() == 1
    take(alone, sparkplug(3, "NDATA", 8, DATA))
    STEP.run(alone)
    assert reads.count() == 0
    assert named(alone) == {0: "m3", 1: "m3", 2: "m6", 3: "m6"}


def test_data_that_came_late_has_all_read(alone: Lake, reads: Reads) -> None:
    is_born(alone, 1, 3)
    is_born(alone, 9, gateway="gw2")
    STEP.run(alone)
    reads.count()
    for sequence, (second, files) in enumerate({3: 0, 2: 3, 0: 3, 4: 0}.items()):
        take(alone, sparkplug(sequence, "NDATA", second, DATA))
        assert reads.count() == files
    assert named(alone) == {0: "m3", 1: "m1", 3: "m3"}


def key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("gateway", "device", "metric", "alias"))


def test_a_clock_that_was_ahead_once_has_not_all_read_for_good(alone: Lake, reads: Reads) -> None:
    is_born(alone, 1, 3)
    year = 365 * 24 * 3600
    take(alone, sparkplug(9, "NBIRTH", 12 * year, born("far", 1), ingested_at=START))
    STEP.run(alone)
    reads.count()
    take(alone, sparkplug(0, "NDATA", 4, DATA))
    assert reads.count() == 0
    take(alone, sparkplug(1, "NDATA", 12 * year + 1, DATA, ingested_at=START))
    assert reads.count() == 0
    is_born(alone, 6)
    STEP.run(alone)
    reads.count()
    take(alone, sparkplug(2, "NDATA", 7, DATA), sparkplug(3, "NDATA", 12 * year + 1, DATA))
    assert reads.count() == 0
    take(alone, sparkplug(4, "NDATA", 5, DATA))
    assert reads.count() == 4
    assert named(alone) == {0: "m3", 1: "far", 2: "m6", 3: "far", 4: "m3"}


def _anew(lake: Lake) -> None:
    lake.recreate(LAST_BIRTHS)


def _births_anew(lake: Lake) -> None:
    lake.recreate(BIRTHS)
    is_born(lake, 3)


def _damaged(lake: Lake) -> None:
    place = lake.at(LAST_BIRTHS)
    for file in delta_log.files(place.delta()):
        (Path(place.uri) / file.path).write_bytes(b"PAR1")


def _of_another(lake: Lake) -> None:
    """Of a program that computes otherwise, in between."""
    nothing = {LAST_BIRTHS: schemas.SPARKPLUG_LAST_BIRTHS.arrow.empty_table()}
    replace(STEP, revision=99, update=None, frames=lambda _: nothing).run(lake)


@pytest.mark.parametrize("disturb", [_anew, _births_anew, _damaged, _of_another])
def test_where_last_births_are_no_help_all_are_read(alone: Lake, disturb: Any) -> None:
    is_born(alone, 1, 3)
    STEP.run(alone)
    disturb(alone)
    take(alone, sparkplug(0, "NDATA", 4, DATA))
    assert named(alone) == {0: "m3"}
    is_born(alone, 5, gateway="gw2")
    STEP.run(alone)
    found = pa.concat_tables(alone.read_here(LAST_BIRTHS, here.BIRTH)).to_pylist()
    assert sorted((row["gateway"], row["metric"]) for row in found if row["metric"] != "online") == [
        ("gw1", "m3"), ("gw2", "m5"),
    ]  # fmt: skip


def test_more_than_are_held_are_left_to_all(alone: Lake, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    is_born(alone, 1, 3)
    STEP.run(alone)
    reads.count()
    monkeypatch.setattr(last_births, "HERE_MAX", 1)
    take(alone, sparkplug(0, "NDATA", 4, DATA))
    assert (reads.count(), named(alone)) == (2, {0: "m3"})


def test_a_pass_keeps_them_up_to_date(alone: Lake) -> None:
    lakes.write(alone.place, "telemetry", [sparkplug(0, "NBIRTH", 4, born("speed", 1), born("load", 2))])
    JOB.run(alone)
    found = pa.concat_tables(alone.read_here(LAST_BIRTHS, ("metric", "alias", "unit"))).to_pylist()
    assert sorted(map(str, found)) == sorted(
        map(
            str,
            [
                {"metric": "online", "alias": None, "unit": None},
                {"metric": "speed", "alias": 1, "unit": "rpm"},
                {"metric": "load", "alias": 2, "unit": "rpm"},
            ],
        )
    )


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_the_same(larger: Lake, frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    of_message = {"epoch": "e1", "address": "a", "sequence": 1, "ingested_at": START}
    said = [
        birth(
            randoms.randrange(6),
            gateway=f"gw{randoms.randrange(3)}",
            device=f"d{randoms.randrange(3)}",
            metric=randoms.choice(NAMES),
            alias=randoms.choice((None, 1, 2**63 - 1)),
            **of_message,
        )
        for _ in range(80)
    ]
    last = births.last(frame(BIRTHS, *said))
    assert last.schema.names == schemas.SPARKPLUG_LAST_BIRTHS.columns.names
    arrow = pa.schema([schemas.SPARKPLUG_BIRTHS.arrow.field(name) for name in here.LAST])
    of_each = here.last(columns.fitted(pa.Table.from_pylist(said, arrow), arrow))
    assert sorted(key(row.asDict()) for row in last.collect()) == sorted(map(key, of_each.to_pylist()))
    for second in (2, 5):
        messages = [sparkplug(0, "NDATA", second, DATA, gateway="gw1"), sparkplug(0, "NDATA", 9, DATA, gateway="gw9")]
        since = {("default", "gw1"): at(second), ("default", "gw9"): at(9)}
        assert births.are_enough(last, frame("telemetry", *messages)) == here.are_enough(of_each, since)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark_reads_all_where_data_came_late(larger: Lake, frame: Make) -> None:
    two = [sparkplug(second, "NBIRTH", second, born(f"m{second}", 1)) for second in (1, 3)]
    lakes.write(larger.place, "telemetry", two)
    follow(larger)
    STEP.run(larger)
    is_born(larger, 5)
    for second, name, count in ((6, "m5", 4), (2, "m1", 6)):
        known = last_births.known_to_spark(larger, frame("telemetry", sparkplug(0, "NDATA", second, DATA)))
        assert known.count() == count
        data = replay.decoded(larger, frame("telemetry", sparkplug(0, "NDATA", second, DATA)))
        assert [row["metric"] for row in data.collect()] == [name]
