"""Steps that follow a table read each row once despite interruptions.

They start over if their tables do not belong together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from spark.jobs import catalog, runner
from spark.jobs.checkpoint import SourceLost
from spark.jobs.job import AnalyticsJob, JobResult
from spark.jobs.stream import MicroBatch, StreamStep
from spark.lake import SparkLake
from spark.lineage import Pins, TableLineage, TableState
from spark.sink import BatchTransaction, Sink
from tests.spark import lakes
from tests.spark.lakes import message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIRST, LAST = "open_statements", "given_up_ranges"
"""Two outputs with one row for each message."""
BESIDE = "landed_ranges"
NOW = datetime(2026, 3, 14, tzinfo=UTC)


def stated(rows: DataFrame) -> DataFrame:
    columns = ("tenant", "gateway", "epoch", "address")
    at = F.col("sequence")
    times = ("ingested_at", F.col("ingested_at").alias("hour"), F.lit(None).alias("until"))
    return rows.select(*columns, at.alias("first_sequence"), at.alias("last_sequence"), *times)


def given_up(rows: DataFrame) -> DataFrame:
    return stated(rows).drop("ingested_at", "hour", "until").withColumn("reason", F.lit("-"))


@dataclass
class Follower:
    """Step with two outputs; counts its batches. `before_last` runs between the outputs, `at_end` after them."""

    before_last: Callable[[MicroBatch], object] = lambda _: None
    at_end: Callable[[MicroBatch], object] = lambda _: None
    batches: list[int] = field(default_factory=list)

    def take(self, batch: MicroBatch) -> None:
        self.batches.append(batch.transaction.version)
        batch.append(FIRST, stated(batch.rows))
        self.before_last(batch)
        batch.append(LAST, given_up(batch.rows))
        self.at_end(batch)

    def step(self, revision: int = 1) -> StreamStep:
        return StreamStep("follower", "telemetry", (FIRST, LAST), revision, self.take, companions=(BESIDE,))


def die(_: MicroBatch) -> None:
    raise RuntimeError("power cut")


def land(lake: SparkLake, *sequences: int, **override: Any) -> None:
    lakes.write(lake.place, "telemetry", [message(number, **override) for number in sequences])


def held(lake: SparkLake) -> list[list[int]]:
    """Return the sequences of both outputs."""
    tables = (lake.at(name).delta().to_pyarrow_table() for name in (FIRST, LAST))
    return [sorted(table["first_sequence"].to_pylist()) for table in tables]


def ids(lake: SparkLake) -> set[str]:
    return {str(lake.open(name).metadata().id) for name in (FIRST, LAST)}


@pytest.fixture(scope="module")
def once_followed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkLake:
    """Lake with message 0 in both outputs; copied by `followed`."""
    lake = SparkLake(spark, tmp_path_factory.mktemp("followed") / "lake")
    land(lake, 0)
    lake.ensure(BESIDE)
    Follower().step().run(lake)
    return lake


@pytest.fixture
def followed(once_followed: SparkLake, tmp_path: Path) -> SparkLake:
    """Lake with message 0 in both outputs."""
    return SparkLake(once_followed.session, shutil.copytree(once_followed.place.uri, tmp_path / "lake"))


def versions(lake: SparkLake) -> list[int | None]:
    return [lake.version(name) for name in (FIRST, LAST)]


def test_a_batch_runs_in_the_pool_of_its_rhythm(lake: SparkLake) -> None:
    follower, pools = Follower(), list[str | None]()
    follower.at_end = lambda batch: pools.append(
        batch.rows.sparkSession.sparkContext.getLocalProperty("spark.scheduler.pool")
    )
    land(lake, 0)
    job = AnalyticsJob("follower", "-", (follower.step(),), rhythm="values")
    with ThreadPoolExecutor(1) as thread:
        (step,) = thread.submit(runner.run_pass, lake, [job], lambda _: None).result()
    assert step.error is None
    assert pools == ["values"]


def test_each_row_is_taken_once(lake: SparkLake) -> None:
    follower = Follower()
    land(lake, 0, 1)
    land(lake, 2)
    assert follower.step().run(lake) == JobResult(3, 6)
    land(lake, 3)
    assert follower.step().run(lake) == JobResult(1, 2)
    assert held(lake) == [[0, 1, 2, 3]] * 2
    made_of = lake.lineage(LAST)
    assert made_of is not None
    assert made_of.sources["telemetry"].is_same(lake.state("telemetry"))
    # A step that follows an output knows the source of that output.
    following = StreamStep(
        "second", FIRST, ("gateway_backlog",), 1, lambda batch: batch.sink.commit_empty("gateway_backlog")
    )
    following.run(lake)
    second = lake.lineage("gateway_backlog")
    assert second is not None
    assert second.sources == {FIRST: lake.dated_state(FIRST, 2), "telemetry": lake.dated_state("telemetry", 2)}
    # Maintenance and no new rows: no query starts, no commit is written.
    before = versions(lake)
    assert follower.step().run(lake) == JobResult(0, 0)
    lake.at("telemetry").delta().optimize.compact()
    assert Follower().step().run(SparkLake(None, lake.place)) == JobResult(0, 0)
    land(lake, 4)
    follower.step().run(lake)
    assert held(lake) == [[0, 1, 2, 3, 4]] * 2
    assert [after - then for after, then in zip(versions(lake), before, strict=True) if after and then] == [1, 1]


def test_a_batch_that_reached_one_output_is_finished_with_the_rows_it_had(followed: SparkLake) -> None:
    lake = followed
    land(lake, 1)
    dying = Follower(before_last=die)
    with pytest.raises(RuntimeError, match="power cut"):
        dying.step().run(lake)
    assert held(lake) == [[0, 1], [0]]
    land(lake, 2)
    with pytest.raises(RuntimeError, match="power cut"):
        dying.step().run(lake)
    follower = Follower()
    follower.step().run(lake)
    assert (held(lake), dying.batches, follower.batches) == ([[0, 1, 2]] * 2, [1, 1], [1, 2])


def test_a_first_batch_that_was_interrupted_is_run_again(lake: SparkLake) -> None:
    """The crash is before the last output, and before Spark has recorded the batch."""
    land(lake, 0)
    for dying in (Follower(before_last=die), Follower(at_end=die)):
        with pytest.raises(RuntimeError, match="power cut"):
            dying.step().run(lake)
    land(lake, 1)
    follower = Follower()
    follower.step().run(lake)
    assert (held(lake), follower.batches) == ([[0, 1]] * 2, [0, 1])


def test_a_batch_is_bounded(lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        land(lake, number)
    monkeypatch.setattr("spark.lake.BATCH_BYTES_MAX", "1b")
    dying = Follower(at_end=lambda batch: die(batch) if batch.transaction.version == 1 else None)
    with pytest.raises(RuntimeError, match="power cut"):
        dying.step().run(lake)
    seen: list[TableLineage | None] = []
    follower = Follower(before_last=lambda batch: seen.append(batch.lineage))
    follower.step().run(lake)
    assert (held(lake), dying.batches, follower.batches) == ([[0, 1, 2]] * 2, [0, 1], [1, 2])
    # Only the last batch covers the first version of the source completely.
    assert [made_of is not None for made_of in seen] == [False, True]


def recreate_first(lake: SparkLake) -> None:
    lake.recreate(FIRST)


def lose_last(lake: SparkLake) -> None:
    shutil.rmtree(lake.path(LAST))


def lose_checkpoints(lake: SparkLake) -> None:
    shutil.rmtree(Path(lake.place.uri) / "_checkpoints")


def recreate_beside(lake: SparkLake) -> None:
    lake.recreate(BESIDE)


def replace_source(lake: SparkLake) -> None:
    shutil.rmtree(lake.path("telemetry"))
    land(lake, 0)


def test_outputs_that_do_not_belong_together_are_rebuilt(followed: SparkLake) -> None:
    lake = followed
    for disturb in (recreate_first, lose_last, lose_checkpoints, recreate_beside, replace_source):
        before = ids(lake)
        disturb(lake)
        follower = Follower()
        follower.step().run(lake)
        assert (held(lake), follower.batches) == ([[0]] * 2, [0]), disturb
        assert not ids(lake) & before, disturb
    Follower().step(revision=2).run(lake)
    assert held(lake) == [[0]] * 2


def test_outputs_are_recreated_together_wherever_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs have batches of a lost checkpoint. They are recreated before the session is used."""
    lake, recreate = SparkLake(None, tmp_path), SparkLake.recreate
    land(lake, 0)
    for name in (FIRST, LAST):
        lake.ensure(name)
        Sink(lake, BatchTransaction("earlier", 0), None).commit_empty(name)
    before = ids(lake)

    def recreated(lake: SparkLake, name: str) -> TableState:
        if name == LAST:
            raise RuntimeError("power cut")
        return recreate(lake, name)

    monkeypatch.setattr(SparkLake, "recreate", recreated)
    with pytest.raises(RuntimeError, match="power cut"):
        Follower().step().run(lake)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="without Spark"):
        Follower().step().run(lake)
    assert not ids(lake) & before


def test_forgotten_it_begins_anew(followed: SparkLake) -> None:
    follower = Follower()
    follower.step().forget(followed)
    assert held(followed) == [[], []]
    follower.step().run(followed)
    assert (held(followed), follower.batches) == ([[0]] * 2, [0])


def test_an_older_copy_is_named(followed: SparkLake, tmp_path: Path) -> None:
    lake = followed
    root, older, newest = Path(lake.place.uri), tmp_path / "older", tmp_path / "newest"
    shutil.copytree(root, older)
    for number in (1, 2):
        land(lake, number)
        Follower().step().run(lake)
    shutil.copytree(root, newest)
    for name in (FIRST, LAST, "telemetry", "_checkpoints"):
        for copy, error in ((older, "older copy"), (newest, None)):
            shutil.rmtree(root / name)
            shutil.copytree(copy / name, root / name)
            if error is None:
                assert Follower().step().run(lake) == JobResult(0, 0)
            else:
                with pytest.raises(SourceLost, match=error):
                    Follower().step().run(lake)
    assert held(lake) == [[0, 1, 2]] * 2


def test_commits_that_are_gone_are_named(followed: SparkLake) -> None:
    lake = followed
    for number in range(1, 4):
        land(lake, number)
    table = lake.at("telemetry").delta()
    table.create_checkpoint()
    for version in (1, 2):
        (Path(lake.path("telemetry")) / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SourceLost, match="rebuild"):
        Follower().step().run(lake)


def test_rows_that_leave_the_source_stay_in_the_outputs(followed: SparkLake) -> None:
    followed.at("telemetry").delta().delete("sequence = 0")
    land(followed, 1)
    Follower().step().run(followed)
    assert held(followed) == [[0, 1]] * 2


def test_a_retry_knows_the_pins_of_its_first_attempt(lake: SparkLake) -> None:
    land(lake, 0)
    found: list[Pins | None] = []

    def take(batch: MicroBatch) -> None:
        found.append(batch.find_pins(FIRST))
        pins = Pins((batch.transaction.application, batch.transaction.version), len(found), None, None, NOW)
        batch.append(FIRST, stated(batch.rows), TableLineage({}, pins=found[-1] or pins))
        if len(found) == 1:
            die(batch)
        batch.append(LAST, given_up(batch.rows))

    step = replace(Follower().step(), process=take)
    with pytest.raises(RuntimeError):
        step.run(lake)
    lake.at(FIRST).delta().optimize.compact()
    step.run(lake)
    assert found[0] is None
    assert found[1] is not None
    assert (found[1].schemas, found[1].now) == (1, NOW)


def test_a_small_table_is_rewritten_once(lake: SparkLake) -> None:
    land(lake, 0)
    dies = [True]

    def take(batch: MicroBatch) -> None:
        batch.rewrite(FIRST, lambda there: there.unionByName(stated(batch.rows)))
        if dies.pop(0):
            die(batch)
        batch.append(LAST, given_up(batch.rows))

    step = replace(Follower().step(), process=take)
    with pytest.raises(RuntimeError):
        step.run(lake)
    dies += [False, False]
    step.run(lake)
    land(lake, 1)
    step.run(lake)
    assert held(lake) == [[0, 1]] * 2


class TestOrder:
    def test_each_job_comes_after_those_it_reads(self) -> None:
        written: set[str] = set()
        everything = {table for job in catalog.JOBS for table in job.outputs}
        for job in catalog.JOBS:
            assert not set(job.inputs) & (everything - written)
            written |= set(job.outputs)

    def test_a_job_is_chosen_with_those_it_reads_and_rebuilt_with_those_that_read_it(self) -> None:
        assert [job.name for job in catalog.select(["rollups"])] == ["readings", "rollups"]
        assert {"readings", "rollups"} <= {job.name for job in catalog.select_dependents(["readings"])}
        assert [job.name for job in catalog.select_dependents(["rollups"])] == ["rollups"]
        assert [job.name for job in catalog.select(["freshness", "slo"])] == ["messages"]
        assert "gaps" in {job.name for job in catalog.select_dependents(["outages"])}
        with pytest.raises(KeyError):
            catalog.select(["dreams"])

    def test_two_jobs_never_write_one_table(self) -> None:
        (rollups,) = (job for job in catalog.JOBS if job.name == "rollups")
        with pytest.raises(ValueError, match="is written by"):
            catalog.build_graph([rollups, AnalyticsJob("another", "", rollups.steps)])
