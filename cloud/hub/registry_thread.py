"""Thread with a connection to the registry of its own, for a part of a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.lake.faults import RegistryError


class OpenedTables(Protocol):
    """Tables of the registry on one connection."""

    def close(self) -> None:
        """Close the connection."""


Part = TypeVar("Part", bound=OpenedTables)
T = TypeVar("T")


class RegistryClosed(RegistryError):
    """The hub starts or stops; the request may be repeated in some seconds."""


class RegistryThread(Generic[Part]):
    """Runs functions on its thread, one after the other. `open`, later `close`."""

    def __init__(self, name: str, connect: Callable[[], Part]) -> None:
        """`connect` opens the part of the registry, on the thread; it raises `RegistryError`."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._connect = connect
        self._part: Part | None = None

    @property
    def is_open(self) -> bool:
        """Return whether `run` may be called."""
        return self._part is not None

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        self._part = await asyncio.get_running_loop().run_in_executor(self._executor, self._connect)

    async def close(self) -> None:
        """Close the registry, after the work that waits for the thread. Idempotent."""
        part, self._part = self._part, None
        if part is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, part.close)
        self._executor.shutdown(wait=False)

    def submit(self, work: Callable[[Part], T]) -> asyncio.Future[T]:
        """Queue `work` for the thread, and return its future result. Raises `RegistryClosed`."""
        part = self._part
        if part is None:
            raise RegistryClosed("the hub is starting or stopping; try again in some seconds")
        return asyncio.get_running_loop().run_in_executor(self._executor, work, part)

    async def run(self, work: Callable[[Part], T]) -> T:
        """Run `work` on the thread. Raises `RegistryClosed`, and what `work` raises."""
        return await self.submit(work)


def database_of(registry: sa.URL, *, reading: bool = False) -> Callable[[], Database]:
    """Return a function that opens a registry. A connection that only reads delays no writer."""
    return lambda: Database(registry, reading=True) if reading else open_registry(registry).database
