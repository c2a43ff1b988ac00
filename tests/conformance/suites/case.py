"""Cases of a suite, and the deviations that `docs/reference/interoperability.md` lists."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.checkout import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "interoperability.md"
_ROW: Final = re.compile(
    r"^\| `(?P<suite>[a-z0-9.-]+)` \| (?P<cases>`[^|]+`) \| (?P<clause>[^|]+) \| (?P<reason>[^|]+) \|$"
)
_SECTIONS: Final = {"## Deviations": "deviation", "## Not applicable": "not applicable"}


class SuiteError(Exception):
    """The suite could not be run. The message says why."""


class CaseResult(NamedTuple):
    """Result of one case of a suite."""

    name: str
    passed: bool
    detail: str = ""
    """Last lines of its output."""


class Kind(enum.Enum):
    """Kind of a case that is not expected to pass."""

    DEVIATION = "deviation"
    NOT_APPLICABLE = "not applicable"


class Listed(NamedTuple):
    """Row of the page: cases of a suite that are not expected to pass."""

    kind: Kind
    suite: str
    patterns: tuple[str, ...]
    clause: str
    reason: str

    def names(self, case: str) -> bool:
        """Return whether the row is about this case."""
        return any(fnmatchcase(case, pattern) for pattern in self.patterns)


class Summary(NamedTuple):
    """Counts of a run, and the cases that need a look."""

    passed: int
    applicable: int
    deviations: tuple[str, ...]
    unexpected: tuple[CaseResult, ...]
    """Failed cases without a row of the page."""
    better: tuple[str, ...]
    """Passed cases that the page lists as a deviation."""


def listed(page: Path = PAGE) -> tuple[Listed, ...]:
    """Return the rows of the page."""
    kind: Kind | None = None
    found = []
    for line in page.read_text().splitlines():
        if line.startswith("## "):
            kind = Kind(_SECTIONS[line]) if line in _SECTIONS else None
        row = _ROW.match(line)
        if row is not None and kind is not None:
            patterns = tuple(re.findall("`([^`]+)`", row["cases"]))
            found.append(Listed(kind, row["suite"], patterns, row["clause"], row["reason"]))
    return tuple(found)


def excluded(suite: str, case: str, rows: Sequence[Listed]) -> bool:
    """Return whether a case does not apply to Waypost."""
    return any(row.suite == suite and row.kind is Kind.NOT_APPLICABLE and row.names(case) for row in rows)


def summarize(suite: str, results: Sequence[CaseResult], rows: Sequence[Listed]) -> Summary:
    """Count the results of a run against the rows of the page."""
    counted = [each for each in results if not excluded(suite, each.name, rows)]
    known = [row for row in rows if row.suite == suite and row.kind is Kind.DEVIATION]
    failed = [each for each in counted if not each.passed]
    expected = [each.name for each in failed if any(row.names(each.name) for row in known)]
    return Summary(
        passed=sum(each.passed for each in counted),
        applicable=len(counted),
        deviations=tuple(expected),
        unexpected=tuple(each for each in failed if each.name not in expected),
        better=tuple(each.name for each in counted if each.passed and any(row.names(each.name) for row in known)),
    )
