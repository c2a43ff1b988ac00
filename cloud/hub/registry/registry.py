"""One open registry: its directory and its commits, on one database."""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.commits import Commits
from cloud.hub.registry.directory import Directory
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.lineages import Lineages
from cloud.hub.registry.opening import opened
from cloud.hub.registry.writer import Writer


class Registry:
    """For the thread that opens it: every method of it and of its parts raises `WrongThread` in another one."""

    def __init__(self, url: sa.URL, writer_id: str) -> None:
        """Open (or make) the registry at a URL that `cloud.hub.registry.location` has made, for the writer of that id.

        Raises `RegistryError`, whose message says what to do next.
        """
        writer, generations = Writer(writer_id), Generations()
        self._database, self.registry_id = opened(url, writer.start)
        try:
            self.directory = Directory(self._database, writer, generations)
            self.lineages = Lineages(self._database)
            self.commits = Commits(self._database, self.registry_id, writer, generations, self.lineages)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file or the connection; idempotent."""
        self._database.close()
