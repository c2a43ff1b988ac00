"""Record of the problems of this hub and of the gateways that are connected to it, in the registry.

Runs on the event loop; the registry work runs in a thread. A report waits here until it is stored, and a newer one
replaces it. After a restart the next reports of the gateways are compared with what is stored, so a crash loses no
change, unless a problem began and ended in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from cloud.hub.ended_task import end_task
from cloud.hub.events.limits import GATEWAY_PROBLEMS_MAX, PROBLEMS_AT_ONCE_MAX, PROBLEMS_INTERVAL_S, PROBLEMS_REPEAT_S
from cloud.hub.groups import Key
from cloud.hub.registry.problem_reader import ProblemReader
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from cloud.lake.faults import RegistryError
from edge.health.problems import HealthProblem

log = logging.getLogger(__name__)

T = TypeVar("T")


class ProblemsNotReady(Exception):
    """The hub is starting or stopping; the request may be repeated in some seconds."""


class ProblemRecorder:
    """Stores problems that have changed. `open`, later `close`."""

    def __init__(
        self,
        registry: sa.URL,
        hub: str,
        own: Callable[[], Iterable[HealthProblem]],
        connected_here: Callable[[Key], bool],
        now_us: Callable[[], int],
    ) -> None:
        """`hub`: writer id of this hub; `own` returns its problems; `connected_here` returns whether a gateway is
        connected to it; `now_us`: UTC microseconds."""
        self._url = registry
        self._hub = hub
        self._own = own
        self._connected_here = connected_here
        self._now_us = now_us
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="problems")
        self._registry: StoredProblems | None = None
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="problems-reading")
        self._reader: ProblemReader | None = None
        self._waiting: dict[ProblemSource, Sequence[ReportedProblem]] = {}
        self._stored: dict[ProblemSource, int] = {}
        """Hash of what is stored, by source."""
        self._failed = False
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the registry and start to store. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._registry = await loop.run_in_executor(self._executor, StoredProblems, self._url, self._hub)
        self._reader = await loop.run_in_executor(self._reading, ProblemReader, self._url)
        self._task = loop.create_task(self._store_changes(), name="problems for the registry")

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        task, self._task = self._task, None
        await end_task(task)
        registry, self._registry = self._registry, None
        if registry is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, registry.close)
        reader, self._reader = self._reader, None
        if reader is not None:
            await asyncio.get_running_loop().run_in_executor(self._reading, reader.close)
        self._reading.shutdown()
        self._executor.shutdown()

    async def read(self, work: Callable[[ProblemReader], T]) -> T:
        """Run `work` on the reading thread. Raises `ProblemsNotReady`, `RegistryError`."""
        reader = self._reader
        if reader is None:
            raise ProblemsNotReady("the hub is starting or stopping; try again in some seconds")
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, reader)

    def connected(self, key: Key) -> None:
        """Expect a first report of a gateway: another hub may have stored one since the last one here."""
        self._stored.pop(ProblemSource(*key), None)

    def reported(self, key: Key, problems: Sequence[Mapping[str, Any]]) -> None:
        """Take the problems in the status of a gateway."""
        self._take(ProblemSource(*key), [_of_status(each, self._now_us()) for each in problems[:GATEWAY_PROBLEMS_MAX]])

    def _take(self, source: ProblemSource, found: Sequence[ReportedProblem]) -> None:
        if self._stored.get(source) == _hash(found):
            self._waiting.pop(source, None)
        else:
            self._waiting[source] = found

    async def _store_changes(self) -> None:
        loop, compared_s = asyncio.get_running_loop(), float("-inf")
        while True:
            try:
                own = ProblemSource("", "", self._hub)
                if loop.time() - compared_s >= PROBLEMS_REPEAT_S:
                    compared_s = loop.time()
                    self._stored.pop(own, None)
                self._take(own, [_of_hub(each, self._now_us()) for each in self._own()])
                await self.store()
                self._failed = False
            except RegistryError as error:
                if not self._failed:
                    log.warning("problems are not in the registry: %s", error)
                self._failed = True
            except Exception:  # an internal error must not end the task silently
                log.exception("problems failed with an internal error")
            await asyncio.sleep(PROBLEMS_INTERVAL_S)

    async def store(self) -> None:
        """Store what waits, and end the problems of hubs that have stopped. Raises `RegistryError`."""
        registry, loop = self._registry, asyncio.get_running_loop()
        if registry is None:
            return
        for source in [each for each in self._waiting if each.gateway and not self._connected_here(each[:2])]:
            del self._waiting[source]  # the next hub of the gateway stores its problems
        left = dict(self._waiting)
        while left:
            part = dict(islice(left.items(), PROBLEMS_AT_ONCE_MAX))
            stored = await loop.run_in_executor(self._executor, registry.report, part, self._now_us())
            for source, found in part.items():
                del left[source]
                if source in stored:
                    self._stored[source] = _hash(found)
                    if self._waiting.get(source) is found:
                        del self._waiting[source]
        await loop.run_in_executor(self._executor, partial(registry.end_of_stopped_hubs, self._now_us()))


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
    """Return an ISO 8601 time in UTC microseconds; `otherwise` for one that is none."""
    with contextlib.suppress(ValueError, OverflowError):
        found = int(datetime.datetime.fromisoformat(text).timestamp() * 1_000_000)
        return found if found >= 0 else otherwise
    return otherwise
