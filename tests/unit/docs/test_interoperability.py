"""The page of suites: its rows are read, and results are judged by them."""

from __future__ import annotations

from tests.conformance.suites.case import CaseResult, Kind, Listed, excluded, listed, summarize

ROWS = (
    Listed(Kind.DEVIATION, "one", ("a*",), "section 1", "why"),
    Listed(Kind.NOT_APPLICABLE, "one", ("x",), "section 2", "why"),
)


def test_rows_of_the_page_have_clause_and_reason() -> None:
    rows = listed()
    assert {row.kind for row in rows} == set(Kind)
    assert all(row.patterns and row.clause and row.reason for row in rows)


def test_results_are_counted_without_what_does_not_apply() -> None:
    results = [CaseResult("a1", False), CaseResult("a2", True), CaseResult("b", False), CaseResult("x", False)]
    found = summarize("one", results, ROWS)
    assert (found.passed, found.applicable) == (1, 3)
    assert (found.deviations, found.better) == (("a1",), ("a2",))
    assert [each.name for each in found.unexpected] == ["b"]
    assert excluded("one", "x", ROWS)
    assert not excluded("two", "x", ROWS)
