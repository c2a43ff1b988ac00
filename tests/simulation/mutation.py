"""Deliberate defect of the product, and whether a simulation finds it: this tests the checker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from tests.simulation.checker import Violation


class Mutation(NamedTuple):
    """Defect: (owner, attribute, replacement), and the conditions that reveal it."""

    name: str
    patches: Sequence[tuple[Any, str, Any]]
    kinds: Sequence[str] = ()
    """Kinds of faults in the run; an empty sequence means all."""
    faults: int = 4


class Simulation(NamedTuple):
    """Simulation that is run with mutations."""

    judge: Callable[[Mutation, int], Sequence[Violation]]
    """Judge a seed in which the faults of the mutation occur."""
    seeds_max: int
    """Limit of seeds within which each mutation has to be found."""

    def seeds_needed(self, mutation: Mutation) -> tuple[int, str] | None:
        """Return the number of seeds needed and the first violation, or None when no seed finds the defect."""
        with _applied(mutation):
            for seed in range(self.seeds_max):
                try:
                    violations = self.judge(mutation, seed)
                except RuntimeError as error:
                    return seed + 1, str(error)
                if violations:
                    return seed + 1, violations[0].text
        return None

    def require_found(self, mutation: Mutation) -> None:
        """Raise AssertionError if no seed finds the defect, or if that seed finds a violation in the unchanged product.

        The seeds before it found nothing even with the defect.
        """
        found = self.seeds_needed(mutation)
        assert found is not None, f"{self.seeds_max} seeds do not show it"
        said = [str(violation) for violation in self.judge(mutation, found[0] - 1)]
        assert said == [], "the same seed finds something in the product as it is"

    def table(self, mutations: Sequence[Mutation]) -> None:
        """Print the table for README.md."""
        for mutation in mutations:
            began = time.process_time()
            found = self.seeds_needed(mutation)
            seeds, text = found if found is not None else ("not found", "")
            print(f"| {mutation.name} | {seeds} | {text} | {time.process_time() - began:.1f} s |", flush=True)


@contextmanager
def _applied(mutation: Mutation) -> Iterator[None]:
    """Apply the mutation to the product in this context."""
    with ExitStack() as patches:
        for owner, attribute, replacement in mutation.patches:
            patches.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
