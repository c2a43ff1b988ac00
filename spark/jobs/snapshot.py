"""Steps that describe small tables as they are: computed anew, and put in place of the last description.

For inputs of a size that does not grow with what has landed. A description is marked with what it describes, the
versions of its inputs: run again with nothing new, the step does nothing, and one that died between two outputs writes
only the second. The commit names the versions read, and what those were made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark import session
from spark.jobs.outcome import Outcome
from spark.provenance import Provenance, State, provenance_of
from spark.tables import Lake
from spark.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Snapshot:
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
        mark = self._mark(self._states(lake))
        before = {name: lake.ensure(name) for name in self.outputs}
        stale = [name for name in self.outputs if _older(lake.transaction_version(name, mark.application), mark)]
        if not stale or lake.state(self.inputs[0]) is None:
            return Outcome(0, 0)
        lake.fit(few=sum(map(lake.rows, self.inputs)) <= session.FEW_ROWS_MAX)
        self.prepare(lake)
        # First what the commit says, then what is read: another pass may write to an input meanwhile, and what it
        # adds is taken (again) by the next pass then, and never taken to be there.
        states = self._states(lake)
        mark, provenance = self._mark(states), _made_of(lake, states)
        frames = self.frames(lake)
        for name in stale:
            lake.overwrite(name, frames[name], mark, provenance, partition=self.replaces.get(name))
        written = sum(lake.rows_written(name, before[name].version) for name in stale)
        return Outcome(lake.rows(self.inputs[0]), written)

    def made_of(self, lake: Lake, output: str, there: State) -> Provenance | None:
        """What an output was made of that is at this state; None where it is not known to be of this step as it
        computes now."""
        entry = lake.last_change(output, there.version)
        made_of = provenance_of(entry) if entry is not None else None
        if entry is None or made_of is None:
            return None
        mark = self._mark({name: made_of.sources.get(name) for name in self.inputs})
        return made_of if entry.transactions.get(mark.application) == mark.version else None

    def _states(self, lake: Lake) -> dict[str, State | None]:
        return {name: lake.state(name) for name in self.inputs}

    def _mark(self, inputs: Mapping[str, State | None]) -> Transaction:
        """Ids of the inputs name the application, their versions added up are its version: it only ever rises."""
        states = inputs.values()
        ids = "|".join(state.id if state is not None else "-" for state in states)
        digest = hashlib.sha256(ids.encode()).hexdigest()[:16]
        version = sum(state.version + 1 for state in states if state is not None)
        return Transaction(f"{self.name}@{self.revision}-{digest}", version)


def _made_of(lake: Lake, inputs: Mapping[str, State | None]) -> Provenance:
    """Inputs at these states, and what those were made of."""
    there = {name: state for name, state in inputs.items() if state is not None}
    sources: dict[str, State] = {}
    for name in reversed(there):  # the first is what counts where two are made of other versions of a table
        before = lake.provenance(name, there[name].version)
        sources |= before.sources if before is not None else {}
    return Provenance(sources | there)


def _older(applied: int | None, mark: Transaction) -> bool:
    return applied is None or applied < mark.version
