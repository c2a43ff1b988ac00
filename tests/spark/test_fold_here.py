"""Windows of this process folded into their tables: what is written anew, who is refused, when Spark takes over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from spark import columns, fold_here, schemas
from spark.here.times import MINUTE_US
from spark.here.windows import combined, of_readings
from spark.jobs import catalog, runner
from spark.jobs import rollups as job
from spark.provenance import Provenance, State
from spark.tables import Lake
from spark.transaction import Transaction
from tests.spark import lakes
from tests.spark.lakes import START, message
from tests.spark.windows import Row, arrow, plain, reading
from tests.support import delta_commits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAME = partial(combined, width_us=MINUTE_US)


@pytest.fixture
def table(tmp_path: Path) -> Lake:
    """A lake without a session: nothing here needs one."""
    session: Any = None
    made = Lake(session, tmp_path / "lake")
    made.ensure("rollup_1m")
    return made


def sent(minutes: range, device: str = "d", start: datetime = START, **override: Any) -> list[Row]:
    return [reading(minute, start + timedelta(minutes=minute), 1.0, device=device, **override) for minute in minutes]


def fold(lake: Lake, version: int, rows: Sequence[Row], application: str = "job") -> delta_commits.Written:
    """What the fold wrote."""
    path = Path(lake.path("rollup_1m"))
    before = delta_commits.version(path)
    marker = Transaction(application, version)
    made_of = Provenance({"readings": State("id", version)})
    assert lake.fold_here("rollup_1m", of_readings(arrow(rows), MINUTE_US), SAME, marker, made_of)
    return delta_commits.written(path, before)


def there(lake: Lake) -> dict[tuple[str, datetime], int]:
    rows = lake.at("rollup_1m").delta().to_pyarrow_table().to_pylist()
    known = {(row["device"], row["window_start"]): row["count"] for row in rows}
    assert len(known) == len(rows)
    return known


def test_only_files_that_hold_such_a_window_are_written_anew(table: Lake) -> None:
    assert fold(table, 1, [*sent(range(0, 20, 5)), *sent(range(0, 20, 5), "e")]).removed == 0
    # Later than all there is; the same minutes of another hour and day, which are other partitions.
    later = [*sent(range(20, 30, 2)), *sent(range(20, 30, 2), "e")]
    assert fold(table, 2, later).removed == 0
    assert fold(table, 3, sent(range(0, 20, 5), start=START + timedelta(hours=5))).removed == 0
    assert fold(table, 4, sent(range(0, 20, 5), start=START + timedelta(days=5))).removed == 0
    # Between two that are there, by their ends in both files, and a window of neither.
    assert fold(table, 5, sent(range(7, 8))).removed == 0
    # One window of one file.
    wrote = fold(table, 6, sent(range(22, 23)))
    assert (wrote.added, wrote.removed) == (1, 1)
    # The same again is not taken, nor is what was before it.
    assert fold(table, 6, sent(range(22, 23))) == fold(table, 5, sent(range(22, 23)))
    counts = there(table)
    assert (len(counts), counts["d", START + timedelta(minutes=22)], sum(counts.values())) == (
        8 + 10 + 4 + 4 + 1,
        2,
        28,
    )
    assert table.rows_written("rollup_1m", 0) == 27 + 1
    made_of = table.provenance("rollup_1m")
    assert made_of is not None
    assert made_of.sources == {"readings": State("id", 6)}


def test_files_no_larger_than_what_is_new_are_put_together_with_it(table: Lake) -> None:
    fold(table, 1, sent(range(0, 20, 10)))
    wrote = fold(table, 2, sent(range(5, 25, 10)))
    assert (wrote.added, wrote.removed, len(there(table))) == (1, 1, 4)


def test_a_row_is_found_by_a_key_that_is_null(table: Lake) -> None:
    """A gateway's row has no device; none of the devices in the file comes again."""
    name, path = "gateway_freshness", Path(table.path("gateway_freshness"))
    table.ensure(name)
    for version, (devices, removed) in enumerate([((None, "", "d", "e"), 0), (("f",), 0), ((None,), 1), (("",), 1)]):
        rows = pa.Table.from_pylist([fresh(device) for device in devices], schemas.DERIVED[name].arrow)
        before = delta_commits.version(path)
        assert table.fold_here(name, rows, lambda both: both, Transaction("job", version))
        assert delta_commits.written(path, before).removed == removed


def fresh(device: str | None) -> Row:
    row: Row = {"tenant": "t", "gateway": "g", "device": device, "late_share": 0.0}
    row |= dict.fromkeys(("first_event_time", "last_event_time", "last_ingested_at"), START)
    return row | dict.fromkeys(("rows", "late_rows", "suspect_rows"), 1)


@pytest.mark.parametrize("meanwhile", ["takes the same transaction", "puts the files together", "adds a file"])
def test_of_two_who_change_the_same_one_is_refused(
    table: Lake, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """While one has read what is there, and has not committed."""
    fold(table, 1, sent(range(0, 20, 10)))
    fold(table, 2, sent(range(20, 30, 5)))
    read, late = columns.read, sent(range(0, 25, 5))

    def meanwhile_(*arguments: Any) -> Any:
        monkeypatch.undo()
        opened = table.at("rollup_1m").delta()
        if meanwhile == "puts the files together":
            opened.optimize.compact()
        else:
            fold(table, 3, sent(range(27, 28)), "job" if meanwhile == "takes the same transaction" else "other job")
        return read(*arguments)

    monkeypatch.setattr(columns, "read", meanwhile_)
    with pytest.raises(CommitFailedError):
        fold(table, 3, late)
    counts = there(table)
    assert counts["d", START] == 1
    assert sum(counts.values()) == 4 + (meanwhile != "puts the files together")
    if meanwhile != "takes the same transaction":
        fold(table, 3, late)
        assert sum(there(table).values()) == sum(counts.values()) + 5


@pytest.mark.parametrize(("limit", "most"), [("HELD_ROWS_MAX", 3), ("HELD_BYTES_MAX", 1_000)])
def test_what_is_too_much_for_this_process_is_left(
    table: Lake, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    fold(table, 1, sent(range(0, 20, 5)))
    monkeypatch.setattr(fold_here, limit, most)
    version = delta_commits.version(Path(table.path("rollup_1m")))
    windows = of_readings(arrow(sent(range(5, 6))), MINUTE_US)
    assert not table.fold_here("rollup_1m", windows, SAME, Transaction("job", 2))
    assert delta_commits.version(Path(table.path("rollup_1m"))) == version
    assert fold(table, 2, sent(range(20, 30))).removed == 0  # which touches none of it


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("turns", [(True, False, True), pytest.param((False, True, False), marks=pytest.mark.slow)])
def test_both_fold_into_what_the_other_has_written(
    spark: SparkSession, tmp_path: Path, turns: tuple[bool, ...]
) -> None:
    """A lake goes from one machine to a cluster and back, or a batch is too large once."""
    rows = []
    for turn, here in enumerate(turns):
        lake = Lake(spark, tmp_path / "lake", here=here)
        bodies = [(n, str(n % 7 + 0.5).encode()) for n in range(40 * turn, 40 * turn + 40)]
        landed = [message(n, body=body, at=START + timedelta(seconds=n * 7 % 240)) for n, body in bodies]
        lakes.write(lake.place, "telemetry", landed)
        rows += [reading(row["sequence"], row["event_time"], float(row["body"])) for row in landed]
        steps = runner.one_pass(lake, catalog.chosen(["rollups", "hours"]), lambda _: None)
        assert [step.error for step in steps] == [None] * 3
    widths = {"rollup_1m": timedelta(minutes=1), "rollup_1h": timedelta(hours=1), "rollup_1d": timedelta(days=1)}
    for name, width in widths.items():
        made = lake.at(name).delta().to_pyarrow_table().to_pylist()
        assert by_time(made) == by_time(plain(rows, width).values())


def by_time(windows: Iterable[Row]) -> list[Row]:
    shown = ("window_start", "count", "min", "max", "sum", "last", "last_sequence", "p50", "p95", "mean")
    return sorted(({name: row[name] for name in shown} for row in windows), key=lambda row: row["window_start"])


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit", ["HERE_MAX", "HELD_ROWS_MAX"])
def test_spark_takes_over_where_a_batch_is_too_large(lake: Lake, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    for first in (0, 10):
        at = START + timedelta(seconds=first)
        landed = [message(n, body=str(n + 0.5).encode(), at=at) for n in range(first, first + 10)]
        lakes.write(lake.place, "telemetry", landed)
        steps = runner.one_pass(lake, catalog.chosen(["rollups"]), lambda _: None)
        assert [step.error for step in steps] == [None, None]
        monkeypatch.setattr(job if limit == "HERE_MAX" else fold_here, limit, 0)
    entries = (lake.commit("rollup_1m", version) for version in (1, 2))
    engines = ["Spark" in str(entry.info.get("engineInfo")) for entry in entries if entry is not None]
    counts = lake.at("rollup_1m").delta().to_pyarrow_table(columns=["count"])["count"].to_pylist()
    assert (engines, counts) == ([False, True], [20])
