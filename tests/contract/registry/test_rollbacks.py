"""Transactions that did not happen: what the registry keeps in memory stays, unless it may be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from cloud.hub.groups import Presence
from cloud.hub.registry.database import Database
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.unfolded import UnfoldedCommits
from cloud.lake.commits import Prepared
from cloud.lake.faults import CommitSettled, RegistryError, StreamElsewhere
from cloud.lake.sequences import SequenceRange, SequenceStream
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.support.memory_lake import MemoryLake

HELD = SequenceStream("default", "held", "e", "a")
OTHERS = [SequenceStream("default", f"gw{number}", "e", "a") for number in range(5)]
KEYS = [stream[:2] for stream in OTHERS]


def moved(stream: SequenceStream, first: int, last: int) -> SequenceRange:
    return SequenceRange(*stream, first, last)


def connect(registry: Registry, *streams: SequenceStream) -> None:
    registry.directory.presence({stream[:2]: Presence("-", connected=True, at_us=1, connects=1) for stream in streams})


@pytest.fixture
def hub(place: Place) -> Registry:
    """Return the registry of a hub that knows the marks of its gateways."""
    registry = place.open(HERE)
    registry.commits.write_to(MemoryLake())
    connect(registry, *OTHERS)
    assert registry.commits.take_over(KEYS) == []
    registry.commits.confirm(registry.commits.prepare("telemetry", [moved(each, 0, 9) for each in OTHERS], 50), 1)
    return registry


@contextmanager
def statements(registry: Registry, about: str) -> Iterator[list[str]]:
    """Collect the statements that name this table."""
    found: list[str] = []

    def add(_tx: object, _cursor: object, text: str, *_: object) -> None:
        if f"FROM {about}" in text or f"JOIN {about}" in text:
            found.append(text)

    engine = registry._database._engine
    sa.event.listen(engine, "before_cursor_execute", add)
    yield found
    sa.event.remove(engine, "before_cursor_execute", add)


def test_gateway_that_waits_for_another_lake_costs_the_others_no_reads(place: Place, hub: Registry) -> None:
    """Each attempt to land for it ends in a rollback."""
    other = place.open(THERE)
    other.commits.write_to(MemoryLake("another"))
    connect(other, HELD)
    other.commits.prepare("telemetry", [moved(HELD, 0, 9)], 10)
    connect(hub, HELD)
    for _ in range(3):
        with pytest.raises(StreamElsewhere):
            hub.commits.landed(HELD)
    with statements(hub, "marks") as found:
        assert hub.commits.take_over(KEYS) == []
        assert [hub.commits.landed(each).mark for each in OTHERS] == [9] * 5
    assert found == []


def test_conflict_costs_no_reads(hub: Registry) -> None:
    work = hub.commits._prepare
    attempts = [OperationalError("x", None, Exception("conflict"))] * 2

    def conflicting(*arguments: object) -> None:
        work(*arguments)  # type: ignore[arg-type]
        if attempts:
            raise attempts.pop()

    with (
        mock.patch.object(hub.commits, "_prepare", conflicting),
        mock.patch.object(type(hub._database.dialect), "is_conflict", return_value=True),
    ):
        prepared = hub.commits.prepare("telemetry", [moved(OTHERS[0], 10, 19)], 10)
    hub.commits.confirm(prepared, 2)
    assert attempts == []
    with statements(hub, "marks") as found:
        assert hub.commits.take_over(KEYS) == []
        assert [hub.commits.landed(each).mark for each in OTHERS] == [19, 9, 9, 9, 9]
    assert found == []


def test_marks_are_read_again_after_a_lost_answer(hub: Registry) -> None:
    """The commit may be confirmed: its messages must count as landed when they come again."""
    prepared = hub.commits.prepare("telemetry", [moved(OTHERS[0], 10, 19)], 10)
    confirm = hub.commits._confirm

    def lost(tx: sa.Connection, prepared: Prepared, version: int, *, fold: bool) -> None:
        confirm(tx, prepared, version, fold=fold)
        tx.commit()
        raise SQLAlchemyError("the connection was lost")

    with mock.patch.object(hub.commits, "_confirm", lost), pytest.raises(RegistryError):
        hub.commits.confirm(prepared, 2)
    assert hub.commits.take_over(KEYS) == []
    assert hub.commits.landed(OTHERS[0]).mark == 19


def test_marks_are_read_again_when_another_hub_has_confirmed(place: Place, hub: Registry) -> None:
    prepared = hub.commits.prepare("telemetry", [moved(OTHERS[0], 10, 19), moved(OTHERS[1], 10, 19)], 20)
    other = place.open(THERE)
    other.commits.write_to(MemoryLake())
    connect(other, OTHERS[0])
    [left_open] = other.commits.take_over(KEYS[:1])
    other.commits.confirm(left_open, 2)
    with pytest.raises(CommitSettled):
        hub.commits.confirm(prepared, 2)
    assert hub.commits.take_over(KEYS[1:]) == []
    assert hub.commits.landed(OTHERS[1]).mark == 19


def test_gateways_of_open_commits_are_read_again_on_a_new_connection(place: Place, hub: Registry) -> None:
    """Another server may have another commit of that name."""
    other = place.open(THERE)
    other.commits.write_to(MemoryLake("another"))
    connect(other, HELD)
    other.commits.prepare("telemetry", [moved(HELD, 0, 9)], 10)
    database: Database = hub._database
    unfolded: UnfoldedCommits = hub.commits._unfolded

    def naming(stream: SequenceStream) -> list[str]:
        return [each.writer for each in database.transaction(lambda tx: unfolded.naming(tx, [stream[:2]]))]

    assert THERE in naming(HELD)
    mine, theirs = (
        place.execute("SELECT moves FROM commits WHERE writer = :writer", writer=each)[0][0] for each in (HERE, THERE)
    )
    assert mine != theirs
    place.execute("UPDATE commits SET moves = :ranges WHERE writer = :writer", ranges=mine, writer=THERE)
    assert THERE in naming(HELD), "what a commit names never changes on one server"
    database._engine.dispose()
    assert THERE not in naming(HELD)
    assert THERE in naming(OTHERS[0])
