"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Waypost, edge


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    """Run a development gateway for each test, which may kill it."""
    with edge(tmp_path, "gw") as running:
        yield running
