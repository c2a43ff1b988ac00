"""Problems of a process: what is wrong now, since when, and the next step.

An *error* keeps clients or peers from being served as promised: `/healthz` fails while there is one. A *warning* will
become an error, or already has a cost. A *notice* is a state that operators should know and that loses nothing (the
uplink is down, messages reach no subscriber): it is shown, and does not change the answer of `/healthz`.
"""

from __future__ import annotations

import datetime
import enum
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from edge.output.log_history import event

log = logging.getLogger(__name__)

PROBLEMS_MAX: Final = 100
"""Problems shown at a time: a longer list helps no reader."""


class Severity(enum.Enum):
    """Seriousness of a problem, the worst first (see the module)."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"

    @property
    def rank(self) -> int:
        """Position among the severities: 0 is the worst."""
        return _RANKS[self]


_RANKS: Final = {severity: rank for rank, severity in enumerate(Severity)}
_LEVELS: Final = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.NOTICE: logging.INFO}
"""Log level of a new problem."""


class FoundProblem(NamedTuple):
    """Problem as a source reports it. `what` has no figures that change while the problem lasts."""

    name: str
    what: str
    next_step: str
    severity: Severity = Severity.ERROR


class ProblemMute(msgspec.Struct, frozen=True):
    """Mute of a problem: a person has seen it."""

    until: str
    """ISO 8601, UTC."""
    by: str
    """User who muted it; empty without authentication."""
    reason: str


class HealthProblem(msgspec.Struct, frozen=True):
    """Problem with the time at which it was first seen."""

    name: str
    what: str
    since: str
    """ISO 8601, UTC."""
    next_step: str
    severity: Severity = Severity.ERROR
    muted: ProblemMute | None = None
    """Mute in effect; None without one."""


def serving(problems: Iterable[HealthProblem]) -> bool:
    """Return True when none of the problems is an error."""
    return all(problem.severity is not Severity.ERROR for problem in problems)


class ProblemList:
    """Track since when each problem has existed."""

    def __init__(self, utc_s: Callable[[], float] = time.time) -> None:
        self._utc_s = utc_s
        self._since: dict[tuple[str, str], str] = {}

    def update(self, found: Iterable[FoundProblem]) -> list[HealthProblem]:
        """Return the current list: the most serious first, then the oldest first. A problem that is not in `found` has
        ended."""
        now = datetime.datetime.fromtimestamp(self._utc_s(), datetime.UTC).isoformat(timespec="seconds")
        shown = sorted(set(found), key=lambda one: one.severity.rank)[:PROBLEMS_MAX]
        problems = [
            HealthProblem(one.name, one.what, self._since.get((one.name, one.what), now), one.next_step, one.severity)
            for one in shown
        ]
        self._log_changes(problems)
        self._since = {(one.name, one.what): one.since for one in problems}
        return sorted(problems, key=lambda one: (one.severity.rank, one.since))

    def _log_changes(self, problems: Sequence[HealthProblem]) -> None:
        """Log each problem that began or ended since the last call."""
        for problem in problems:
            if (problem.name, problem.what) not in self._since:
                log.log(
                    _LEVELS[problem.severity],
                    "%s: %s; %s",
                    problem.name,
                    problem.what,
                    problem.next_step,
                    extra=event("problem"),
                )
        for name, what in self._since.keys() - {(problem.name, problem.what) for problem in problems}:
            log.info("%s: over: %s", name, what, extra=event("problem"))


Source = Callable[[], Iterable[FoundProblem]]


class HealthChecks:
    """Collect the problems of one process from their sources."""

    def __init__(self, sources: Sequence[Source], problems: ProblemList | None = None) -> None:
        self._sources = sources
        self._problems = problems or ProblemList()

    def problems(self) -> list[HealthProblem]:
        """Return the current problems."""
        return self._problems.update(self._found())

    def _found(self) -> Iterator[FoundProblem]:
        for source in self._sources:
            try:
                yield from source()
            except Exception as error:  # a failing source must not hide the others
                what = f"its check failed: {type(error).__name__}"
                yield FoundProblem(_name(source), what, "a bug in Waypost: see the log, and report it")
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("%s", what, exc_info=error)


def _name(source: Source) -> str:
    return str(getattr(source, "__name__", "health")).strip("_").replace("_", " ")
