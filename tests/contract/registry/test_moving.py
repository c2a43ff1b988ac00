"""Moves of a registry to another database."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest
import sqlalchemy as sa

from cloud.hub.registry import moving
from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import RegistryForeign, RegistryLeft, RegistryRefused, WriterReplaced
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.moving import move_registry
from tests.contract.registry.conftest import HERE, Place
from tests.contract.registry.delta_landings import land, landed
from tests.contract.registry.landings import TEMPERATURE

T = TypeVar("T")


class Stopped(Exception):
    """The program ended here."""


@pytest.fixture
def source(tmp_path: Path) -> Place:
    """Return a registry in SQLite with marks."""
    source = Place(sqlite_url(tmp_path / "source.db"))
    registry = source.open()
    land(registry, tmp_path / "lake", (TEMPERATURE, 0, 9))
    registry.close()
    return source


def test_registry_moves_with_its_marks(source: Place, make_place: Callable[[], Place], tmp_path: Path) -> None:
    target, running = make_place(), source.open()
    counts = move_registry(source.url, target.url)
    assert (counts["gateways"], counts["commits"]) == (1, 1)
    moved = target.open()
    land(moved, tmp_path / "lake", (TEMPERATURE, 5, 14))
    assert landed(tmp_path / "lake", "gw1") == list(range(15))
    assert not moved.commits.is_older_copy
    with pytest.raises(WriterReplaced):
        running.commits.prepare("telemetry", [], 0)
    running.close()
    with pytest.raises(RegistryLeft):
        source.open()
    with pytest.raises(RegistryLeft):
        move_registry(source.url, make_place().url)


def test_registry_moves_back(source: Place, make_place: Callable[[], Place], tmp_path: Path) -> None:
    target, back = make_place(), Place(sqlite_url(tmp_path / "back.db"))
    move_registry(source.url, target.url)
    move_registry(target.url, back.url)
    land(back.open(HERE), tmp_path / "lake", (TEMPERATURE, 0, 19))
    assert landed(tmp_path / "lake", "gw1") == list(range(20))


def test_database_with_a_registry_is_refused(source: Place, make_place: Callable[[], Place]) -> None:
    target = make_place()
    target.open().close()
    with pytest.raises(RegistryForeign):
        move_registry(source.url, target.url)
    with pytest.raises(RegistryForeign):
        move_registry(source.url, source.url)
    source.open().close()


@pytest.mark.parametrize("step", ["mark", "finish_arrival"])
def test_interrupted_move_is_repeated(
    step: str, source: Place, make_place: Callable[[], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_given: object) -> None:
        raise Stopped

    target = make_place()
    with monkeypatch.context() as patch:
        patch.setattr(moving, step, stop)
        with pytest.raises(Stopped):
            move_registry(source.url, target.url)
    with pytest.raises(RegistryLeft):
        target.open()
    if step == "mark":
        land(source.open(), tmp_path / "lake", (TEMPERATURE, 10, 14))
    move_registry(source.url, target.url)
    land(target.open(), tmp_path / "lake", (TEMPERATURE, 0, 19))
    assert landed(tmp_path / "lake", "gw1") == list(range(20))


def test_second_attempt_of_the_database_writes_no_part_of_the_rows(
    source: Place, make_place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL repeats a transaction after a conflict; the rows that it has taken are gone."""
    opening = Database.open

    def twice(self: Database, work: Callable[[sa.Connection], T]) -> T:
        with contextlib.suppress(Stopped):
            opening(self, lambda tx: _cut(work(tx)))
        return opening(self, work)

    monkeypatch.setattr(Database, "open", twice)
    target = make_place()
    with pytest.raises(RegistryRefused, match="changed by others"):
        move_registry(source.url, target.url)
    monkeypatch.undo()
    assert move_registry(source.url, target.url)


def _cut(_: object) -> NoReturn:
    raise Stopped


def test_one_hub_repairs_at_a_time(make_place: Callable[[], Place]) -> None:
    place = make_place()
    if place.url.get_backend_name() == "sqlite":
        pytest.skip("one hub uses a file")
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        database = Database(place.url)
        waiting.set()
        with database.repairing():
            order.append("second")
        database.close()

    database, thread = Database(place.url), threading.Thread(target=second)
    with database.repairing():
        thread.start()
        assert waiting.wait(30)
        order.append("first")
    thread.join(30)
    database.close()
    assert order == ["first", "second"]
