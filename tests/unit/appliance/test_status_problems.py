"""Problems in the status that a gateway sends to its hub."""

from __future__ import annotations

from edge.appliance.limits import (
    STATUS_PROBLEM_CHARACTERS_MAX,
    STATUS_PROBLEMS_MAX,
    STATUS_PROBLEMS_PERIOD,
    STATUS_PROBLEMS_REPEATS,
)
from edge.appliance.status_problems import StatusProblems
from edge.health.problems import HealthProblem, ProblemMute, Severity

FULL = HealthProblem("store", "the card is full", "2026-11-29T10:00:00+00:00", "remove something")
MUTED = HealthProblem("device silent", "…", FULL.since, "…", Severity.ERROR, ProblemMute("2026", "ann", "holidays"))


def test_problems_are_named_when_they_change_and_again_after_a_while() -> None:
    part = StatusProblems()
    named = ["problems" in part.fields([FULL]) for _ in range(STATUS_PROBLEMS_PERIOD + 1)]
    first = [True] * STATUS_PROBLEMS_REPEATS
    assert named == [*first, *[False] * (STATUS_PROBLEMS_PERIOD - STATUS_PROBLEMS_REPEATS), True]
    assert part.fields([])["problems"] == [], "their end is a change too"


def test_muted_problems_are_counted_only() -> None:
    found = StatusProblems().fields([FULL, MUTED])
    assert (found["errors"], found["errors_muted"]) == (1, 1)
    assert found["problems"] == [
        {"name": "store", "severity": "error", "what": "the card is full", "since": FULL.since}
    ]


def test_list_and_texts_are_bounded() -> None:
    long = HealthProblem("store", "x" * (STATUS_PROBLEM_CHARACTERS_MAX + 1), FULL.since, "")
    found = StatusProblems().fields([long] * (STATUS_PROBLEMS_MAX + 1))["problems"]
    assert (len(found), len(found[0]["what"])) == (STATUS_PROBLEMS_MAX, STATUS_PROBLEM_CHARACTERS_MAX)
