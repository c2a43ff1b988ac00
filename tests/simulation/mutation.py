"""A deliberate breakage of the product, and whether a simulation finds it: the checker's own test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from tests.simulation.checker import Violation


class Mutation(NamedTuple):
    """One breakage: (owner, attribute, what takes its place), and what brings it to light."""

    name: str
    patches: Sequence[tuple[Any, str, Any]]
    kinds: Sequence[str] = ()
    """Of what may happen in a run; none: all."""
    faults: int = 4


class Simulation(NamedTuple):
    """One that mutations are put to."""

    judge: Callable[[Mutation, int], Sequence[Violation]]
    """What it says of a seed, in which the kinds of a mutation happen."""
    seeds_max: int
    """Within so many each has to be found."""

    def seeds_needed(self, mutation: Mutation) -> tuple[int, str] | None:
        """How many seeds it took to find, and what was seen first; None when it was not found."""
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
        """Raise AssertionError where it is not, or the same seeds find something in the product as it is."""
        found = self.seeds_needed(mutation)
        assert found is not None, f"{self.seeds_max} seeds do not show it"
        said = [str(violation) for seed in range(found[0]) for violation in self.judge(mutation, seed)]
        assert said == [], "the same seeds find something in the product as it is"

    def table(self, mutations: Sequence[Mutation]) -> None:
        """Print it for README.md."""
        for mutation in mutations:
            began = time.process_time()
            found = self.seeds_needed(mutation)
            seeds, text = found if found is not None else ("not found", "")
            print(f"| {mutation.name} | {seeds} | {text} | {time.process_time() - began:.1f} s |", flush=True)


@contextmanager
def _applied(mutation: Mutation) -> Iterator[None]:
    """While this lasts, the product is broken."""
    with ExitStack() as patches:
        for owner, attribute, replacement in mutation.patches:
            patches.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
