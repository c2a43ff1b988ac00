"""What every job is and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark.tables import Lake


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one job: rows it read that were new to it, rows it wrote. Both 0: there was nothing new."""

    rows_in: int
    rows_out: int


@dataclass(frozen=True, slots=True)
class Job:
    """A job by name: running it once brings its tables up to date with its inputs, however often it was stopped."""

    name: str
    about: str
    run: Callable[[Lake], Outcome]
