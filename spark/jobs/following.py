"""Steps that follow a table's commits: each commit is taken once, however often the job dies on the way.

Progress is in the outputs themselves (`spark.jobs.progress`): every write carries a transaction marker that names the
job, its revision, and the ids of the source and of all outputs. When the transform changed, the source was made anew or
an output was lost or made anew, no output knows the marker; the outputs are made anew then, all of them, wherever that
was stopped the last time, and everything is taken from the start. As that gives the outputs new ids, jobs downstream
start over by the same rule.

What the outputs are made of stands in their commits (`spark.provenance`): the source, at the version a batch ends with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark import conflict, session
from spark.delta_log import File
from spark.jobs.damage import Damage
from spark.jobs.outcome import Outcome
from spark.jobs.progress import Position, Span, spans
from spark.provenance import Provenance, State
from spark.tables import Lake
from spark.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Batch:
    """Commits of the source that were not taken yet, and the way to write what comes of them.

    `source`   the table, `files` what they added to it; `count` rows of them, as the log counts or about.
    `made_of`  what the outputs are made of once they have taken this; None when that is no version of the source.
    `markers`  of each output: the transaction this is, and where it begins. Every way to write raises `Overtaken` where
               another pass has taken some of it since, or has made the output anew.
    """

    lake: Lake
    source: str
    files: Sequence[File]
    count: int
    made_of: Provenance | None
    markers: Mapping[str, Transaction]

    @property
    def rows(self) -> DataFrame:
        """What the commits added."""
        return self.lake.rows_of(self.source, self.files)

    def aside(self, rows: DataFrame) -> DataFrame:
        """`rows`, made in so few tasks at once that a job people wait for always finds a place for its own."""
        at_once = session.aside(self.lake.session)
        return rows if at_once is None else rows.coalesce(at_once)

    def has_taken(self, output: str) -> bool:
        """Whether a table has this batch already, as of an attempt that died before the last output had it. Raises
        `Overtaken` where another pass has written a part of it, or has made the table anew."""
        marker = self.markers[output]
        return not marker.is_due(output, self.lake.there(output, marker.application))

    def append(self, output: str, rows: DataFrame, made_of: Provenance | None = None) -> None:
        """Append `rows` to a table, once. `made_of`: what the commit says instead of this batch's."""
        with self._once(output):
            self.lake.append(output, rows, self.markers[output], made_of if made_of is not None else self.made_of)

    def fold(self, output: str, rows: DataFrame, how: Mapping[str, str]) -> DataFrame:
        """Fold partial aggregates of this batch into a table, once, and return them; see `Lake.fold`."""
        partials = [rows]  # as another pass has folded them, where it was at it at the same moment
        with self._once(output):
            partials.append(self.lake.fold(output, rows, how, self.markers[output], self.made_of))
        return partials[-1]

    def overwrite(self, output: str, rows: DataFrame) -> None:
        """Put `rows` in place of all of a table, once."""
        with self._once(output):
            self.lake.overwrite(output, rows, self.markers[output], self.made_of)

    @contextmanager
    def _once(self, output: str) -> Iterator[None]:
        """Around what writes this batch to a table. Raises `Overtaken` as `has_taken` does."""
        self.has_taken(output)  # before it is computed what is of no use
        with conflict.settled(output, lambda: self.has_taken(output)):
            yield


@dataclass(frozen=True, slots=True)
class Following:
    """A step that follows `source`.

    `outputs`     tables it alone writes. Each batch writes the last one, if only to say how far it is; of the others
                  those it has something for, and before that one.
    `revision`    counts changes of the transform that change results; a new one rebuilds the outputs.
    `take`        called with each batch.
    `beside`      other tables that the outputs agree with: made anew, they have the outputs made anew.
    `few_rows`    rows of a batch up to which one task a stage does.
    `batch_rows`  rows of a batch of commits at most, where not as of others.
    """

    name: str
    source: str
    outputs: tuple[str, ...]
    revision: int
    take: Callable[[Batch], None]
    beside: tuple[str, ...] = ()
    few_rows: int = session.FEW_ROWS_MAX
    batch_rows: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tables it reads."""
        return (self.source,)

    def run(self, lake: Lake) -> Outcome:
        """Take every commit of the source that was not taken yet, then return."""
        source = lake.state(self.source)
        if source is None:
            return Outcome(0, 0)
        before = self._outputs(lake, source)
        application = self.application(lake, source, before)
        positions = self._positions(lake, application)
        begin, furthest = positions[self.outputs[-1]], max(filter(None, positions.values()), default=None)
        lake.check_readable(self.source, source.version)
        damage = Damage(lake, self.source, self.name)
        rows_in = 0
        ended = furthest if furthest != begin else None
        end = begin.marker() if begin is not None else -1
        for span in spans(lake, self.source, source, begin, ended, self.batch_rows):
            made_of = self._made_of(lake, source, span)
            taken, end = end, span.end.marker()
            markers = {name: Transaction(application, end, taken, state.id) for name, state in before.items()}
            lake.fit(few=span.rows <= self.few_rows)
            for files in damage.attempts(span):
                with damage.noticed(files):
                    self.take(Batch(lake, self.source, files, span.rows, made_of, markers))
                    rows_in += sum(file.rows or 0 for file in files)
        written = sum(lake.rows_written(name, state.version) for name, state in before.items())
        return Outcome(rows_in, written, damage.notes)

    def application(self, lake: Lake, source: State, outputs: Mapping[str, State]) -> str:
        """What the markers in the outputs are of: this step, as it computes now, between these very tables."""
        beside = (lake.state(name) for name in self.beside)
        there = (outputs[name].id for name in self.outputs)
        ids = (source.id, *(state.id if state is not None else "-" for state in beside), *there)
        return "/".join((f"{self.name}@{self.revision}", *ids))

    def _positions(self, lake: Lake, application: str) -> dict[str, Position | None]:
        markers = {name: lake.transaction_version(name, application) for name in self.outputs}
        return {name: Position.of(marker) if marker is not None else None for name, marker in markers.items()}

    def _outputs(self, lake: Lake, source: State) -> dict[str, State]:
        """The outputs; made anew when one is not there, or none of them is of this generation."""
        there = {name: lake.ensure(name) for name in self.outputs}
        if any(self._positions(lake, self.application(lake, source, there)).values()):
            return there
        return {name: state if state.version == 0 else lake.recreate(name) for name, state in there.items()}

    def _made_of(self, lake: Lake, now: State, span: Span) -> Provenance | None:
        """The source as the batch leaves it, and what that was made of."""
        if span.whole is None:
            return None
        source = now if span.whole == now.version else lake.state_at(self.source, span.whole)
        before = lake.provenance(self.source, source.version)
        return Provenance({self.source: source, **(before.sources if before is not None else {})})
