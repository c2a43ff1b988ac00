"""Maintenance changes no row, and readers that follow a table's commits do not see it. No JVM."""

from __future__ import annotations

import os
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark import maintenance
from spark.cli import analytics
from spark.maintenance import DUE_COMMITS, FOLLOWED_KEPT_HOURS
from spark.write_age import UNNAMED_KEPT_HOURS, WRITTEN_HOURS_MAX
from tests.spark import lakes
from tests.spark.lakes import message
from tests.support.delta_commits import data_changes

FOLLOWED = {"readings"}


def rows(number: int) -> pa.Table:
    return pa.table({"n": [number, number + 1]})


def appended(root: Path, name: str, commits: int) -> None:
    for number in range(commits):
        deltalake.write_deltalake(root / name, rows(number), mode="append")


def test_a_table_is_due_once_in_so_many_commits(tmp_path: Path) -> None:
    appended(tmp_path, "readings", DUE_COMMITS)
    assert not maintenance.is_due(tmp_path, "readings")
    appended(tmp_path, "readings", 1)
    assert maintenance.is_due(tmp_path, "readings")
    (done,) = maintenance.maintain(tmp_path, ["readings"], FOLLOWED)
    assert (done.files_before, done.files_after, done.deleted) == (DUE_COMMITS + 1, 1, 0)
    assert not maintenance.is_due(tmp_path, "readings")

    # Rows are unchanged, the commit is marked so, and older versions remain for followers.
    table = deltalake.DeltaTable(tmp_path / "readings")
    assert table.count() == 2 * (DUE_COMMITS + 1)
    versions = range(DUE_COMMITS + 1, table.version() + 1)
    assert versions
    assert not any(data_changes(tmp_path / "readings", version) for version in versions)
    before = deltalake.DeltaTable(tmp_path / "readings", version=DUE_COMMITS)
    assert before.to_pyarrow_table().num_rows == table.count()


def test_what_is_written_anew_with_each_pass_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "KEPT_HOURS", 0)
    for number in range(5):
        deltalake.write_deltalake(tmp_path / "gaps", rows(number), mode="overwrite")
    (done,) = maintenance.maintain(tmp_path, ["gaps"], FOLLOWED)
    assert (done.files_after, done.deleted) == (1, 4)
    assert deltalake.DeltaTable(tmp_path / "gaps").to_pyarrow_table()["n"].to_pylist() == [4, 5]
    assert len(list((tmp_path / "gaps").glob("*.parquet"))) == 1


def test_a_file_that_no_log_names_stays_for_whom_it_may_still_be_written(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "gaps", rows(0))
    left, being_written = (tmp_path / "gaps" / f"part-{name}.parquet" for name in ("left", "being_written"))
    for path, hours in ((left, UNNAMED_KEPT_HOURS + 1), (being_written, UNNAMED_KEPT_HOURS - 1)):
        path.touch()
        os.utime(path, (time.time() - hours * 3_600,) * 2)
    (done,) = maintenance.maintain(tmp_path, ["gaps"], FOLLOWED)
    assert (left.exists(), being_written.exists(), done.deleted) == (False, True, 1)
    assert UNNAMED_KEPT_HOURS > 2 * WRITTEN_HOURS_MAX


def test_the_log_is_kept_for_a_week(tmp_path: Path) -> None:
    log = tmp_path / "readings" / "_delta_log"
    appended(tmp_path, "readings", 3)
    tuple(maintenance.maintain(tmp_path, ["readings"], FOLLOWED))
    checkpoint = deltalake.DeltaTable(tmp_path / "readings").version()
    week_ago_s = time.time() - (FOLLOWED_KEPT_HOURS + 1) * 3_600
    for entry in log.iterdir():
        os.utime(entry, (week_ago_s, week_ago_s))
    appended(tmp_path, "readings", 3)
    tuple(maintenance.maintain(tmp_path, ["readings"], FOLLOWED))
    table = deltalake.DeltaTable(tmp_path / "readings")
    kept = [int(entry.stem) for entry in sorted(log.glob("*.json"))]
    assert kept == list(range(checkpoint, table.version() + 1))
    assert table.count() == 12


def test_the_command(tmp_path: Path) -> None:
    for number in range(3):
        lakes.write(tmp_path, "telemetry", [message(number)])
    appended(tmp_path, "readings", 3)
    result = CliRunner().invoke(analytics, ["maintain", "--lake", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert "3 ->       1 file " in lines["readings"]
    assert "3 ->      3 files" in lines["telemetry"], "the hub's to put together"
    assert deltalake.DeltaTable(tmp_path / "telemetry").count() == 3
