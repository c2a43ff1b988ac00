"""The simulation finds each deliberate defect."""

from __future__ import annotations

import pytest

from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS, SIMULATION


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_deliberate_defect_is_found(mutation: Mutation) -> None:
    SIMULATION.require_found(mutation)
