"""Thread with a connection to the registry of its own, for a part of a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry

T = TypeVar("T")


class RegistryClosed(Exception):
    """The hub starts or stops; the request may be repeated in some seconds."""


class RegistryThread:
    """Runs functions on its thread. `open`, later `close`. One that only reads delays no writer."""

    def __init__(self, name: str, registry: sa.URL, *, reading: bool = False) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._url = registry
        self._reading = reading
        self._database: Database | None = None

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        self._database = await asyncio.get_running_loop().run_in_executor(self._executor, self._make)

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        database, self._database = self._database, None
        if database is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, database.close)
        self._executor.shutdown(wait=False)

    async def run(self, work: Callable[[Database], T]) -> T:
        """Run `work` on the thread. Raises `RegistryClosed`, and what `work` raises."""
        database = self._database
        if database is None:
            raise RegistryClosed("the hub is starting or stopping; try again in some seconds")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, database)

    def _make(self) -> Database:
        return Database(self._url, reading=True) if self._reading else open_registry(self._url).database
