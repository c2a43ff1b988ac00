"""What every job is and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from spark.lake import Lake

Rhythm = Literal["values", "messages", "hourly"]
"""Pace of a job when following: values every few seconds, as people wait for them; messages and anomalies every minute;
every hour what hardly changes within one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one job: rows it read that were new to it, rows it wrote. Both 0: there was nothing new."""

    rows_in: int
    rows_out: int


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Return several as one."""
    return Outcome(sum(each.rows_in for each in outcomes), sum(each.rows_out for each in outcomes))


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

    def forget(self, lake: Lake) -> None:
        """Empty the outputs; the next run rebuilds them from the start."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A job by name: its steps, in order."""

    name: str
    about: str
    steps: tuple[Step, ...]
    rhythm: Rhythm = "messages"

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
        return Outcome(outcomes[0].rows_in, sum(outcome.rows_out for outcome in outcomes))
