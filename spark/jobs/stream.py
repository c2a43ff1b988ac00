"""Steps that follow a table's commits: each is one query of Structured Streaming that processes each micro-batch once.

Spark records the end of a micro-batch before it begins (the checkpoint's offsets), and its completion (its commits). An
interrupted batch is run again with the same rows. Each output accepts it once: its commit carries the id of the query
and the number of the batch as Delta's transaction. No watermark drops late data: the tables are the state.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark import conflict, lineage, session, table_errors, verification
from spark.conflict import ConcurrentWrite
from spark.jobs.checkpoint import Checkpoint, SourceLost
from spark.jobs.job import JobResult
from spark.lake import FormatUnknown, SchemaMismatch, SparkLake
from spark.lineage import Pins, TableLineage, TableState
from spark.sink import BatchTransaction, Sink
from spark.table_errors import TableUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_GONE: Final = re.compile(
    r"DELTA_(LOG_FILE_NOT_FOUND|VERSION_NOT_CONTIGUOUS|FILE_NOT_FOUND|TRUNCATED|STREAMING)\w*|FILE_NOT_EXIST"
    r"|FileNotFoundException|failOnDataLoss"
)
"""Messages of Spark and Delta for a deleted commit or file of the source."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Micro-batch: new rows of the source, and the tables that they are written to.

    `lake`    lake through the session of the query.
    `outputs` tables, in the order in which they are written.
    `lineage` of the outputs with this batch; None if it ends within a version of the source.
    """

    lake: SparkLake
    rows: DataFrame
    transaction: BatchTransaction
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
        """Replace all rows of a small table by what `make` computes from them, once."""
        if self.sink.has_batch(output):
            return
        table = self.lake.open(output)
        rows = make(self.lake.read(output, table.version()))
        self.sink.overwrite(output, rows, read=table, lineage=self._lineage_of(output))

    def _lineage_of(self, output: str) -> TableLineage | None:
        """Return the lineage of an output; that of the last one has the versions of the others, too."""
        if output != self.outputs[-1] or self.lineage is None:
            return self.lineage
        others = {name: state for name in self.outputs[:-1] if (state := self.lake.state(name)) is not None}
        return TableLineage(self.lineage.sources, others)

    def find_pins(self, output: str) -> Pins | None:
        """Return the pins of an earlier attempt that wrote `output`; None if it has not."""
        if not self.sink.has_batch(output):
            return None
        found = (commit.lineage.pins for commit in lineage.commits(self.lake.open(output)) if commit.lineage)
        batch = (self.transaction.application, self.transaction.version)
        return next((pins for pins in found if pins is not None and pins.batch == batch), None)


@dataclass(frozen=True, slots=True)
class StreamStep:
    """Step that follows `source`.

    `outputs`    tables that only it writes. Each batch writes the last one, if only to record its progress; of the
                 others those that it has rows for, before.
    `revision`   counts changes of the transform that change results; a new one rebuilds the outputs.
    `process`    called with each batch.
    `companions` further tables that the outputs depend on: if one is created again, the outputs are rebuilt.
    """

    name: str
    source: str
    outputs: tuple[str, ...]
    revision: int
    process: Callable[[MicroBatch], None]
    companions: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tables that it reads."""
        return (self.source,)

    def run(self, lake: SparkLake) -> JobResult:
        """Process every new commit of the source, then return."""
        source = lake.state(self.source)
        if source is None:
            return JobResult(0, 0)
        checkpoint = self._checkpoint(lake, source)
        before = self._find_progress(lake, source, checkpoint)
        lake.check_entries(self.source, before.version if before is not None else None)
        if before is not None and lake.is_unchanged(self.source, before):
            return JobResult(0, 0)
        run = _Run(self, lake, checkpoint)
        run.wait()
        rows_in = lake.rows_since(self.source, before.version if before is not None else None)
        return JobResult(rows_in, run.rows_written)

    def forget(self, lake: SparkLake) -> None:
        """Empty the outputs; the next run rebuilds them from scratch."""
        Checkpoint(lake.place, self.name, ()).clear()
        for name in self.outputs:
            lake.recreate(name)

    def _checkpoint(self, lake: SparkLake, source: TableState) -> Checkpoint:
        """Return the checkpoint between source and outputs; without one, empty the outputs."""
        outputs = {name: lake.ensure(name) for name in self.outputs}
        checkpoint = self._open_checkpoint(lake, source, outputs)
        if checkpoint.is_started():
            return checkpoint
        checkpoint.clear()
        outputs = {name: state if state.version == 0 else lake.recreate(name) for name, state in outputs.items()}
        return self._open_checkpoint(lake, source, outputs)

    def _open_checkpoint(self, lake: SparkLake, source: TableState, outputs: Mapping[str, TableState]) -> Checkpoint:
        companions = (lake.state(name) for name in self.companions)
        ids = (source.id, *(state.id if state is not None else "-" for state in companions))
        return Checkpoint(lake.place, self.name, (str(self.revision), *ids, *(each.id for each in outputs.values())))

    def _find_progress(self, lake: SparkLake, source: TableState, checkpoint: Checkpoint) -> TableState | None:
        """Return the state of the source that the outputs contain completely; None if that is unknown.

        Raises `SourceLost` if an output or the source is an older copy.
        """
        if not checkpoint.is_started():
            return None
        last, output = checkpoint.last_batch(), self.outputs[-1]
        found = lake.transaction_version(output, checkpoint.query_id())
        applied = -1 if found is None else found
        if applied not in (last, last + 1) or (applied > last and not checkpoint.is_planned(applied)):
            raise SourceLost(
                f"table {output} has batch {applied} of its job, and the progress is {last}: one of the two is an "
                "older copy. Rebuild the tables of the job: `waypost lake rebuild`"
            )
        made_of = lake.lineage(output)
        for name, state in (made_of.siblings if made_of is not None else {}).items():
            if (lake.version(name) or 0) < state.version:
                raise SourceLost(
                    f"table {name} is an older copy: {output} was written after it. Rebuild the tables of the job: "
                    "`waypost lake rebuild`"
                )
        before = made_of.sources.get(self.source) if made_of is not None else None
        if before is not None and before.version > source.version:
            raise SourceLost(
                f"table {self.source} is at version {source.version}, but the job has taken version {before.version}: "
                "it is an older copy. Rebuild the tables of the job: `waypost lake rebuild`"
            )
        return before


class _Run:
    """One start of a step's query, up to the current end of the source."""

    def __init__(self, step: StreamStep, lake: SparkLake, checkpoint: Checkpoint) -> None:
        self._step = step
        self._lake = lake
        self._checkpoint = checkpoint
        self._error: Exception | None = None
        self.rows_written = 0

    def wait(self) -> None:
        """Run the query to its end. Raises what a batch raised, and `SourceLost` and `TableUnreadable`."""
        try:
            writer = self._lake.follow(self._step.source).writeStream.queryName(self._step.name)
            writer = writer.option("checkpointLocation", self._checkpoint.uri).trigger(availableNow=True)
            writer.foreachBatch(self._process).start().awaitTermination()
        except (FormatUnknown, SchemaMismatch):
            raise
        except Exception as error:  # Spark's own and Java's have no class in common
            raise self._explain(self._error or error) from error

    def _process(self, rows: DataFrame, number: int) -> None:
        session.fit_batch(rows.sparkSession)
        lake = self._lake.with_session(rows.sparkSession)
        transaction = BatchTransaction(self._checkpoint.query_id(), number)
        made_of = self._lineage(lake, number)
        sink = Sink(lake, transaction, made_of)
        try:
            self._step.process(MicroBatch(lake, rows, transaction, made_of, sink, self._step.outputs))
        except Exception as error:
            self._error = error
            raise
        self.rows_written += sink.rows_written

    def _lineage(self, lake: SparkLake, number: int) -> TableLineage | None:
        """Return the state of the source after the batch, and its sources."""
        version = self._checkpoint.end(number)
        if version is None:
            return None
        source = lake.dated_state(self._step.source, version)
        before = lake.lineage(self._step.source, version)
        return TableLineage({self._step.source: source, **(before.sources if before is not None else {})})

    def _explain(self, error: Exception) -> Exception:
        """Return the error to raise for an error of Spark while it read the source; others are returned unchanged."""
        name, text = self._step.source, str(error)
        if conflict.is_conflict(error):  # of another query on the same checkpoint, too
            return ConcurrentWrite(self._step.outputs[-1])
        if self._error is not None and f"/{name}/" not in text:
            return error
        for checked in verification.verify(self._lake.place, [name]):
            if checked.failure is not None:
                return TableUnreadable(name, checked.failure)
            if checked.damaged:
                return TableUnreadable(name, f"{checked.problems[0]}. {table_errors.advise_for_files(name)}")
        if _GONE.search(text):
            return SourceLost(
                f"commits of table {name} are gone: its log was cleaned, or it was vacuumed, before the job took them. "
                "Rebuild the tables of the job: `waypost lake rebuild`"
            )
        return error
