"""Stores of the contract: on disk and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.store.memory_log import made_rig
from tests.contract.store.rig import Rig


@pytest.fixture(params=["sqlite", "memory"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Yield each kind of store with small limits of memory; modules with other limits have their own fixture."""
    made = made_rig(request.param, tmp_path)
    yield made
    made.store.close()
