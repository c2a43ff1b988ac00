"""Pages of problems in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cloud.hub.groups import Presence
from cloud.hub.registry.problem_reader import PLACES_SHOWN_MAX, ProblemFilter, ProblemReader
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from tests.contract.registry.conftest import HERE, Place

FULL = ReportedProblem("store", "warning", "the card is full", "", 5)
GATEWAYS = [("acme", f"g{number:02}") for number in range(PLACES_SHOWN_MAX + 2)]
OTHER = ("other", "g00")
ALL = ProblemFilter()


@pytest.fixture
def reader(place: Place) -> Iterator[ProblemReader]:
    there = [*GATEWAYS, OTHER]
    place.open(HERE).directory.presence({key: Presence("there", True, 1, 1) for key in there})
    reports: dict[ProblemSource, list[ReportedProblem]] = {ProblemSource(*key): [FULL] for key in there}
    reports[ProblemSource(*OTHER)] += [FULL._replace(severity="error", what="it fails", since=3)]
    reports[ProblemSource("", "", HERE)] = [FULL._replace(code="landing", severity="error")]
    with closing(StoredProblems(place.url, HERE)) as written:
        written.report(reports, 10)
    with closing(ProblemReader(place.url)) as opened:
        yield opened


def test_names_have_counts_and_the_worst_severity(reader: ProblemReader) -> None:
    [landing, store], total = reader.groups(ALL, "", 9)
    assert (landing.code, landing.total, landing.places[0].hub, total) == ("landing", 1, HERE, 2)
    assert (store.code, store.severity, store.total, store.since) == ("store", "error", len(GATEWAYS) + 2, 3)
    assert [each.gateway for each in store.places] == [name for _, name in GATEWAYS[:PLACES_SHOWN_MAX]]
    assert [each.code for each in reader.groups(ALL, "landing", 9)[0]] == ["store"], "the next page"
    assert [len(each.places) for each in reader.groups(ALL, "", 9, 0)[0]] == [0, 0]


def test_names_have_the_number_of_gateways(reader: ProblemReader, place: Place) -> None:
    """One has two problems of the same name; two are away; a hub has it too."""
    directory = place.open(HERE).directory
    directory.presence({key: Presence("there", False, 2) for key in (OTHER, GATEWAYS[0])})
    with closing(StoredProblems(place.url, HERE)) as written:
        written.report({ProblemSource("", "", HERE): [FULL, FULL._replace(code="landing")]}, 10)
    [landing, store] = reader.groups(ALL, "", 9)[0]
    assert (landing.gateways, landing.away, landing.hubs, landing.total) == (0, 0, 1, 1)
    assert (store.gateways, store.away, store.hubs, store.total) == (len(GATEWAYS) + 1, 2, 1, len(GATEWAYS) + 3)
    assert [(each.hub, each.connected, each.last_seen) for each in store.places[:3]] == [
        (HERE, None, None), ("", False, 2), ("", True, 1),
    ]  # fmt: skip
    [store] = reader.groups(ProblemFilter("other"), "", 9)[0]
    assert (store.gateways, store.away, store.hubs) == (1, 1, 0)
    [store] = reader.groups(ProblemFilter(severity="error"), "", 9)[0]
    assert (store.gateways, store.away, store.hubs) == (1, 1, 0)


def test_tenant_sees_its_own_problems_only(reader: ProblemReader) -> None:
    [store], total = reader.groups(ProblemFilter("other"), "", 9)
    assert (store.total, {each.tenant for each in store.places}, total) == (2, {"other"}, 1)
    assert reader.groups(ProblemFilter("nobody"), "", 9) == ([], 0)


def test_places_follow_each_other(reader: ProblemReader) -> None:
    wanted = ProblemFilter(code="store")
    first, total = reader.places(wanted, None, 5)
    rest, _ = reader.places(wanted, first[-1].place, 99)
    found = [(each.tenant, each.gateway) for each in [*first, *rest]]
    assert (found, total) == ([*GATEWAYS, OTHER, OTHER], len(GATEWAYS) + 2)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (ProblemFilter(severity="error"), 2),
        (ProblemFilter(gateway="g00"), 3),
        (ProblemFilter("acme", "g00", "warning", "store"), 1),
        (ProblemFilter("acme", "g00", "error"), 0),
    ],
)
def test_filters(reader: ProblemReader, wanted: ProblemFilter, count: int) -> None:
    assert reader.places(wanted, None, 99)[1] == count
