"""Steps that follow a table's commits: each is one query of Structured Streaming, and takes each micro-batch once.

Spark writes down where a micro-batch ends before it begins (the checkpoint's offsets), and that it is done (its
commits). A batch that was interrupted is run again with the same rows. Each output takes it once: its commit carries
the id of the query and the number of the batch as Delta's transaction. No watermark drops late data:
the tables are the state.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark import conflict, lineage, remedy, session, verification
from spark.conflict import Overtaken
from spark.jobs.checkpoint import Checkpoint, SourceLost
from spark.jobs.outcome import Outcome
from spark.lake import FormatUnknown, Lake, SchemaMismatch
from spark.lineage import Pins, TableLineage, TableState
from spark.remedy import TableUnreadable
from spark.sink import Sink, Transaction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_GONE: Final = re.compile(
    r"DELTA_(LOG_FILE_NOT_FOUND|VERSION_NOT_CONTIGUOUS|FILE_NOT_FOUND|TRUNCATED|STREAMING)\w*|FILE_NOT_EXIST"
    r"|FileNotFoundException|failOnDataLoss"
)
"""Messages of Spark and Delta for a commit or a file of the source that was deleted."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch: rows that came to the source, and the tables that it is written to.

    `lake`    the lake through the session of the query.
    `outputs` the tables, in the order in which they are written.
    `lineage` of the outputs once they have this batch; None where it ends within a version of the source.
    """

    lake: Lake
    rows: DataFrame
    transaction: Transaction
    lineage: TableLineage | None
    sink: Sink
    outputs: tuple[str, ...]

    def append(self, output: str, rows: DataFrame, lineage: TableLineage | None = None) -> None:
        """Append `rows` to a table, once."""
        self.sink.append(output, rows, lineage or self._lineage_of(output))

    def fold(self, output: str, rows: DataFrame, how: Mapping[str, str]) -> DataFrame:
        """Fold partial aggregates into a table, once; see `Sink.fold`."""
        return self.sink.fold(output, rows, how, self._lineage_of(output))

    def rewrite(self, output: str, make: Callable[[DataFrame], DataFrame]) -> None:
        """Put what `make` makes of all rows of a small table in their place, once."""
        if self.sink.has_taken(output):
            return
        there = self.lake.open(output)
        rows = make(self.lake.read(output, there.version()))
        self.sink.overwrite(output, rows, read=there, lineage=self._lineage_of(output))

    def _lineage_of(self, output: str) -> TableLineage | None:
        """Return the lineage of an output; that of the last one has the versions of the others, too."""
        if output != self.outputs[-1] or self.lineage is None:
            return self.lineage
        others = {name: state for name in self.outputs[:-1] if (state := self.lake.state(name)) is not None}
        return TableLineage(self.lineage.sources, others)

    def pinned(self, output: str) -> Pins | None:
        """Return the pins of an earlier attempt at this batch, by which `output` was written; None where it has not
        been."""
        if not self.sink.has_taken(output):
            return None
        found = (commit.lineage.pins for commit in lineage.commits(self.lake.open(output)) if commit.lineage)
        batch = (self.transaction.application, self.transaction.version)
        return next((pins for pins in found if pins is not None and pins.batch == batch), None)


@dataclass(frozen=True, slots=True)
class StreamStep:
    """A step that follows `source`.

    `outputs`   tables it alone writes. Each batch writes the last one, if only to say how far it is; of the others
                those it has something for, and before that one.
    `revision`  counts changes of the transform that change results; a new one rebuilds the outputs.
    `take`      called with each batch.
    `beside`    further tables that the outputs agree with: where one is created again, the outputs are rebuilt.
    """

    name: str
    source: str
    outputs: tuple[str, ...]
    revision: int
    take: Callable[[MicroBatch], None]
    beside: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tables it reads."""
        return (self.source,)

    def run(self, lake: Lake) -> Outcome:
        """Take every commit of the source that was not taken yet, then return."""
        source = lake.state(self.source)
        if source is None:
            return Outcome(0, 0)
        checkpoint = self._checkpoint(lake, source)
        before = self._taken(lake, source, checkpoint)
        lake.check_entries(self.source, before.version if before is not None else None)
        if before is not None and lake.is_unchanged(self.source, before):
            return Outcome(0, 0)
        run = _Run(self, lake, checkpoint)
        run.wait()
        rows_in = lake.rows_since(self.source, before.version if before is not None else None)
        return Outcome(rows_in, run.rows_written)

    def forget(self, lake: Lake) -> None:
        """Empty the outputs; the next run rebuilds them from the start."""
        Checkpoint(lake.place, self.name, ()).clear()
        for name in self.outputs:
            lake.recreate(name)

    def _checkpoint(self, lake: Lake, source: TableState) -> Checkpoint:
        """Return the checkpoint between source and outputs; without one the outputs are emptied."""
        outputs = {name: lake.ensure(name) for name in self.outputs}
        checkpoint = self._of(lake, source, outputs)
        if checkpoint.is_started():
            return checkpoint
        checkpoint.clear()
        outputs = {name: state if state.version == 0 else lake.recreate(name) for name, state in outputs.items()}
        return self._of(lake, source, outputs)

    def _of(self, lake: Lake, source: TableState, outputs: Mapping[str, TableState]) -> Checkpoint:
        beside = (lake.state(name) for name in self.beside)
        ids = (source.id, *(state.id if state is not None else "-" for state in beside))
        return Checkpoint(lake.place, self.name, (str(self.revision), *ids, *(each.id for each in outputs.values())))

    def _taken(self, lake: Lake, source: TableState, checkpoint: Checkpoint) -> TableState | None:
        """Return the state of the source that the outputs have whole; None where that is not known. Raises
        `SourceLost` where an output or the source is an older copy."""
        if not checkpoint.is_started():
            return None
        last, output = checkpoint.last_batch(), self.outputs[-1]
        found = lake.transaction_version(output, checkpoint.query_id())
        applied = -1 if found is None else found
        if applied not in (last, last + 1) or (applied > last and not checkpoint.has_begun(applied)):
            raise SourceLost(
                f"table {output} has batch {applied} of its job, and the progress is {last}: one of the two is an "
                "older copy. Rebuild the tables of the job: `waypost analytics rebuild`"
            )
        made_of = lake.lineage(output)
        for name, state in (made_of.beside if made_of is not None else {}).items():
            if (lake.version(name) or 0) < state.version:
                raise SourceLost(
                    f"table {name} is an older copy: {output} was written after it. Rebuild the tables of the job: "
                    "`waypost analytics rebuild`"
                )
        before = made_of.sources.get(self.source) if made_of is not None else None
        if before is not None and before.version > source.version:
            raise SourceLost(
                f"table {self.source} is at version {source.version}, but the job has taken version {before.version}: "
                "it is an older copy. Rebuild the tables of the job: `waypost analytics rebuild`"
            )
        return before


class _Run:
    """One start of a step's query, up to what is in the source now."""

    def __init__(self, step: StreamStep, lake: Lake, checkpoint: Checkpoint) -> None:
        self._step = step
        self._lake = lake
        self._checkpoint = checkpoint
        self._error: Exception | None = None
        self.rows_written = 0

    def wait(self) -> None:
        """Run the query to its end. Raises what a batch raised, and `SourceLost`, `TableUnreadable`."""
        try:
            writer = self._lake.follow(self._step.source).writeStream.queryName(self._step.name)
            writer = writer.option("checkpointLocation", self._checkpoint.uri).trigger(availableNow=True)
            writer.foreachBatch(self._take).start().awaitTermination()
        except (FormatUnknown, SchemaMismatch):
            raise
        except Exception as error:  # Spark's own and Java's have no class in common
            raise self._explained(self._error or error) from error

    def _take(self, rows: DataFrame, number: int) -> None:
        session.fit_batch(rows.sparkSession)
        lake = self._lake.using(rows.sparkSession)
        transaction = Transaction(self._checkpoint.query_id(), number)
        made_of = self._lineage(lake, number)
        sink = Sink(lake, transaction, made_of)
        try:
            self._step.take(MicroBatch(lake, rows, transaction, made_of, sink, self._step.outputs))
        except Exception as error:
            self._error = error
            raise
        self.rows_written += sink.rows_written

    def _lineage(self, lake: Lake, number: int) -> TableLineage | None:
        """Return the source as the batch leaves it, and the sources of that."""
        version = self._checkpoint.end(number)
        if version is None:
            return None
        source = lake.dated_state(self._step.source, version)
        before = lake.lineage(self._step.source, version)
        return TableLineage({self._step.source: source, **(before.sources if before is not None else {})})

    def _explained(self, error: Exception) -> Exception:
        """Return what to raise for an error of Spark while it read the source, and any other as it is."""
        name, text = self._step.source, str(error)
        if conflict.is_conflict(error):  # of another query on the same checkpoint, too
            return Overtaken(self._step.outputs[-1])
        if self._error is not None and f"/{name}/" not in text:
            return error
        for checked in verification.verified(self._lake.place, [name]):
            if checked.failure is not None:
                return TableUnreadable(name, checked.failure)
            if checked.damaged:
                return TableUnreadable(name, f"{checked.wrong[0]}. {remedy.of_files(name)}")
        if _GONE.search(text):
            return SourceLost(
                f"commits of table {name} are gone: its log was cleaned, or it was vacuumed, before the job took them. "
                "Rebuild the tables of the job: `waypost analytics rebuild`"
            )
        return error
