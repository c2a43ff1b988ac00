"""StoredProblems of hubs and gateways in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cloud.hub.groups import Presence
from cloud.hub.limits import PROBLEM_CHARACTERS_MAX
from cloud.hub.registry.alerts import STOPPED_HUB_US
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.event_reader import EventFilter, EventReader
from cloud.hub.registry.hubs import HubRecord, Hubs
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from tests.contract.registry.conftest import HERE, THERE, Place

HALL = ProblemSource("acme", "hall")
FULL = ReportedProblem("store", "error", "the card is full", "", 5)


@pytest.fixture
def problems(place: Place) -> Iterator[StoredProblems]:
    place.open(HERE).directory.presence({HALL[:2]: Presence("there", True, 1, 1)})
    with closing(StoredProblems(place.url, HERE)) as opened:
        yield opened


@pytest.fixture
def reader(place: Place, problems: StoredProblems) -> Iterator[EventReader]:
    with closing(EventReader(place.url)) as opened:
        yield opened


def told(reader: EventReader) -> list[tuple[str, str, str]]:
    found = reader.page(0, EventFilter(types=frozenset(("problem",))), 99).events
    return [(each.event.type, each.event.gateway, each.event.subject) for each in found]


def test_difference_is_told_once(problems: StoredProblems, reader: EventReader, place: Place) -> None:
    for _ in range(2):
        assert problems.report({HALL: [FULL]}, 10) == {HALL}
    worse = FULL._replace(severity="warning", since=99)
    problems.report({HALL: [worse, FULL._replace(code="uplink")]}, 20)
    assert place.execute("SELECT code, severity, since FROM problems ORDER BY code") == [
        ("store", "warning", 5),
        ("uplink", "error", 5),
    ], "it is still the same problem"
    problems.report({HALL: []}, 30)
    assert told(reader)[:2] == [("problem.raised", "hall", "store"), ("problem.raised", "hall", "uplink")]
    assert sorted(told(reader)[2:]) == [("problem.ended", "hall", "store"), ("problem.ended", "hall", "uplink")]


def test_gateway_that_has_moved_is_left_to_its_hub(problems: StoredProblems, reader: EventReader, place: Place) -> None:
    place.open(THERE).directory.presence({HALL[:2]: Presence("elsewhere", True, 2, 1)})
    assert problems.report({HALL: [FULL], ProblemSource("", "", HERE): [FULL]}, 10) == {ProblemSource("", "", HERE)}
    assert told(reader) == [("problem.raised", "", "store")]


def test_long_texts_are_cut(problems: StoredProblems, place: Place) -> None:
    problems.report({HALL: [FULL._replace(what="x" * (PROBLEM_CHARACTERS_MAX + 1))]}, 10)
    assert place.execute("SELECT length(what) FROM problems") == [(PROBLEM_CHARACTERS_MAX,)]


def test_problems_of_a_stopped_hub_end(problems: StoredProblems, reader: EventReader, place: Place) -> None:
    with closing(Hubs(place.url, THERE)) as hubs, closing(StoredProblems(place.url, THERE)) as theirs:
        hubs.write(HubRecord(THERE, "b:1", "1", "serving", 1, 1, 0))
        theirs.report({ProblemSource("", "", THERE): [FULL]}, 10)
        later = 2 + STOPPED_HUB_US
        assert problems.end_of_stopped_hubs(later) == 0, "it serves"
        hubs.stop()
        assert problems.end_of_stopped_hubs(1 + STOPPED_HUB_US) == 0, "it may be updated"
        assert problems.end_of_stopped_hubs(later) == 1
    assert [each[0] for each in told(reader)] == ["problem.raised", "problem.ended"]


def test_hub_that_starts_keeps_its_problems(problems: StoredProblems, place: Place) -> None:
    """Its first report comes before its row in `hubs`."""
    with closing(StoredProblems(place.url, THERE)) as theirs:
        theirs.report({ProblemSource("", "", THERE): [FULL]}, 10)
    assert problems.end_of_stopped_hubs(10 + 2 * STOPPED_HUB_US) == 0


def test_problems_end_with_a_forgotten_gateway(problems: StoredProblems, reader: EventReader, place: Place) -> None:
    problems.report({HALL: [FULL]}, 10)
    place.open(HERE).directory.presence({HALL[:2]: Presence("there", False, 3)})
    with closing(Enrolments(place.url)) as enrolments:
        enrolments.forget(*HALL[:2], 20)
    assert told(reader)[-1] == ("problem.ended", "hall", "store")
