"""What every job is and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from spark.tables import Lake

Round = Literal["values", "fleet", "series"]
"""Jobs that are run one after the other when following, while those of other rounds go on: what each value comes to,
which people wait for; how the fleet is; and what costs by the series, however few values each has."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one job: rows it read that were new to it, rows it wrote. Both 0: there was nothing new.

    `notes`: what somebody has to know of it, such as a damaged file that was set aside.
    """

    rows_in: int
    rows_out: int
    notes: tuple[str, ...] = ()


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Several as one."""
    rows_in, rows_out = sum(each.rows_in for each in outcomes), sum(each.rows_out for each in outcomes)
    return Outcome(rows_in, rows_out, tuple(note for each in outcomes for note in each.notes))


class Step(Protocol):
    """One part of a job: what it reads, what it alone writes."""

    @property
    def name(self) -> str:
        """Its own, as it stands in notes."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """Tables it reads; the first is the one whose rows are counted as read."""
        ...

    @property
    def outputs(self) -> Sequence[str]:
        """Tables it alone writes."""
        ...

    def run(self, lake: Lake) -> Outcome:
        """Bring the outputs up to date with the inputs, however often it was stopped on the way."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A job by name: its steps, in order."""

    name: str
    about: str
    steps: tuple[Step, ...]
    round: Round = "fleet"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Tables it alone writes."""
        return tuple(name for step in self.steps for name in step.outputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tables of others that it reads."""
        own = set(self.outputs)
        return tuple(dict.fromkeys(name for step in self.steps for name in step.inputs if name not in own))

    def run(self, lake: Lake) -> Outcome:
        """Bring its tables up to date with its inputs, however often it was stopped."""
        outcomes = [step.run(lake) for step in self.steps]
        notes = tuple(note for outcome in outcomes for note in outcome.notes)
        return Outcome(outcomes[0].rows_in, sum(outcome.rows_out for outcome in outcomes), notes)
