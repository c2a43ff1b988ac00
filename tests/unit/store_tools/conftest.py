"""Store that the commands of these tests work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores import Made, make


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a stopped store with known content."""
    return make(tmp_path / "data")
