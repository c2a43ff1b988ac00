"""Open registry of a hub: directory, lineages and commits on one database."""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa

from cloud.hub.registry.commits import RegistryCommits
from cloud.hub.registry.database import Database
from cloud.hub.registry.directory import Directory
from cloud.hub.registry.gateway_admission import GatewayAdmission
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.lineages import Lineages
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.request_keys import RequestKeys
from cloud.hub.registry.unfolded import UnfoldedCommits
from cloud.hub.registry.usage import TenantUsage
from cloud.hub.registry.views import SavedViews
from cloud.hub.registry.writer import RegistryWriter


class Registry:
    """Registry for the thread that opens it. Every method of it and of its parts raises `WrongThread` in another
    one."""

    def __init__(self, url: sa.URL, writer_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Open or create the registry at a URL from `cloud.hub.registry.location`, for the writer of that id. `clock`:
        monotonic seconds.

        Raises `RegistryError` with the next step in its message.
        """
        writer = RegistryWriter(writer_id)
        generations = Generations(writer, clock)
        self._database, self.registry_id = open_registry(url, writer.start)
        self._reading = Database(url, reading=True)
        try:
            self._reading.connect()
            admission = GatewayAdmission(self._reading, clock)
            self.directory = Directory(self._database, writer, generations, admission)
            self.views = SavedViews(self._database)
            self.request_keys = RequestKeys(self._database)
            self.usage = TenantUsage(self._database)
            unfolded = UnfoldedCommits(self._database)
            self.lineages = Lineages(self._database, unfolded)
            self.commits = RegistryCommits(self._database, self.registry_id, writer, generations, unfolded)
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        """Place of the registry, without a password."""
        return self._database.where

    def size_bytes(self) -> int:
        """Return the bytes of the database. Raises `RegistryError`."""
        return self._database.transaction(self._database.dialect.size)

    def close(self) -> None:
        """Close the file or the connections; idempotent."""
        self._reading.close()
        self._database.close()
