"""Problems in the status that a gateway sends to its hub: their counts always, and what they are when they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge.appliance.limits import (
    STATUS_PROBLEM_CHARACTERS_MAX,
    STATUS_PROBLEMS_MAX,
    STATUS_PROBLEMS_PERIOD,
    STATUS_PROBLEMS_REPEATS,
)
from edge.health.problems import HealthProblem, Severity


class StatusProblems:
    """Part of each status that is about problems."""

    def __init__(self) -> None:
        self._sent: list[dict[str, str]] | None = None
        self._count = 0
        """Statuses since the problems have changed, or were repeated."""

    def fields(self, problems: Sequence[HealthProblem]) -> dict[str, Any]:
        """Return the fields for the next status. Muted problems are counted, and not named."""
        errors = [each for each in problems if each.severity is Severity.ERROR]
        found: dict[str, Any] = {
            "errors": sum(each.muted is None for each in errors),
            "errors_muted": sum(each.muted is not None for each in errors),
            "certificate_problems": sum(each.name.startswith("certificate") for each in problems),
        }
        now = [_shown(each) for each in problems if each.muted is None][:STATUS_PROBLEMS_MAX]
        if now != self._sent or self._count >= STATUS_PROBLEMS_PERIOD:
            self._sent, self._count = now, 0
        self._count += 1
        if self._count <= STATUS_PROBLEMS_REPEATS:
            found["problems"] = now
        return found


def _shown(problem: HealthProblem) -> dict[str, str]:
    what = problem.what[:STATUS_PROBLEM_CHARACTERS_MAX]
    return {"name": problem.name[:255], "severity": problem.severity.value, "what": what, "since": problem.since}
