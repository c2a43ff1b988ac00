"""Record of the problems of this hub and of the gateways that are connected to it, in the registry.

Runs on the event loop; the registry work runs in a thread. A report waits here until it is stored, and a newer one
replaces it. After a restart the next reports of the gateways are compared with what is stored, so a crash loses no
change, unless a problem began and ended in between. Problems that nothing reports any more end: those of gateways that
are away for long, or have gone back to a version that names none.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.events.limits import (
    GATEWAY_PROBLEMS_MAX,
    GATEWAY_SILENT_S,
    PROBLEMS_AT_ONCE_MAX,
    PROBLEMS_CLEANUP_S,
    PROBLEMS_INTERVAL_S,
    PROBLEMS_REPEAT_S,
    PROBLEMS_UNHEARD_S,
)
from cloud.hub.groups import Key
from cloud.hub.registry.problem_reader import ProblemReader
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from cloud.hub.registry_thread import RegistryThread
from cloud.lake.faults import RegistryError
from edge.health.problems import HealthProblem

log = logging.getLogger(__name__)

T = TypeVar("T")

EARLIEST_US = 1_577_836_800_000_000
"""2020: a time before it is that of a clock that was not set."""


class ProblemRecorder:
    """Stores problems that have changed. `open`, later `close`."""

    def __init__(
        self,
        registry: sa.URL,
        hub: str,
        own: Callable[[], Iterable[HealthProblem]],
        connected_here: Callable[[Key], bool],
        now_us: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hub`: writer id of this hub; `own` returns its problems; `connected_here` returns whether a gateway is
        connected to it; `now_us`: UTC microseconds; `clock`: monotonic seconds."""
        self._hub = hub
        self._own = own
        self._connected_here = connected_here
        self._now_us = now_us
        self._clock = clock
        self._writer = RegistryThread("problems", lambda: StoredProblems(registry, hub))
        self._reader = RegistryThread("problems-reading", lambda: ProblemReader(registry))
        self._waiting: dict[ProblemSource, Sequence[ReportedProblem]] = {}
        self._stored: dict[ProblemSource, int] = {}
        """Hash of what is stored, by source; none while a report of it is being stored."""
        self._in_flight: dict[ProblemSource, Sequence[ReportedProblem]] = {}
        """Reports that are being stored."""
        self._unheard: dict[Key, float] = {}
        """Gateways that have not named their problems since they connected, with that time."""
        self._compared_s = float("-inf")
        """Time of the last comparison of this hub's own problems with what is stored."""
        self._storing = PeriodicTask(
            "problems for the registry", self._store_changes, PROBLEMS_INTERVAL_S,
            log=log, failed="problems are not in the registry", expected=(RegistryError,),
        )  # fmt: skip
        self._cleaning = PeriodicTask(
            "end of old problems", self.clean_up, PROBLEMS_CLEANUP_S,
            log=log, failed="old problems do not end", expected=(RegistryError,),
        )  # fmt: skip

    async def open(self) -> None:
        """Open the registry and start to store. Raises `RegistryError`."""
        await self._writer.open()
        await self._reader.open()
        self._storing.start()
        self._cleaning.start()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        await self._cleaning.stop()
        await self._storing.stop()
        await self._writer.close()
        await self._reader.close()

    async def read(self, work: Callable[[ProblemReader], T]) -> T:
        """Run `work` on the reading thread. Raises `RegistryError`."""
        return await self._reader.run(work)

    def connected(self, key: Key) -> None:
        """Expect a first report of a gateway: another hub may have stored one since the last one here."""
        for kept in (self._stored, self._waiting, self._in_flight):
            kept.pop(ProblemSource(*key), None)
        self._unheard[key] = self._clock()

    def reported(self, key: Key, problems: Sequence[Mapping[str, Any]]) -> None:
        """Take the problems in the status of a gateway."""
        self._unheard.pop(key, None)
        self._take(ProblemSource(*key), [_of_status(each, self._now_us()) for each in problems[:GATEWAY_PROBLEMS_MAX]])

    def _take(self, source: ProblemSource, found: Sequence[ReportedProblem]) -> None:
        if self._stored.get(source) == _hash(found):
            self._waiting.pop(source, None)
        else:
            self._waiting[source] = found

    async def _store_changes(self) -> None:
        own, now_s = ProblemSource("", "", self._hub), self._clock()
        if now_s - self._compared_s >= PROBLEMS_REPEAT_S:
            self._compared_s = now_s
            self._stored.pop(own, None)
        self._take(own, [_of_hub(each, self._now_us()) for each in self._own()])
        await self.store()

    async def store(self) -> None:
        """Store what waits, and end the problems of hubs that have stopped. Raises `RegistryError`."""
        for source in [each for each in self._waiting if each.gateway and not self._connected_here(each[:2])]:
            del self._waiting[source]  # the next hub of the gateway stores its problems
        left = dict(self._waiting)
        while left:
            part = dict(islice(left.items(), PROBLEMS_AT_ONCE_MAX))
            await self._store_part(part)
            for source in part:
                del left[source]
        await self._writer.run(partial(StoredProblems.end_of_stopped_hubs, now_us=self._now_us()))

    async def _store_part(self, part: Mapping[ProblemSource, Sequence[ReportedProblem]]) -> None:
        """Store some reports. A report that arrives in the meantime waits, also if it equals the one stored before."""
        self._in_flight = dict(part)
        for source in part:
            self._stored.pop(source, None)
        try:
            stored = await self._writer.run(partial(StoredProblems.report, reports=part, now_us=self._now_us()))
            for source in stored & self._in_flight.keys():  # the others have connected again
                self._stored[source] = _hash(part[source])
                if self._waiting.get(source) is part[source]:
                    del self._waiting[source]
        finally:
            self._in_flight = {}

    async def clean_up(self) -> None:
        """End problems that nothing reports any more. Raises `RegistryError`."""
        until_s = self._clock() - PROBLEMS_UNHEARD_S
        for key in [key for key, at_s in self._unheard.items() if at_s <= until_s or not self._connected_here(key)]:
            del self._unheard[key]
            if self._connected_here(key):
                self._take(ProblemSource(*key), [])
        for source in [each for each in self._stored if each.gateway and not self._connected_here(each[:2])]:
            del self._stored[source]
        now_us = self._now_us()
        before = now_us - int(GATEWAY_SILENT_S * 1e6)
        silent = partial(ProblemReader.silent_gateways, seen_before=before, limit=PROBLEMS_AT_ONCE_MAX)
        while True:
            keys = await self.read(silent)
            ending = partial(StoredProblems.end_of_silent_gateways, keys=keys, seen_before=before, now_us=now_us)
            if not keys or not await self._writer.run(ending):
                return


def _hash(found: Sequence[ReportedProblem]) -> int:
    """Return a number that changes with the problems, and not with the times at which they began."""
    return hash(frozenset(each._replace(since=0) for each in found))


def _of_status(problem: Mapping[str, Any], now_us: int) -> ReportedProblem:
    return ReportedProblem(
        problem["name"], problem["severity"], problem["what"], "", _time_us(problem["since"], now_us)
    )


def _of_hub(problem: HealthProblem, now_us: int) -> ReportedProblem:
    since = _time_us(problem.since, now_us)
    return ReportedProblem(problem.name, problem.severity.value, problem.what, problem.next_step, since)


def _time_us(text: str, otherwise: int) -> int:
    """Return an ISO 8601 time in UTC microseconds, `otherwise` at most, and for one that is none."""
    with contextlib.suppress(ValueError, OverflowError):
        found = int(datetime.datetime.fromisoformat(text).timestamp() * 1_000_000)
        return min(found, otherwise) if found >= EARLIEST_US else otherwise
    return otherwise
