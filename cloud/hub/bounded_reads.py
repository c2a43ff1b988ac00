"""Reads of the registry on a thread of their own, as many at a time as may wait for it.

While the registry cannot be read, each attempt takes seconds. So a failure is the answer to all requests that wait for
the thread, and to those of the next seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry_thread import RegistryClosed, RegistryThread, database_of
from cloud.lake.faults import RegistryError

T = TypeVar("T")

FAILED_S: Final = 2.0
"""Time after a failure in which no other attempt is made."""


class ReadsBusy(RegistryClosed):
    """Too many reads wait."""


class BoundedReads:
    """Runs reads one after the other. `open`, later `close`."""

    def __init__(self, name: str, registry: sa.URL, waiting_max: int, clock: Callable[[], float]) -> None:
        """`waiting_max`: reads that wait or run at a time; `clock`: monotonic seconds."""
        self._thread = RegistryThread(name, database_of(registry, reading=True))
        self._name = name
        self._waiting_max = waiting_max
        self._waiting = self._held = 0
        self._clock = clock
        self._failed: tuple[RegistryError, float] | None = None
        """Last failure, and the time until which it is the answer."""

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._thread.open()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        await self._thread.close()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold a place for several reads, one after the other: none of them is refused. Raises `ReadsBusy`."""
        if self._held >= self._waiting_max:
            raise ReadsBusy(f"{self._name}: {self._held} are in progress; try again in some seconds")
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def run(self, work: Callable[[Database], T]) -> T:
        """Run a read. Raises `ReadsBusy`, `RegistryError`, and what the work raises."""
        self._require_working()
        if self._waiting >= self._waiting_max:
            raise ReadsBusy(f"{self._name}: {self._waiting} requests wait; try again in some seconds")
        self._waiting += 1
        try:
            return await self._thread.run(lambda database: self._attempt(database, work))
        finally:
            self._waiting -= 1

    def _attempt(self, database: Database, work: Callable[[Database], T]) -> T:
        """Run a read on the thread, unless one before it has just failed."""
        self._require_working()
        try:
            return work(database)
        except RegistryError as error:
            self._failed = error, self._clock() + FAILED_S
            raise

    def _require_working(self) -> None:
        if self._failed is not None and self._clock() < self._failed[1]:
            raise RegistryError(str(self._failed[0]))
