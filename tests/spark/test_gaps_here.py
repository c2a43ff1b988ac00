"""Ranges, statements and accounts worked out in this process: the same as Spark makes of whatever has landed."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark import schemas, session
from spark.here import completeness as here
from spark.here import ranges as ranges_here
from spark.jobs import gaps
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import completeness, ranges
from spark.transforms.accounts import KEY
from tests.spark import lakes
from tests.spark.lakes import START, Row, ledger, manifest, message, status
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Make

SEED = 20_261_127
HOUR = timedelta(hours=1)
HIGHEST = 2**63 - 1
BASES = (0, 60, 128, 1 << 40, HIGHEST - 150)
FACTS = ("landed_ranges", "given_up_ranges", "open_statements", "settled_ranges")
OUTPUTS = ("landed_ranges", "given_up_ranges", "open_statements", "settled_ranges", "gateway_backlog")
MADE = ("gaps", "completeness", "completeness_hourly")


def arrow(table: str, rows: list[Row], names: tuple[str, ...] | None = None) -> pa.Table:
    """Rows with these columns of a table, all of them unless named."""
    columns = (schemas.LANDED.get(table) or schemas.DERIVED[table]).arrow
    fields = [columns.field(name) for name in names or columns.names]
    return pa.Table.from_pylist(
        [{field.name: row.get(field.name) for field in fields} for row in rows], pa.schema(fields)
    )


def plain(rows: DataFrame | pa.Table) -> list[Row]:
    """Rows in an order of their own."""
    found = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return sorted(found.to_pylist(), key=repr)


def of_some_address(randoms: random.Random) -> Row:
    names = {"tenant": "ab", "gateway": "gh", "epoch": "1", "address": "xy"}
    return {name: randoms.choice(values) for name, values in names.items()}


def span(randoms: random.Random, length: int = 40) -> tuple[int, int]:
    first = randoms.choice(BASES) + randoms.randrange(150)
    return first, min(HIGHEST, first + randoms.randrange(length))


# --- ranges -----------------------------------------------------------------------------------------------------------


def messages(randoms: random.Random, count: int) -> list[Row]:
    found = [message(at=START) | of_some_address(randoms) | {"sequence": span(randoms)[0]} for _ in range(count)]
    highest = [message(at=START) | {"sequence": n} for n in (HIGHEST, HIGHEST, HIGHEST - 1)]
    return found + highest + [message(n, tenant="whole") for n in (*range(200), *range(64, 128), 5, 5)]


def without_rows(found: pa.Table | DataFrame) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "rows"} for row in plain(found)]


def rows_by_address(found: pa.Table | DataFrame) -> Counter[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in plain(found):
        counts[tuple(row[name] for name in KEY)] += row["rows"]
    return counts


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_makes_the_same_ranges_of_messages(frame: Make) -> None:
    """Which of the ranges in 64 sequences Spark counts a repeated one to is its own affair: the sums are the same."""
    randoms = random.Random(chosen_seed(SEED))
    batches = [messages(randoms, count) for count in (1_500, 700, 400)]
    ours = [ranges_here.landed(arrow("telemetry", rows, ranges_here.MESSAGE)) for rows in batches]
    theirs = [ranges.landed(frame("telemetry", *rows)) for rows in batches]
    for one, other in zip(ours, theirs, strict=True):
        assert one.schema.names == schemas.LANDED_RANGES.columns.names
        assert without_rows(one) == without_rows(other)
        assert rows_by_address(one) == rows_by_address(other)
    folded, there = ranges_here.joined(pa.concat_tables(ours)), theirs[0]
    for other in theirs[1:]:
        there = ranges.joined(there.unionByName(other))
    assert without_rows(folded) == without_rows(there)
    assert rows_by_address(folded) == rows_by_address(there)
    assert any(row["last_sequence"] == HIGHEST for row in plain(folded))


def test_each_range_counts_its_own_rows_however_they_come() -> None:
    randoms = random.Random(chosen_seed(SEED))
    rows = messages(randoms, 3_000)
    counts = Counter((*(row[name] for name in KEY), row["sequence"]) for row in rows)
    randoms.shuffle(rows)
    some = [arrow("telemetry", part, ranges_here.MESSAGE) for part in (rows[:900], rows[900:1_000], rows[1_000:])]
    found = ranges_here.joined(pa.concat_tables(map(ranges_here.landed, some))).to_pylist()
    for row in found:
        *address, first, last = (row[name] for name in (*KEY, "first_sequence", "last_sequence"))
        of_it = [counts.pop((*address, n)) for n in range(first, last + 1)]
        assert sum(of_it) == row["rows"]
        assert (*address, first - 1) not in counts
    assert not counts


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_makes_the_same_ranges_of_the_ledger(frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    rows = [
        ledger(*span(randoms), reason=randoms.choice(("expired", "evicted"))) | of_some_address(randoms)
        for _ in range(600)
    ]
    names = tuple(schemas.GIVEN_UP_RANGES.columns.names)
    theirs = plain(ranges.given_up(frame("ledger", *rows).select(*names)))
    parts = [ranges_here.given_up(arrow("ledger", part, names)) for part in (rows[:200], rows[200:])]
    assert plain(ranges_here.given_up(pa.concat_tables(parts))) == theirs
    settled = [{name: row[name] for name in schemas.SETTLED_RANGES.columns.names} for row in rows]
    found = ranges_here.settled(arrow("settled_ranges", settled))
    assert plain(found) == plain(ranges.settled(frame("settled_ranges", *settled)))


# --- statements and accounts ------------------------------------------------------------------------------------------


def statement(randoms: random.Random, number: int) -> Row:
    # Each its own time: of two of the same sequences either may be judged first.
    hour = START + number * timedelta(minutes=7)
    first, last = span(randoms, randoms.choice((1, 3, 60)))
    if randoms.random() < 0.1:
        last = first - 1  # of no message
    until = randoms.choice((None, hour + HOUR))
    return manifest(first, last, hour=hour, until=until, ingested_at=hour + HOUR) | of_some_address(randoms)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_the_same_statements_settled(frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    landed = ranges_here.landed(arrow("telemetry", messages(randoms, 6_000), ranges_here.MESSAGE))
    stated = [statement(randoms, number) for number in range(400)]
    stated += stated[:20]
    found = completeness.with_settled(frame("open_statements", *stated), frame("landed_ranges", *landed.to_pylist()))
    rows = arrow("open_statements", stated)
    ours = rows.append_column("settled", pa.array(ranges_here.are_within(rows, landed)))
    assert plain(ours) == plain(found)
    assert 20 < sum(row["settled"] for row in plain(ours)) < 400
    assert not ranges_here.are_within(rows, landed.slice(0, 0)).any()


def facts(randoms: random.Random) -> dict[str, list[Row]]:
    """Rows of every table that accounts are made of."""
    landed = ranges_here.landed(arrow("telemetry", messages(randoms, 3_000), ranges_here.MESSAGE)).to_pylist()
    lost = [
        ledger(*span(randoms), reason=randoms.choice(("expired", "evicted", "ab"))) | of_some_address(randoms)
        for _ in range(200)
    ]
    given_up = ranges_here.given_up(arrow("ledger", lost, tuple(schemas.GIVEN_UP_RANGES.columns.names))).to_pylist()
    settled = [dict(manifest(*span(randoms, 20)) | of_some_address(randoms)) for _ in range(40)]
    backlog = [
        {"tenant": tenant, "gateway": gateway, "waiting": waiting, "said_at": START + hours * HOUR}
        for tenant, gateway, waiting, hours in (
            ("a", "g", 0, 20),
            ("a", "h", 7, 30),
            ("b", "g", 0, 99),
            ("c", "g", 1, 1),
        )
    ]
    times = dict.fromkeys(("began", "until", "drain_began", "drained"), START)
    outages = [times | {"tenant": of[0], "gateway": of[1], "messages": 1} for of in ("ag", "ah", "ah", "dg")]
    return {
        "landed_ranges": landed,
        "given_up_ranges": given_up,
        "open_statements": [statement(randoms, number) for number in range(150)],
        "settled_ranges": ranges_here.settled(arrow("settled_ranges", settled)).to_pylist(),
        "gateway_backlog": backlog,
        "outages": outages,
    }


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_draws_up_the_same_accounts(frame: Make) -> None:
    tables = facts(random.Random(chosen_seed(SEED)))
    theirs = completeness.judged(*(frame(name, *rows) for name, rows in tables.items())).localCheckpoint()
    ours = here.judged(*(arrow(name, rows) for name, rows in tables.items()))
    assert plain(here.gaps(ours)) == plain(completeness.gaps(theirs))
    assert plain(here.completeness(ours)) == plain(completeness.completeness(theirs))
    for settled in (False, True):
        assert plain(here.hourly(ours, settled=settled)) == plain(completeness.hourly(theirs, settled=settled))
    sums = [sum(row[name] for row in plain(here.hourly(ours))) for name in ("landed", "waiting", "unexplained")]
    assert min(sums) > 0
    assert {row["reason"] for row in plain(here.gaps(ours))} == {"expired", "evicted", "ab", None}


def test_an_account_is_the_sum_of_its_lines() -> None:
    tables = facts(random.Random(chosen_seed(SEED)))
    found = here.judged(*(arrow(name, rows) for name, rows in tables.items()))
    settled: Counter[tuple[Any, ...]] = Counter()
    for row in tables["settled_ranges"]:
        settled[tuple(row[name] for name in KEY)] += row["last_sequence"] + 1 - row["first_sequence"]
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in here.hourly(found).to_pylist():
        lines.setdefault(tuple(row[name] for name in KEY), []).append(row)
    for row in here.completeness(found).to_pylist():
        address = tuple(row[name] for name in KEY)
        of_it = lines.get(address, [])
        assert row["accepted"] == settled[address] + sum(line["accepted"] for line in of_it)
        assert row["unstated"] == sum(line["accepted"] for line in of_it if line["hour"] is None)
        assert row["missing"] == row["explained"] + row["waiting"] + row["unexplained"]
        assert row["duplicates"] == row["rows"] - row["distinct_sequences"] >= 0


# --- statuses ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_folds_statuses_the_same_way(lake: Lake, frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    seconds = [randoms.randrange(5_000) * 10 for _ in range(240)]
    rows = [
        status(START + timedelta(seconds=at), randoms.choice((None, 0, 5, 2**40)), gateway=randoms.choice("ghi"))
        | {"tenant": randoms.choice("ab")}
        for at in {*seconds}
    ]
    rows += [row | {"backlog_messages": 9} for row in rows[:40]]  # told of at the same time: the last counts
    lake.ensure("gateway_backlog")
    ours = here.backlogs(arrow("gateway_backlog", []))
    for version, part in enumerate((rows[:90], rows[90:200], rows[200:])):
        said = completeness.backlog(frame("gateway_status", *part).coalesce(1))
        lake.fold("gateway_backlog", said, completeness.BACKLOG_FOLD, Transaction("job", version))
        fresh = here.backlog(arrow("gateway_status", part, here.STATUS))
        ours = here.backlogs(pa.concat_tables([ours, fresh.cast(ours.schema)]))
    assert plain(ours) == plain(lake.read("gateway_backlog"))
    assert len(ours) == 6


def test_of_nothing_there_is_nothing_to_say() -> None:
    empty = {name: arrow(name, []) for name in (*FACTS, "gateway_backlog", "outages")}
    found = here.judged(*empty.values())
    assert here.gaps(found).cast(schemas.GAPS.arrow).num_rows == 0
    assert here.hourly(found).cast(schemas.COMPLETENESS_HOURLY.arrow).num_rows == 0
    assert here.completeness(found).cast(schemas.COMPLETENESS.arrow).num_rows == 0
    assert (
        ranges_here.landed(arrow("telemetry", [], ranges_here.MESSAGE)).cast(schemas.LANDED_RANGES.arrow).num_rows == 0
    )
    assert ranges_here.given_up(empty["given_up_ranges"]).cast(schemas.GIVEN_UP_RANGES.arrow).num_rows == 0
    assert here.backlog(arrow("gateway_status", [], here.STATUS)).cast(schemas.GATEWAY_BACKLOG.arrow).num_rows == 0
    assert here.lines(arrow("completeness_hourly", [])).num_rows == 0
    assert ranges_here.are_within(empty["open_statements"], empty["landed_ranges"]).size == 0


# --- the job ----------------------------------------------------------------------------------------------------------


def land(lake: Lake, turn: int) -> None:
    """What comes between two passes: messages with holes and repeats, what was given up, statements, statuses."""
    randoms = random.Random(chosen_seed(SEED) + turn)
    at, base = START + turn * HOUR, 100 * turn
    for gateway in ("g", "h"):
        of: Row = {"gateway": gateway, "ingested_at": at}
        late = [] if turn == 0 else [message(n, **of) for n in range(base - 10, base)]
        sequences = [n for n in range(base, base + 90) if randoms.random() < (0.9 if gateway == "g" else 1)]
        lakes.write(lake.place, "telemetry", [message(n, **of) for n in (*sequences, base)] + late)
        lakes.write(lake.place, "manifests", [manifest(base, base + 99, hour=at, until=at + HOUR, **of)])
        lakes.write(lake.place, "gateway_status", [status(at + 2 * HOUR, turn % 2, gateway=gateway)])
    lakes.write(
        lake.place, "ledger", [ledger(base + 3, base + 30, gateway="g"), ledger(base + 20, base + 40, gateway="g")]
    )


def take(lake: Lake) -> None:
    """One pass of the job, with a session if the lake has one."""
    for step in gaps.JOB.steps:
        step.run(lake)


def tables(lake: Lake) -> dict[str, list[Row]]:
    there = [name for name in (*OUTPUTS, *MADE) if lake.state(name) is not None]
    return {name: plain(lake.at(name).delta().to_pyarrow_table()) for name in there}


def without_a_session(monkeypatch: pytest.MonkeyPatch, at: Path) -> Lake:
    monkeypatch.setattr(session, "fit", lambda *_, **__: None)
    return Lake(None, at, here=True)  # type: ignore[arg-type]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lake_goes_from_one_machine_to_a_cluster_and_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each pass all tables are those that Spark alone makes. On one machine there is no session at all."""
    for turn, is_here in enumerate((True, False, True)):
        alone = Lake(spark, tmp_path / "alone", few=True, here=False)
        with monkeypatch.context() as patch:
            lake = (
                without_a_session(patch, tmp_path / "lake") if is_here else Lake(spark, tmp_path / "lake", here=False)
            )
            for each in (alone, lake):
                land(each, turn)
            take(lake)
        take(alone)
        ours, theirs = tables(lake), tables(alone)
        assert rows_by_address(pa.Table.from_pylist(ours.pop("landed_ranges"))) == rows_by_address(
            pa.Table.from_pylist(theirs.pop("landed_ranges"))
        )
        assert ours == theirs
    assert [row["settled"] for row in ours["completeness_hourly"]].count(True) == 2
    assert len(ours["open_statements"]) == 4
    assert {row["waiting"] for row in ours["gateway_backlog"]} == {0}


def test_a_statement_that_comes_again_is_settled_without_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = without_a_session(monkeypatch, tmp_path)
    lakes.write(lake.place, "telemetry", [message(n) for n in range(10)])
    lakes.write(lake.place, "manifests", [manifest(0, 9)])
    take(lake)
    before = tables(lake)
    assert [row["settled"] for row in before["completeness_hourly"]] == [True]
    lakes.write(lake.place, "manifests", [manifest(0, 9), manifest(10, 9, hour=START + HOUR)])
    take(lake)
    assert tables(lake) == before


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_does_it_where_there_is_one_and_where_there_is_too_much(
    larger: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_spark = dict.fromkeys((*OUTPUTS, *MADE), True)
    for turn in (0, 1):
        land(larger, turn)
    take(larger)
    assert engines(larger) == by_spark
    here_ = Lake(larger.session, tmp_path / "here", here=True)
    for turn in (0, 1):
        land(here_, turn)
    take(here_)
    assert engines(here_) == dict.fromkeys(by_spark, False)
    monkeypatch.setattr(gaps, "HERE_MAX", 1)
    monkeypatch.setattr(gaps, "JUDGED_MAX", 0)
    land(here_, 2)
    take(here_)
    assert engines(here_) == by_spark | {"gateway_backlog": False}  # of which there is one row a gateway


def engines(lake: Lake) -> dict[str, bool]:
    """Whether Spark has written each table the last time."""
    found = {}
    for name in (*OUTPUTS, *MADE):
        state = lake.state(name)
        entry = lake.commit(name, state.version) if state is not None else None
        found[name] = entry is not None and "Spark" in str(entry.info.get("engineInfo"))
    return found
