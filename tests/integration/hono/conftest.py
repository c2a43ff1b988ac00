"""Fixtures: a gateway with the device API for each module, and an application connected to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hono import Application, site
from tests.support.processes import Waypost


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with site(tmp_path_factory.mktemp("hono")) as running:
        yield running


@pytest.fixture
def application(gateway: Waypost) -> Iterator[Application]:
    with Application(gateway) as made:
        yield made
