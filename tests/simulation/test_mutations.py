"""Each deliberate breakage of the promise is found: what the simulation is worth."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, SEEDS_MAX, Mutation, clean, seeds_needed


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_breakage_is_found(mutation: Mutation) -> None:
    found = seeds_needed(mutation)
    assert found is not None, f"{SEEDS_MAX} seeds do not show it"
    seeds, _ = found
    assert clean(mutation, seeds) == [], "the same seeds find nothing in the product as it is"
