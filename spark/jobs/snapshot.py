"""Steps that describe small tables as they are: computed again, and put in place of the last description.

For inputs of a size that does not grow with what has landed. The commit of a description names the versions of the
inputs (its lineage): run again with nothing new, the step does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark.jobs.outcome import Outcome
from spark.lake import Lake
from spark.lineage import TableLineage, TableState
from spark.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SnapshotStep:
    """A step over whole tables.

    `inputs`    tables it reads; the first is the one whose rows are counted as read.
    `outputs`   tables it alone writes.
    `revision`  counts changes of the transform that change results.
    `frames`    the outputs' rows, by table, not yet computed.
    `replaces`  which partition of an output they take the place of, as column and value; all of it unless named.
    `prepare`   what is done to the inputs before, where there is something new.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    revision: int
    frames: Callable[[Lake], Mapping[str, DataFrame]]
    replaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    prepare: Callable[[Lake], None] = lambda _: None

    def run(self, lake: Lake) -> Outcome:
        """Bring the outputs up to date with the inputs."""
        if lake.state(self.inputs[0]) is None:
            return Outcome(0, 0)
        for name in self.outputs:
            lake.ensure(name)
        if all(self._is_current(lake, name) for name in self.outputs):
            return Outcome(0, 0)
        self.prepare(lake)
        # First the versions for the commit, then the rows: what another writer adds in between is taken again by the
        # next run, and never believed to be there.
        made_of = self._lineage(lake)
        frames = self.frames(lake)
        sink = Sink(lake, None, made_of)
        for name in self.outputs:
            sink.overwrite(name, frames[name], self.replaces.get(name, "all"))
        return Outcome(lake.rows(self.inputs[0]), sink.rows_written)

    def forget(self, lake: Lake) -> None:
        """Empty the outputs; the next run rebuilds them."""
        for name in self.outputs:
            lake.recreate(name)

    def made_of(self, lake: Lake, output: str) -> TableLineage | None:
        """Return the lineage of an output; None where it is not of this step as it computes now."""
        made_of = lake.lineage(output)
        return made_of if made_of is not None and made_of.made_by == self._signature else None

    @property
    def _signature(self) -> str:
        return f"{self.name}@{self.revision}"

    def _is_current(self, lake: Lake, output: str) -> bool:
        made_of = self.made_of(lake, output)
        return made_of is not None and all(
            lake.is_unchanged(name, made_of.sources[name]) if name in made_of.sources else lake.state(name) is None
            for name in self.inputs
        )

    def _lineage(self, lake: Lake) -> TableLineage:
        """Return the inputs as they are, and their sources."""
        there: dict[str, TableState] = {}
        sources: dict[str, TableState] = {}
        for name in reversed(self.inputs):  # the first counts where two have other versions of one source
            state = lake.state(name)
            if state is not None:
                there[name] = lake.dated_state(name, state.version)
                before = lake.lineage(name, state.version)
                sources |= before.sources if before is not None else {}
        return TableLineage(sources | there, made_by=self._signature)
