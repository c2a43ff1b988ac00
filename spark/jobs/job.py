"""Job, its steps, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from spark.lake import SparkLake

Rhythm = Literal["values", "messages", "hourly"]
"""Pace of a job when following: values every few seconds, messages and anomalies every minute, slow changes every hour.
"""


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a run of a job: new rows that it read, rows that it wrote. Both 0: there was nothing new."""

    rows_in: int
    rows_out: int


def add_results(outcomes: Sequence[JobResult]) -> JobResult:
    """Return the sum of several results."""
    return JobResult(sum(each.rows_in for each in outcomes), sum(each.rows_out for each in outcomes))


class JobStep(Protocol):
    """One part of a job: the tables it reads, and those that only it writes."""

    @property
    def name(self) -> str:
        """Name of the step in records."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """Tables that it reads; the rows of the first are counted."""
        ...

    @property
    def outputs(self) -> Sequence[str]:
        """Tables that only it writes."""
        ...

    def run(self, lake: SparkLake) -> JobResult:
        """Bring the outputs up to date with the inputs, also after interruptions."""
        ...

    def forget(self, lake: SparkLake) -> None:
        """Empty the outputs; the next run rebuilds them from scratch."""
        ...


@dataclass(frozen=True, slots=True)
class AnalyticsJob:
    """Job with its steps, in order."""

    name: str
    about: str
    steps: tuple[JobStep, ...]
    rhythm: Rhythm = "messages"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Tables that only it writes."""
        return tuple(name for step in self.steps for name in step.outputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tables of other jobs that it reads."""
        own = set(self.outputs)
        return tuple(dict.fromkeys(name for step in self.steps for name in step.inputs if name not in own))

    def run(self, lake: SparkLake) -> JobResult:
        """Bring its tables up to date with its inputs, also after interruptions."""
        outcomes = [step.run(lake) for step in self.steps]
        return JobResult(outcomes[0].rows_in, sum(outcome.rows_out for outcome in outcomes))
