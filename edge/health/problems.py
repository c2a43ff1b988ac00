"""Problems: what is wrong now, since when, and what to do. One list for everything that tells how a process is.

An *error* keeps clients or peers from being served as promised: `/healthz` fails while there is one. A *warning* will
become one, or costs something meanwhile. What was configured so (a filter that gives its old messages up, a gateway
that is offline) is neither.
"""

from __future__ import annotations

import datetime
import enum
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

log = logging.getLogger(__name__)

PROBLEMS_MAX: Final = 100
"""Shown at a time: who reads on after so many does not lack another one."""


class Severity(enum.Enum):
    """See the module."""

    ERROR = "error"
    WARNING = "warning"


class Found(NamedTuple):
    """A problem as it is seen now; `what` has no figures that change while it lasts."""

    name: str
    what: str
    next_step: str
    severity: Severity = Severity.ERROR


class Problem(msgspec.Struct, frozen=True):
    """A problem, and when it was first seen."""

    name: str
    what: str
    since: str
    """ISO 8601, UTC."""
    next_step: str
    severity: Severity = Severity.ERROR


def serving(problems: Iterable[Problem]) -> bool:
    """True when none of them is an error."""
    return all(problem.severity is not Severity.ERROR for problem in problems)


class ProblemList:
    """Remembers since when each problem is there."""

    def __init__(self, utc_s: Callable[[], float] = time.time) -> None:
        self._utc_s = utc_s
        self._since: dict[tuple[str, str], str] = {}

    def update(self, found: Iterable[Found]) -> list[Problem]:
        """The list as it is now, errors first, then oldest first; what is not found any more is over."""
        now = datetime.datetime.fromtimestamp(self._utc_s(), datetime.UTC).isoformat(timespec="seconds")
        shown = sorted(set(found), key=lambda one: one.severity is not Severity.ERROR)[:PROBLEMS_MAX]
        problems = [
            Problem(one.name, one.what, self._since.get((one.name, one.what), now), one.next_step, one.severity)
            for one in shown
        ]
        self._tell(problems)
        self._since = {(one.name, one.what): one.since for one in problems}
        return sorted(problems, key=lambda one: (one.severity is not Severity.ERROR, one.since))

    def _tell(self, problems: Sequence[Problem]) -> None:
        """What is new or over is also a line in the log."""
        for problem in problems:
            if (problem.name, problem.what) not in self._since:
                level = logging.ERROR if problem.severity is Severity.ERROR else logging.WARNING
                log.log(level, "%s: %s; %s", problem.name, problem.what, problem.next_step)
        for name, what in self._since.keys() - {(problem.name, problem.what) for problem in problems}:
            log.info("%s: over: %s", name, what)


Source = Callable[[], Iterable[Found]]


class Health:
    """The problems of one process, from those who know of them."""

    def __init__(self, sources: Sequence[Source], problems: ProblemList | None = None) -> None:
        self._sources = sources
        self._problems = problems or ProblemList()

    def problems(self) -> list[Problem]:
        """All of them, as they are now."""
        return self._problems.update(self._found())

    def _found(self) -> Iterator[Found]:
        for source in self._sources:
            try:
                yield from source()
            except Exception as error:  # who asks how we are wants an answer, and this is part of it
                what = f"it cannot be told whether there is a problem: {type(error).__name__}"
                yield Found(_name(source), what, "this is a fault of the program: see its log, and report it")
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("%s", what, exc_info=error)


def _name(source: Source) -> str:
    return str(getattr(source, "__name__", "health")).strip("_").replace("_", " ")
