"""Each deliberate breakage of the promise is found: what the simulation is worth."""

from __future__ import annotations

import pytest

from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS, SIMULATION


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_breakage_is_found(mutation: Mutation) -> None:
    SIMULATION.require_found(mutation)
