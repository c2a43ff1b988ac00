"""Gateways of integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes import Waypost, edge


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a development gateway that the tests of a module share. Modules with resources of their own override it."""
    with edge(tmp_path_factory.mktemp("gateway"), "gw") as running:
        yield running
