"""Messages counted over time in this process: the same as Spark counts, whatever their clocks and in however many
batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark import delta_log, schemas
from spark.delta_log import File
from spark.here import clocks
from spark.here import throughput as here
from spark.jobs import changes
from spark.jobs import throughput as job
from spark.jobs.following import Batch
from spark.tables import Lake
from spark.transforms import throughput
from tests.spark import lakes
from tests.spark.lakes import START, Row
from tests.spark.random_messages import arrow, from_spark, landed, message, rows_of
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from tests.spark.conftest import Make

SEED = 20_261_128
SPANS_S = (20, 3_000, 40_000, 40_000, 900_000, 90_000_000)
"""Of one batch after the other, from the same start: buckets become wider three times, and stay as they are twice."""


def by_key(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    known = {tuple(row[name] for name in schemas.THROUGHPUT.keys): row for row in rows}
    assert len(known) == len(rows)
    return known


def batches() -> list[list[Row]]:
    randoms = random.Random(chosen_seed(SEED))
    return [[message(randoms, within_s) for _ in range(300)] for within_s in SPANS_S]


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
@pytest.mark.parametrize("width_s", [1, 10, 3_600, 604_800])
def test_spark_counts_the_same(frame: Make, width_s: int) -> None:
    rows = [row for batch in batches()[1:3] for row in batch]
    theirs = throughput.throughput(frame("telemetry", *rows), width_s)
    ours = here.throughput(arrow(rows, here.MESSAGE), width_s)
    assert by_key(ours.to_pylist()) == by_key(theirs.toArrow().to_pylist())
    assert sum(ours["received"].to_pylist()) == sum(ours["ingested"].to_pylist()) == len(rows)
    assert width_s > 1 or {None, 0.0} < set(ours["lag_max_s"].to_pylist())
    wider = throughput.widened(frame("throughput", *theirs.toArrow().to_pylist()), 21_600)
    if width_s <= 21_600:
        assert by_key(here.widened(ours, 21_600).to_pylist()) == by_key(wider.toArrow().to_pylist())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_batch_for_batch_the_table_is_what_spark_makes_of_it(
    table: Lake, larger: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one machine without it, on a cluster by it."""
    widths = []
    for rows in batches():
        with monkeypatch.context() as patch:
            patch.setattr(throughput, "throughput", None)
            take(landed(table, rows, "throughput"))
        with monkeypatch.context() as patch:
            patch.setattr(here, "throughput", None)
            take(landed(larger, rows, "throughput"))
        ours = rows_of(table, "throughput")
        assert by_key(ours) == by_key(rows_of(larger, "throughput"))
        (width_s,) = {row["bucket_s"] for row in ours}
        widths.append(width_s)
    assert widths == [10, 10, 60, 60, 900, 86_400]
    assert sum(row["received"] for row in rows_of(table, "throughput")) == 300 * len(SPANS_S)


def test_parts_of_a_batch_count_as_all_of_it() -> None:
    rows = [row for batch in batches() for row in batch]
    at_once = here.counted([arrow(rows, here.MESSAGE)], here.Reach())
    in_parts = here.counted([arrow(rows[n : n + 100], here.MESSAGE) for n in range(0, len(rows), 100)], here.Reach())
    assert at_once is not None
    assert in_parts is not None
    assert in_parts.width_s == at_once.width_s > 1
    assert by_key(in_parts.rows.to_pylist()) == by_key(at_once.rows.to_pylist())


def test_a_batch_is_taken_once(table: Lake) -> None:
    randoms = random.Random(chosen_seed(SEED))
    first = landed(table, [message(randoms, 10) for _ in range(50)], "throughput")
    for _ in range(2):
        take(first)
    second = landed(table, [message(randoms, 1_000_000) for _ in range(50)], "throughput")
    for _ in range(2):  # wider buckets in place of all
        take(second)
    assert sum(row["ingested"] for row in rows_of(table, "throughput")) == 100
    assert table.state("throughput").version == 2  # type: ignore[union-attr]


def test_where_the_table_begins_is_read_off_its_first_date(table: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many dates it has."""
    for rows in batches():
        take(landed(table, rows, "throughput"))
    whole = here.reach(table.read_here("throughput", here.REACH))
    columns_of, read = Lake.columns_of, list[str]()

    def watched(lake: Lake, name: str, files: Sequence[File], names: Sequence[str]) -> Iterator[pa.Table]:
        read.extend(file.path for file in files)
        return columns_of(lake, name, files, names)

    monkeypatch.setattr(Lake, "columns_of", watched)
    assert job._reach(table) == whole
    assert len({changes.folder(path) for path in read}) == 1
    dates = {changes.folder(file.path) for file in delta_log.files(table.at("throughput").delta())}
    assert len(dates) > 5


def test_of_no_messages_there_are_no_buckets(table: Lake) -> None:
    found = here.counted([arrow([], here.MESSAGE)], here.Reach())
    assert found is not None
    assert (len(found.rows), found.rows.column_names) == (0, schemas.THROUGHPUT.columns.names)
    for sent in ([], [message(random.Random(1), 100_000)], []):
        take(landed(table, sent, "throughput"))
    assert sum(row["received"] for row in rows_of(table, "throughput")) == 1
    assert here.reach([]) == here.reach([found.rows.select(here.REACH)]) == here.Reach()


@pytest.mark.parametrize("bucket_seconds", throughput.BUCKET_SECONDS)
def test_each_width_is_put_together_of_the_one_before(bucket_seconds: int) -> None:
    at = bucket_seconds * throughput.BUCKETS_MAX
    randoms = random.Random(chosen_seed(SEED))
    rows = [message(randoms, at) for _ in range(200)]
    narrow = here.throughput(arrow(rows, here.MESSAGE), throughput.BUCKET_SECONDS[0])
    for width_s in throughput.BUCKET_SECONDS:
        narrow = here.widened(narrow, width_s)
        if width_s == bucket_seconds:
            break
    assert by_key(narrow.to_pylist()) == by_key(here.throughput(arrow(rows, here.MESSAGE), width_s).to_pylist())


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("why", ["buckets of the batch", "buckets of the table", "gateways have told a lot"])
def test_spark_counts_what_is_not_for_this_process(lake: Lake, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    take(landed(lake, [lakes.message(n) for n in range(40)], "throughput"))
    if why == "gateways have told a lot":
        lakes.write(lake.place, "clock_offsets", [lakes.clock_offset()])
        monkeypatch.setattr(clocks, "ROWS_MAX", 0)
    else:
        monkeypatch.setattr(here, "HERE_MAX", 0 if why == "buckets of the batch" else 1)
    far = lakes.message(40, at=START + timedelta(days=40))
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "fold_here", None)
        patch.setattr(Lake, "overwrite", partialmethod(from_spark, Lake.overwrite))
        take(landed(lake, [far, far], "throughput"))
    found = rows_of(lake, "throughput")
    assert {row["bucket_s"] for row in found} == {3_600}
    assert sum(row["received"] for row in found) == 42
