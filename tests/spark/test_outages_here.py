"""Outages found in this process: the same as Spark finds, whatever the clocks and in however many batches."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark import schemas
from spark.here import clocks
from spark.here import outages as here
from spark.jobs import outages as job
from spark.jobs.following import Batch
from spark.tables import Lake
from spark.transforms import outages
from tests.spark import lakes
from tests.spark.lakes import START, Row
from tests.spark.random_messages import arrow, from_spark, landed, message, rows_of
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from tests.spark.conftest import Make

SEED = 20_261_128
SPAN_S = 1_000_000
"""Of a batch: stretches of up to 4 000 s, some of which overlap."""


def by_key(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    known = {tuple(row[name] for name in schemas.OUTAGES.keys): row for row in rows}
    assert len(known) == len(rows)
    return known


def batches() -> list[list[Row]]:
    randoms = random.Random(chosen_seed(SEED))
    return [[message(randoms, SPAN_S) for _ in range(400)] for _ in range(4)]


@pytest.fixture
def table(tmp_path: Path) -> Lake:
    """A lake without a session: nothing here needs one."""
    session: Any = None
    return Lake(session, tmp_path / "here", here=True)


def take(batch: Batch) -> None:
    (step,) = job.JOB.steps
    step.take(batch)  # type: ignore[attr-defined]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_the_same(frame: Make) -> None:
    rows = [row for batch in batches() for row in batch]
    theirs = outages.outages(frame("telemetry", *rows)).toArrow()
    ours = here.outages(arrow(rows, here.MESSAGE))
    assert by_key(ours.to_pylist()) == by_key(theirs.to_pylist())
    found = ours.to_pylist()
    assert sum(row["messages"] for row in found) == sum(row["lane"] == "backlog" for row in rows)
    assert any(row["lag_max_s"] is None for row in found)
    assert any(row["messages"] > 3 for row in found)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_batch_for_batch_the_table_is_what_spark_makes_of_it(
    table: Lake, larger: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one machine without it, on a cluster by it."""
    counts = []
    for rows in batches():
        with monkeypatch.context() as patch:
            patch.setattr(outages, "outages", None)
            take(landed(table, rows, "outages"))
        with monkeypatch.context() as patch:
            patch.setattr(here, "outages", None)
            take(landed(larger, rows, "outages"))
        ours = rows_of(table, "outages")
        assert by_key(ours) == by_key(rows_of(larger, "outages"))
        counts.append(len(ours))
    assert max(counts) > counts[0]
    of_all = here.outages(arrow([row for batch in batches() for row in batch], here.MESSAGE))
    assert by_key(of_all.to_pylist()) == by_key(ours)


def test_parts_of_a_batch_are_joined() -> None:
    rows = [row for batch in batches() for row in batch]
    parts = [arrow(rows[n : n + 100], here.MESSAGE) for n in range(0, len(rows), 100)]
    found = here.all_joined([], parts)
    assert found is not None
    assert by_key(found.to_pylist()) == by_key(here.outages(arrow(rows, here.MESSAGE)).to_pylist())


def test_a_batch_is_taken_once(table: Lake) -> None:
    """And late messages join two outages."""
    apart = [lakes.message(n, at=START + timedelta(hours=n), lane="backlog") for n in (0, 2)]
    first = landed(table, apart, "outages")
    late = lakes.message(1, at=START, ingested_at=START + timedelta(hours=2), lane="backlog")
    second = landed(table, [late, lakes.message(9)], "outages")
    for batch in (first, first, second, second):
        take(batch)
    (one,) = rows_of(table, "outages")
    assert (one["messages"], one["began"], one["until"]) == (3, START, START + timedelta(hours=2))
    assert (one["drain_began"], one["lag_max_s"]) == (START + timedelta(seconds=1), 7_200.0)


def test_of_no_messages_there_are_no_outages(table: Lake) -> None:
    none = here.all_joined([], [arrow([], here.MESSAGE)])
    assert none is not None
    assert (len(none), none.column_names) == (0, schemas.OUTAGES.columns.names)
    waited = lakes.message(0, lane="backlog")
    for sent in ([], [lakes.message(1)], [waited], [lakes.message(2)]):
        take(landed(table, sent, "outages"))
    assert [row["messages"] for row in rows_of(table, "outages")] == [1]


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("why", ["outages are many", "gateways have told a lot"])
def test_spark_finds_what_is_not_for_this_process(lake: Lake, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    apart = [lakes.message(n, at=START + timedelta(hours=n), lane="backlog") for n in range(3)]
    take(landed(lake, apart[:2], "outages"))
    if why == "gateways have told a lot":
        lakes.write(lake.place, "clock_offsets", [lakes.clock_offset()])
        monkeypatch.setattr(clocks, "ROWS_MAX", 0)
    else:
        monkeypatch.setattr(here, "HERE_MAX", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "overwrite", partialmethod(from_spark, Lake.overwrite))
        take(landed(lake, apart[2:], "outages"))
    assert [row["messages"] for row in rows_of(lake, "outages")] == [1, 1, 1]
