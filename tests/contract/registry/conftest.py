"""Databases of the contract's registries: a SQLite file, a schema of PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cloud.hub.registry.location import parse, sqlite_url
from cloud.hub.registry.registry import Registry

HERE, THERE = "a" * 32, "b" * 32
"""Ids of two writers."""


class Place:
    """One database, with its registries and independent access."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self._opened: list[Registry] = []

    def open(self, writer: str = HERE, *, clock: Callable[[], float] = time.monotonic) -> Registry:
        """Open it as one hub; it closes at the end of the test at the latest. `clock`: monotonic seconds."""
        registry = Registry(self.url, writer, clock=clock)
        self._opened.append(registry)
        return registry

    def execute(self, text: str, **values: Any) -> list[Any]:
        """Execute a statement over an independent connection."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as tx:
            result = tx.execute(sa.text(text), values)
            return [tuple(row) for row in result] if result.returns_rows else []

    def close(self) -> None:
        for registry in self._opened:
            registry.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """Yield a function that creates empty databases."""
    made: list[Place] = []

    def make() -> Place:
        if request.param == "sqlite":
            url = sqlite_url(tmp_path / f"registry{len(made)}.db")
        else:
            server = request.getfixturevalue("postgres")
            url = parse(server.url(server.schema()))
        made.append(Place(url))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def place(make_place: Callable[[], Place]) -> Place:
    """Return an empty database."""
    return make_place()
