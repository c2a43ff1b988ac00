"""Deliberate defect of the product, and whether a simulation finds it: this tests the checker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    seed: int = 0
    """Seed that found it once, which is tried first. Any other one may find it, too."""


class Simulation(NamedTuple):
    """Simulation that is run with mutations."""

    judge: Callable[[Mutation, int], Sequence[Violation]]
    """Judge a seed in which the faults of the mutation occur."""
    seeds_max: int
    """Limit of seeds within which each mutation has to be found."""

    def find(self, mutation: Mutation, seeds: Iterable[int]) -> tuple[int, str] | None:
        """Return the first seed that finds the defect, with the first violation; None when no seed does."""
        with _applied(mutation):
            for seed in seeds:
                try:
                    violations = self.judge(mutation, seed)
                except RuntimeError as error:
                    return seed, str(error)
                if violations:
                    return seed, violations[0].text
        return None

    def require_found(self, mutation: Mutation) -> None:
        """Raise AssertionError if no seed finds the defect, or if that seed finds a violation in the unchanged product.

        Seeds that were tried before it found nothing even with the defect.
        """
        found = self.find(mutation, [mutation.seed, *range(self.seeds_max)])
        assert found is not None, f"{self.seeds_max} seeds do not show it"
        said = [str(violation) for violation in self.judge(mutation, found[0])]
        assert said == [], "the same seed finds something in the product as it is"

    def table(self, mutations: Sequence[Mutation]) -> None:
        """Print the table for README.md."""
        for mutation in mutations:
            began = time.process_time()
            found = self.find(mutation, range(self.seeds_max))
            seeds, text = (found[0] + 1, found[1]) if found is not None else ("not found", "")
            print(f"| {mutation.name} | {seeds} | {text} | {time.process_time() - began:.1f} s |", flush=True)


@contextmanager
def _applied(mutation: Mutation) -> Iterator[None]:
    """Apply the mutation to the product in this context."""
    with ExitStack() as patches:
        for owner, attribute, replacement in mutation.patches:
            patches.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
