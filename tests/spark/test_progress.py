"""How far a job is: markers, and the batches that follow from them. No JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from spark.jobs.following import Batch, Following
from spark.jobs.progress import BATCH_ROWS_MAX, Position, SourceLost, spans
from spark.transaction import Transaction

from spark import gathered
from spark.conflict import Overtaken
from spark.jobs import catalog, progress
from spark.jobs.outcome import Job
from spark.lake import Lake
from spark.lineage import State
from tests.spark import lakes
from tests.spark.lakes import message


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four commits of telemetry, of one row each; nothing here starts a session."""
    for number in range(4):
        lakes.write(tmp_path, "telemetry", [message(number)])
    return Lake(cast(Any, None), tmp_path)


def taken(
    lake: Lake, begin: Position | None, end: Position | None = None, rows_max: int | None = None
) -> list[tuple[int, Position, int | None]]:
    now = lake.state("telemetry")
    assert now is not None
    return [(len(span.files), span.end, span.whole) for span in spans(lake, "telemetry", now, begin, end, rows_max)]


def test_positions_ascend_as_they_are_reached() -> None:
    reached = [Position(7, 1), Position(7, 2), Position(8), Position(8, 1), Position(9)]
    markers = [position.marker() for position in reached]
    assert markers == sorted(markers)
    assert [Position.of(marker) for marker in markers] == reached


def test_at_first_the_table_is_taken_as_it_is_and_then_commit_by_commit(lake: Lake) -> None:
    assert taken(lake, None) == [(4, Position(4), 3)]
    assert taken(lake, Position(4)) == []
    lakes.write(lake.place.path, "telemetry", [message(4)])
    assert taken(lake, Position(4)) == [(1, Position(5), 4)]
    assert taken(lake, Position(2)) == [(3, Position(5), 4)]


class _Counted(Lake):
    """What is appended is counted, and not written."""

    appended = 0

    def append(self, name: str, rows: Any, transaction: Transaction, made_of: Any = None) -> bool:
        self.appended += 1
        return True


NOBODY, SAME, SOME, ALL = None, Position(4), Position(5), Position(7)
"""How far another program has taken commits, of a batch from 4 to 7."""


@pytest.mark.parametrize(("taken_by_others", "goes"), [(NOBODY, True), (SAME, True), (SOME, False), (ALL, True)])
@pytest.mark.parametrize("at_first", [False, True])
def test_what_another_program_has_taken_some_of_is_not_taken_again(
    tmp_path: Path, taken_by_others: Position | None, goes: bool, at_first: bool
) -> None:
    lake = _Counted(cast(Any, None), tmp_path)
    state = lake.ensure("gateway_backlog")
    begin = -1 if at_first else Position(4).marker()
    turn = Transaction(f"backlog@1/source/{state.id}", Position(7).marker(), begin)
    batch = Batch(lake, "telemetry", [], 1, None, {"gateway_backlog": turn})
    if taken_by_others is not None:
        place = lake.at("gateway_backlog")
        nothing = pa.schema(place.delta().schema().to_arrow()).empty_table()
        gathered.write(place, nothing, gathered.Commit(Transaction(turn.application, taken_by_others.marker()), {}))
    if goes and not (at_first and taken_by_others is SAME):
        batch.append("gateway_backlog", cast(Any, None))
    else:
        with pytest.raises(Overtaken, match="gateway_backlog was changed"):
            batch.append("gateway_backlog", cast(Any, None))
    assert lake.appended == (goes and not (at_first and taken_by_others is SAME))


def test_what_another_program_has_made_anew_is_not_written(tmp_path: Path) -> None:
    """A program of another revision, say, which knows nothing of what is in it."""
    lake = _Counted(cast(Any, None), tmp_path)
    there = lake.ensure("gateway_backlog").id
    turn = Transaction(f"backlog@1/source/{there}", Position(7).marker(), table=there)
    lake.recreate("gateway_backlog")
    with pytest.raises(Overtaken, match="gateway_backlog was changed"):
        Batch(lake, "telemetry", [], 1, None, {"gateway_backlog": turn}).append("gateway_backlog", cast(Any, None))
    assert lake.appended == 0


def test_outputs_are_made_anew_together_wherever_that_was_stopped(lake: Lake) -> None:
    """A rebuild was killed when it had emptied one of them, which would have stayed so."""
    step = Following("step", "telemetry", ("sparkplug_births", "reject", "readings"), revision=1, take=lambda _: None)
    source = lake.state("telemetry")
    assert source is not None

    def go_on() -> dict[str, State]:
        """A pass that takes everything, and then the outputs as the next one finds them."""
        before = step._outputs(lake, source)
        for name in ("reject", "readings"):  # there was nothing for the other one
            place = lake.at(name)
            nothing = pa.schema(place.delta().schema().to_arrow()).empty_table()
            taken = Transaction(step.application(lake, source, before), Position(4).marker())
            gathered.write(place, nothing, gathered.Commit(taken, {}))
        return step._outputs(lake, source)

    before = go_on()
    assert step._outputs(lake, source) == before
    for name in step.outputs:
        lake.recreate(name)
        after = step._outputs(lake, source)
        assert all(before[other].id != after[other].id for other in ("reject", "readings"))
        assert not any(step._positions(lake, step.application(lake, source, after)).values())
        before = go_on()


def test_batches_are_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BATCH_ROWS_MAX >= 2
    monkeypatch.setattr(progress, "BATCH_ROWS_MAX", 2)
    assert taken(lake, None) == [(2, Position(3, 1), None), (2, Position(4), 3)]
    assert taken(lake, Position(3, 1)) == [(2, Position(4), 3)]
    assert taken(lake, Position(1)) == [(2, Position(3), 2), (1, Position(4), 3)]
    # A job may take more commits at once, and not other parts: what number 1 holds must not depend on who asks.
    assert taken(lake, Position(1), rows_max=3) == [(3, Position(4), 3)]
    assert taken(lake, None, rows_max=3) == taken(lake, None)
    assert taken(lake, None, rows_max=4) == [(4, Position(4), 3)]
    monkeypatch.setattr(progress, "BATCH_BYTES_MAX", 1)
    assert [files for files, _, _ in taken(lake, None)] == [1, 1, 1, 1]


def test_a_batch_that_was_begun_ends_where_it_did(lake: Lake) -> None:
    """The first output has taken versions 1 and 2 in one batch, the last one has not."""
    assert taken(lake, Position(1), Position(3)) == [(2, Position(3), 2), (1, Position(4), 3)]
    # The same in the first batch of all, which was of the table as it was at version 1.
    assert taken(lake, None, Position(2)) == [(2, Position(2), 1), (2, Position(4), 3)]


def test_a_batch_of_several_parts_that_was_begun_ends_where_it_did(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a batch may hold now, and however many parts the last output has taken."""
    monkeypatch.setattr(progress, "BATCH_ROWS_MAX", 1)
    rest = (2, Position(4), 3)
    assert taken(lake, None, Position(3, 2), rows_max=4) == [(2, Position(3, 2), None), rest]
    assert taken(lake, Position(3, 1), Position(3, 2), rows_max=4) == [(1, Position(3, 2), None), rest]
    assert taken(lake, Position(3, 1), Position(4), rows_max=1) == [(3, Position(4), 3)]
    assert taken(lake, Position(3, 1), rows_max=2) == [(2, Position(3, 3), None), (1, Position(4), 3)]


def test_a_source_that_is_older_than_what_was_taken(lake: Lake) -> None:
    with pytest.raises(SourceLost, match="older copy"):
        taken(lake, Position(9))


class TestOrder:
    def test_each_job_comes_after_those_it_reads(self) -> None:
        written: set[str] = set()
        everything = {table for job in catalog.JOBS for table in job.outputs}
        for job in catalog.JOBS:
            assert not set(job.inputs) & (everything - written)
            written |= set(job.outputs)

    def test_a_job_is_chosen_with_what_it_reads_and_made_anew_with_what_reads_it(self) -> None:
        assert [job.name for job in catalog.chosen(["rollups"])] == ["readings", "rollups"]
        assert {"readings", "rollups"} <= {job.name for job in catalog.made_of(["readings"])}
        assert [job.name for job in catalog.made_of(["rollups"])] == ["rollups"]
        with pytest.raises(KeyError):
            catalog.chosen(["dreams"])

    def test_two_jobs_never_write_one_table(self) -> None:
        (rollups,) = (job for job in catalog.JOBS if job.name == "rollups")
        with pytest.raises(ValueError, match="is written by"):
            catalog.graph([rollups, Job("another", "", rollups.steps)])
