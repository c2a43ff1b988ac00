"""Statements about landed messages, on SQLite and on PostgreSQL: only what a confirmed commit has."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.landing_receipt import MessageSpan
from bridge.limits import RECEIPT_STATEMENTS_MAX
from cloud.hub.groups import Presence
from cloud.hub.receipts.statements import make_statements
from cloud.hub.registry.registry import Registry
from cloud.lake.landing import Landing
from cloud.lake.limits import HOLES_MAX
from cloud.lake.sequences import SequenceRange, SequenceStream
from tests.contract.registry.conftest import THERE, Place
from tests.contract.registry.landings import TEMPERATURE, batch, land
from tests.support.memory_lake import MemoryLake

KEY = (TEMPERATURE.tenant, TEMPERATURE.gateway)


def opened(place: Place, *writer: str) -> Registry:
    registry = place.open(*writer)
    registry.commits.write_to(MemoryLake())
    registry.directory.presence({KEY: Presence("-", connected=True, at_us=1, connects=1)})
    return registry


def moved(first: int, last: int, stream: SequenceStream = TEMPERATURE) -> SequenceRange:
    return SequenceRange(*stream, first, last)


def stated(registry: Registry, first: int, last: int, stream: SequenceStream = TEMPERATURE) -> list[tuple[Any, ...]]:
    span = MessageSpan(stream.epoch, stream.address, first, last)
    made = make_statements(registry, KEY, [span], 5)
    return [(each.outcome.value, each.first, each.last, each.table, each.version) for each in made]


def test_messages_are_stated_only_after_their_commit_is_confirmed(place: Place) -> None:
    registry = opened(place)
    assert stated(registry, 0, 9) == []
    prepared = registry.commits.prepare("telemetry", [moved(0, 4)], 5)
    assert stated(registry, 0, 9) == []
    registry.commits.confirm(prepared, 17)
    assert stated(registry, 0, 9) == [("landed", 0, 4, "telemetry", 17)]
    assert stated(registry, 5, 9) == []
    registry.commits.forget(registry.commits.prepare("telemetry", [moved(5, 9)], 5))
    assert stated(registry, 5, 9) == []


def test_statement_survives_a_restart(place: Place) -> None:
    registry = opened(place)
    land(registry, moved(0, 4), version=3)
    registry.close()
    assert stated(place.open(), 2, 2) == [("landed", 2, 2, "telemetry", 3)]


def test_dropped_messages_are_stated_by_the_ledger(place: Place) -> None:
    registry = opened(place)
    land(registry, moved(0, 2), moved(8, 9), version=6)
    land(registry, moved(1, 5), table="ledger", version=4)
    assert stated(registry, 1, 9) == [
        ("landed", 1, 2, "telemetry", 6),
        ("dropped", 3, 5, "ledger", 4),
        ("landed", 8, 9, "telemetry", 6),
    ]


def test_version_includes_commits_of_other_hubs_of_the_lake(place: Place) -> None:
    here, there = opened(place), place.open(THERE)
    land(here, moved(0, 0), version=3)
    land(there, moved(0, 0, SequenceStream("default", "gw2", "f", "a")), version=8)
    assert stated(here, 0, 0) == [("landed", 0, 0, "telemetry", 3)], "that hub has another lake"
    there.commits.write_to(MemoryLake())
    assert stated(here, 0, 0) == [("landed", 0, 0, "telemetry", 8)]


def test_messages_of_another_gateway_are_not_stated(place: Place) -> None:
    registry = opened(place)
    land(registry, moved(0, 4))
    other = MessageSpan(TEMPERATURE.epoch, TEMPERATURE.address, 0, 4)
    assert make_statements(registry, ("default", "gw9"), [other], 5) == []


def test_statements_of_an_answer_are_limited(place: Place) -> None:
    registry = opened(place)
    land(registry, *(moved(n, n) for n in range(0, 4 * RECEIPT_STATEMENTS_MAX, 2)))
    assert len(stated(registry, 0, 4 * RECEIPT_STATEMENTS_MAX)) == RECEIPT_STATEMENTS_MAX


def test_statements_of_an_answer_are_the_lowest(place: Place) -> None:
    registry = opened(place)
    land(registry, *(moved(n, n) for n in range(0, 4 * RECEIPT_STATEMENTS_MAX, 2)))
    land(registry, *(moved(n, n) for n in range(1, 4 * RECEIPT_STATEMENTS_MAX, 2)), table="ledger")
    found = stated(registry, 0, 4 * RECEIPT_STATEMENTS_MAX)
    assert [(each[0], each[1]) for each in found] == [
        (("landed", "dropped")[n % 2], n) for n in range(RECEIPT_STATEMENTS_MAX)
    ]


@pytest.mark.parametrize("whole_again", [False, True])
def test_closed_hole_is_never_stated_as_landed(place: Place, *, whole_again: bool) -> None:
    """A closed hole counts as landed, so that its messages are not landed twice; they are in the ledger."""
    lake = MemoryLake()
    registry = place.open()
    registry.commits.write_to(lake)
    registry.directory.presence({KEY: Presence("-", connected=True, at_us=1, connects=1)})
    land(registry, *(moved(n, n) for n in range(0, 2 * HOLES_MAX + 1, 2)))
    assert stated(registry, 1, 2) == [("landed", 2, 2, "telemetry", 1)]
    land(registry, moved(3, 3), table="ledger")
    landing = Landing(lake, registry.commits)
    top = 2 * HOLES_MAX + 2
    late = [batch(TEMPERATURE, top, top + 2), batch(TEMPERATURE, top + 4, top + 4)]
    assert landing.land(late, 1_000).holes_closed == 2
    if whole_again:
        landing.land([batch(TEMPERATURE, 7, top + 3)], 1_000)
    [entry] = [row for part in lake.appended["ledger"] for row in part.to_pylist()]
    assert (entry["first_sequence"], entry["last_sequence"], entry["reason"]) == (1, 1, "hole-closed")
    registry.close()
    registry = place.open()
    assert registry.commits.landed(TEMPERATURE).closed == 3
    assert [each[:3] for each in stated(registry, 1, 4)] == [
        ("dropped", 1, 1),
        ("landed", 2, 2),
        ("dropped", 3, 3),
        ("landed", 4, 4),
    ]
    land(registry, moved(top, top), table="ledger")
    assert [each[:3] for each in stated(registry, top, top)] == [("landed", top, top)], "no hole was closed up there"
