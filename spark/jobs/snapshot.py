"""Steps that recompute small tables completely and replace the previous content.

They are for inputs with a size that does not grow with the landed data. The commit of an output names the versions of
the inputs (its lineage), so the step does nothing if nothing is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark.jobs.job import JobResult
from spark.lake import SparkLake
from spark.lineage import TableLineage, TableState
from spark.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SnapshotStep:
    """Step over whole tables.

    `inputs`    tables it reads; the rows of the first are counted.
    `outputs`   tables that only it writes.
    `revision`  counts changes of the transform that change results.
    `frames`    the rows of the outputs, by table, not yet computed.
    `replaces`  partition of an output to replace, as column and value; otherwise all of it.
    `prepare`   called with the lake before, if there is something new.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    revision: int
    frames: Callable[[SparkLake], Mapping[str, DataFrame]]
    replaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    prepare: Callable[[SparkLake], None] = lambda _: None

    def run(self, lake: SparkLake) -> JobResult:
        """Bring the outputs up to date with the inputs."""
        if lake.state(self.inputs[0]) is None:
            return JobResult(0, 0)
        for name in self.outputs:
            lake.ensure(name)
        if all(self._is_current(lake, name) for name in self.outputs):
            return JobResult(0, 0)
        self.prepare(lake)
        # First the versions for the commit, then the rows: what another writer adds in between is taken again by the
        # next run, and never believed to be there.
        made_of = self._lineage(lake)
        frames = self.frames(lake)
        sink = Sink(lake, None, made_of)
        for name in self.outputs:
            sink.overwrite(name, frames[name], self.replaces.get(name, "all"))
        return JobResult(lake.rows(self.inputs[0]), sink.rows_written)

    def forget(self, lake: SparkLake) -> None:
        """Empty the outputs; the next run rebuilds them."""
        for name in self.outputs:
            lake.recreate(name)

    def output_lineage(self, lake: SparkLake, output: str) -> TableLineage | None:
        """Return the lineage of an output; None unless this revision of the step wrote it."""
        output_lineage = lake.lineage(output)
        return output_lineage if output_lineage is not None and output_lineage.made_by == self._signature else None

    @property
    def _signature(self) -> str:
        return f"{self.name}@{self.revision}"

    def _is_current(self, lake: SparkLake, output: str) -> bool:
        made_of = self.output_lineage(lake, output)
        return made_of is not None and all(
            lake.is_unchanged(name, made_of.sources[name]) if name in made_of.sources else lake.state(name) is None
            for name in self.inputs
        )

    def _lineage(self, lake: SparkLake) -> TableLineage:
        """Return the current state of the inputs, and their sources."""
        states: dict[str, TableState] = {}
        sources: dict[str, TableState] = {}
        for name in reversed(self.inputs):  # the first counts where two have other versions of one source
            state = lake.state(name)
            if state is not None:
                states[name] = lake.dated_state(name, state.version)
                before = lake.lineage(name, state.version)
                sources |= before.sources if before is not None else {}
        return TableLineage(sources | states, made_by=self._signature)
