"""Jobs that follow a table's commits: each commit is taken once, however often the job dies on the way.

Progress is Spark's checkpoint. What protects the output when a batch is run again is not the checkpoint but the output
itself: appends carry a transaction marker, replacements are pure functions of their input.

A checkpoint belongs to one *generation*: the transform's revision and the id of the source table. When the transform
changed, the source was made anew or the checkpoint was lost, the outputs are made anew too and everything is taken from
the start. As that gives the outputs new ids, jobs downstream start over by the same rule.

What the outputs are made of stands in their commits (`spark.provenance`): the source, at the version the batch ends
with. Spark writes that into the checkpoint before it runs the batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from spark.jobs.outcome import Outcome
from spark.provenance import Provenance, State
from spark.tables import Lake, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINTS = "_checkpoints"
"""Folder beside the tables; the underscore keeps it from looking like one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Commits of the source that were not taken yet.

    `rows`     what they added.
    `source`   the source as they leave it; None when the batch ends within a commit.
    `made_of`  what the outputs are made of once they have taken this; None when that is no version of the source.
    """

    job: str
    number: int
    rows: DataFrame
    source: State | None
    made_of: Provenance | None
    outputs: Mapping[str, State]

    def transaction(self, output: str) -> Transaction:
        """The marker of this batch in table `output`."""
        return Transaction(f"{self.job}@{self.outputs[output].id}", self.number)


@dataclass(frozen=True, slots=True)
class Following:
    """A job that follows `source`.

    `outputs`   tables it alone writes.
    `revision`  counts changes of the transform that change results; a new one rebuilds the outputs.
    `each`      called with the lake and each batch.
    """

    name: str
    source: str
    outputs: tuple[str, ...]
    revision: int
    each: Callable[[Lake, Batch], None]

    def run(self, lake: Lake) -> Outcome:
        """Take every commit of the source that was not taken yet, then return."""
        checkpoint = self._checkpoint(lake)
        if checkpoint is None:
            return Outcome(0, 0)
        before = {name: lake.ensure(name) for name in self.outputs}

        failures: list[Exception] = []

        def take(rows: DataFrame, number: int) -> None:
            try:
                version = _whole_version(checkpoint, number)
                source = lake.state_at(self.source, version) if version is not None else None
                self.each(lake, Batch(self.name, number, rows, source, self._made_of(lake, source), before))
            except Exception as error:
                failures.append(error)
                raise

        writer = lake.stream(self.source).writeStream.queryName(self.name).foreachBatch(take)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException:
            # What went wrong in a batch comes back wrapped in Java's words; it is raised as it was.
            if failures:
                raise failures[0] from None
            raise
        finally:
            query.stop()
        written = sum(lake.rows_written(name, state.version) for name, state in before.items())
        return Outcome(_rows_read(query), written)

    def _made_of(self, lake: Lake, source: State | None) -> Provenance | None:
        """The source, and what that was made of."""
        if source is None:
            return None
        before = lake.provenance(self.source, source.version)
        return Provenance({self.source: source, **(before.sources if before is not None else {})})

    def _checkpoint(self, lake: Lake) -> Path | None:
        """This generation's checkpoint, with outputs to go with it; None when the source is not there yet."""
        source = lake.state(self.source)
        if source is None:
            return None
        checkpoint = lake.root / CHECKPOINTS / self.name / f"{self.revision}-{source.id}"
        if not checkpoint.is_dir():
            # Outputs first: killed in between, the next run finds no checkpoint either and does it again.
            for name in self.outputs:
                state = lake.state(name)
                if state is not None and state.version > 0:
                    lake.recreate(name)
            checkpoint.mkdir(parents=True)
        return checkpoint


def _whole_version(checkpoint: Path, batch: int) -> int | None:
    """The last version of the source that is taken whole when `batch` is; None when the batch ends within one.

    The last line of the file is where Delta's source says the batch ends: before the first file (a negative index) of a
    version, or after some files of it or of the table as it was found at first.
    """
    end = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
    within = end["isStartingVersion"] or end["index"] >= 0
    return None if within else int(end["reservoirVersion"]) - 1


def _rows_read(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)
