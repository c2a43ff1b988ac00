"""Damage to a lake: the job that reads it fails and names it; derived rows stay, and a repair exists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from cloud.lake import tables as landed
from cloud.lake.contract import contract
from spark.jobs import catalog, runner
from spark.jobs.job import AnalyticsJob
from spark.jobs.stream import MicroBatch, StreamStep
from spark.lake import SparkLake
from tests.spark import lakes
from tests.spark.lakes import message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def _take(batch: MicroBatch) -> None:
    rows = batch.rows.groupBy("tenant", "gateway").agg(
        F.count("sequence").alias("waiting"), F.max("ingested_at").alias("said_at")
    )
    how = {"waiting": "old.waiting + new.waiting", "said_at": "greatest(old.said_at, new.said_at)"}
    batch.fold("gateway_backlog", rows, how)


COUNTING = StreamStep("counting", "telemetry", ("gateway_backlog",), revision=1, process=_take)
"""Count messages of each gateway: the smallest possible step."""
JOB = AnalyticsJob("counting", "", (COUNTING,))


def land(lake: SparkLake, *rows: dict[str, Any]) -> Path:
    """Write one commit as the hub does; return its data file."""
    root = Path(lake.place.uri)
    root.mkdir(exist_ok=True)
    table = landed.LakeTable.open(root, "telemetry")
    before = set(lake.open("telemetry").file_uris())
    table.append(pa.Table.from_pylist(list(rows), schema=contract().tables["telemetry"].arrow_schema))
    (added,) = set(lake.open("telemetry").file_uris()) - before
    return Path(added.removeprefix("file://"))


def count(lake: SparkLake) -> runner.JobStatus:
    (step,) = runner.run_pass(lake, [JOB], lambda _: None)
    return step


def counted(lake: SparkLake) -> dict[str, int]:
    """Return the counted messages by gateway."""
    rows = deltalake.DeltaTable(lake.path("gateway_backlog")).to_pyarrow_table().to_pylist()
    return {row["gateway"]: row["waiting"] for row in rows}


@pytest.fixture(scope="module")
def once_counted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkLake:
    """Lake with one message that was counted; copied by `counted_lake`."""
    lake = SparkLake(spark, tmp_path_factory.mktemp("counted") / "lake")
    land(lake, message(0))
    assert count(lake).error is None
    return lake


@pytest.fixture
def counted_lake(once_counted: SparkLake, tmp_path: Path) -> SparkLake:
    """Lake with one message that was counted."""
    copy = shutil.copytree(once_counted.place.uri, tmp_path / "lake")
    return SparkLake(once_counted.session, copy)


def steps(lake: SparkLake, *names: str) -> dict[str, runner.JobStatus]:
    return {step.job: step for step in runner.run_pass(lake, catalog.select(names), lambda _: None)}


def flip(path: Path, size: int) -> None:
    """Flip bits of this many bytes in the middle of a file."""
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 3, len(content) // 3 + size):
        content[at] ^= 0x10
    path.write_bytes(content)


def test_a_damaged_file_fails_the_job_which_goes_on_once_a_copy_is_back(lake: SparkLake, tmp_path: Path) -> None:
    land(lake, *(message(number, gateway="gw0") for number in range(10)))
    assert count(lake).state == "done"
    path = land(lake, *(message(number) for number in range(400)))
    land(lake, *(message(number, gateway="gw2") for number in range(10)))
    copy = shutil.copy(path, tmp_path / "copy")
    harms: dict[str, Callable[[], object]] = {
        "missing": path.unlink,
        "truncated": lambda: path.write_bytes(path.read_bytes()[:-100]),
        "damaged": lambda: flip(path, path.stat().st_size // 3),
    }
    for why, harm in harms.items():
        harm()
        step = count(lake)
        assert (step.state, step.integrity) == ("failed", True), step
        assert f"{path} is {why}" in (step.error or "")
        assert "Restore it from a copy, or let `waypost lake verify --drop`" in (step.error or "")
        assert counted(lake) == {"gw0": 10}, "what was made before is as it was"
        shutil.copy(copy, path)
    assert count(lake).state == "done"
    assert counted(lake) == {"gw0": 10, "gw1": 400, "gw2": 10}


def test_a_damaged_derived_table_is_named_and_made_anew(counted_lake: SparkLake) -> None:
    lake = counted_lake
    (path,) = deltalake.DeltaTable(lake.path("gateway_backlog")).file_uris()
    Path(path.removeprefix("file://")).unlink()
    land(lake, message(1))
    step = count(lake)
    assert (step.state, step.integrity) == ("failed", True)
    assert "gateway_backlog" in (step.error or "")
    assert "missing. `waypost lake rebuild`" in (step.error or "")
    runner.empty_tables(lake, [JOB])
    assert count(lake).state == "done"
    assert counted(lake) == {"gw1": 2}
    # Damage its log as well.
    log = Path(lake.path("gateway_backlog")) / "_delta_log"
    max(log.glob("*.json")).write_text('{"add":{"pa')
    land(lake, message(2))
    step = count(lake)
    assert (step.state, step.integrity) == ("failed", True)
    assert "table gateway_backlog cannot be read" in (step.error or "")
    runner.empty_tables(lake, [JOB])
    count(lake)
    assert counted(lake) == {"gw1": 3}


def test_damaged_offsets_of_clocks_fail_the_jobs_that_read_stamps(lake: SparkLake, tmp_path: Path) -> None:
    lakes.write(lake.place, "clock_offsets", [lakes.clock_offset(gateway="gw9")])
    (uri,) = deltalake.DeltaTable(lake.path("clock_offsets")).file_uris()
    path = Path(uri.removeprefix("file://"))
    copy = shutil.copy(path, tmp_path / "copy")
    flip(path, 40)
    land(lake, message(0))
    for step in steps(lake, "messages", "readings").values():
        assert (step.state, step.integrity) == ("failed", True), step
        assert f"{path} is damaged. Restore it from a copy" in (step.error or "")
    shutil.copy(copy, path)
    assert steps(lake, "readings")["readings"].state == "done"
    assert lake.rows("readings") == 1


def entry(lake: SparkLake, version: int) -> Path:
    return Path(lake.path("telemetry")) / "_delta_log" / f"{version:020}.json"


def half(lake: SparkLake) -> None:
    newest = entry(lake, 2)
    newest.write_bytes(newest.read_bytes()[:150])


def empty(lake: SparkLake) -> None:
    entry(lake, 2).write_bytes(b"")


def missing(lake: SparkLake) -> None:
    entry(lake, 2).rename(entry(lake, 2).with_name("kept"))
    shutil.copy(entry(lake, 1), entry(lake, 3))


def commit(lake: SparkLake, action: dict[str, Any]) -> None:
    entry(lake, 3).write_text(json.dumps(action))


def newer_protocol(lake: SparkLake) -> None:
    commit(lake, {"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}})


def newer_feature(lake: SparkLake) -> None:
    features = ["deletionVectors"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    commit(lake, {"protocol": {**versions, "readerFeatures": features, "writerFeatures": features}})


def other_type(lake: SparkLake) -> None:
    action = json.loads(next(line for line in entry(lake, 0).read_text().splitlines() if "metaData" in line))
    text = action["metaData"]["schemaString"]
    action["metaData"]["schemaString"] = text.replace(
        '"name":"sequence","type":"long"', '"name":"sequence","type":"string"'
    )
    assert action["metaData"]["schemaString"] != text
    commit(lake, action)


def cleaned(lake: SparkLake) -> None:
    land(lake, message(2))
    deltalake.DeltaTable(lake.path("telemetry")).create_checkpoint()
    for version in range(3):
        entry(lake, version).unlink()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (half, "Start the hub"),
        (empty, "is damaged. Start the hub"),
        (missing, "cannot be read"),
        (newer_protocol, "A newer program wrote it"),
        (newer_feature, "deletionVectors"),
        (other_type, "column sequence is string, the contract says bigint"),
        (cleaned, "log was cleaned"),
    ],
)
def test_a_log_that_is_not_what_it_should_be(
    counted_lake: SparkLake, harm: Callable[[SparkLake], None], words: str
) -> None:
    """Version 1 was processed; version 2 has landed since."""
    lake = counted_lake
    land(lake, message(1))
    harm(lake)
    step = count(lake)
    assert (step.state, step.integrity) == ("failed", True), step
    assert words in (step.error or "")
    assert counted(lake) == {"gw1": 1}, "what was made before is as it was"


def test_after_its_log_was_cleaned_a_rebuild_takes_the_table_as_it_is(counted_lake: SparkLake) -> None:
    lake = counted_lake
    land(lake, message(1))
    cleaned(lake)
    COUNTING.forget(lake)
    assert count(lake).rows_in == 3
    assert counted(lake) == {"gw1": 3}


def test_progress_that_is_a_batch_older_than_the_table_is_refused(counted_lake: SparkLake, tmp_path: Path) -> None:
    """The next batch would count as already processed, and its messages would be skipped."""
    lake = counted_lake
    progress = Path(lake.path("_checkpoints"))
    shutil.copytree(progress, tmp_path / "copy")
    land(lake, message(1))
    count(lake)
    shutil.rmtree(progress)
    shutil.copytree(tmp_path / "copy", progress)
    land(lake, message(2))
    step = count(lake)
    assert (step.state, step.integrity) == ("failed", True), step
    assert "older copy" in (step.error or "")
    COUNTING.forget(lake)
    count(lake)
    assert counted(lake) == {"gw1": 3}


def test_rows_that_somebody_deletes_are_taken_once_and_stay(lake: SparkLake) -> None:
    """Derived rows of deleted rows leave with a rebuild, as those of dropped files do."""
    land(lake, message(0), message(1))
    count(lake)
    deltalake.DeltaTable(lake.path("telemetry")).delete("sequence = 1")
    land(lake, message(2))
    assert count(lake).error is None
    assert counted(lake) == {"gw1": 3}
    COUNTING.forget(lake)
    count(lake)
    assert counted(lake) == {"gw1": 2}
