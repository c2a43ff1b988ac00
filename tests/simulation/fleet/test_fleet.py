"""A fleet keeps its guarantees in every order of events that the seeds give: see README.md."""

from __future__ import annotations

import random

import pytest

from tests.simulation.fleet.mutations import MUTATIONS, SIMULATION
from tests.simulation.fleet.run import run
from tests.simulation.fleet.world import Options
from tests.simulation.mutation import Mutation

SEEDS = 16
"""Number of seeds in every test run; they are fixed, so that only a change makes a test fail."""
SEEDS_SLOW = 2_000
"""Number of new seeds in a long run."""


def failures(seeds: range) -> dict[str, list[str]]:
    """Describe the seeds that failed, each with the command that repeats it."""
    found = {seed: [str(violation) for violation in run(seed, Options())[1][:3]] for seed in seeds}
    return {f"python -m tests.simulation.fleet --seed {seed}": said for seed, said in found.items() if said}


def test_fleet_reaches_the_last_wanted_state_in_any_order() -> None:
    assert failures(range(SEEDS)) == {}


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_fleet_reaches_the_last_wanted_state_with_many_new_seeds() -> None:
    first = random.SystemRandom().randrange(1 << 40)
    assert failures(range(first, first + SEEDS_SLOW)) == {}


def test_a_seed_is_the_same_history_each_time() -> None:
    first, again, other = (run(seed, Options())[0].history.digest for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_deliberate_defect_is_found(mutation: Mutation) -> None:
    SIMULATION.require_found(mutation)
