"""Earlier versions of a gateway's own configuration: the last ones, with the time and the person.

They are for people who want one back. So a version that cannot be written is logged, and the change stays in force.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.hidden import hides
from edge.configuration.file import ConfigurationFile, RepositoryError

log = logging.getLogger(__name__)

FOLDER: Final = "history"
"""Folder in that of the configuration."""
VERSIONS_KEPT_MAX: Final = 50
"""Versions that are kept, some kB each."""
FORMAT: Final = 1
ON_THIS_MACHINE: Final = "a command on this machine"
"""Person of a change without a user: the shell has no name that could be trusted."""


@hides("resources")
class KeptVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version, as its file has it."""

    format: int = FORMAT
    version: int
    at: float
    """Time of the change, UTC seconds since 1970."""
    by: str
    """User who made it, or `ON_THIS_MACHINE`; empty if it is not known."""
    resources: list[dict[str, Any]]


class ConfigurationHistory:
    """Versions in a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        """`folder`: that of the configuration."""
        self._folder = folder / FOLDER

    def add(self, version: int, resources: list[dict[str, Any]], by: str) -> None:
        """Keep a version; the oldest ones are deleted. A failure is logged."""
        kept = KeptVersion(version=version, at=time.time(), by=by, resources=resources)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._file(version).write(kept)
            for path in self._paths()[:-VERSIONS_KEPT_MAX]:
                path.unlink(missing_ok=True)
        except (OSError, RepositoryError) as error:
            log.warning("version %d of the configuration is in force, but not in its history: %s", version, error)

    def add_missing(self, version: int, resources: list[dict[str, Any]]) -> None:
        """Keep the version before a change, if an older program made it."""
        if version and not self._file(version).path.exists():
            self.add(version, resources, "")

    def versions(self) -> Iterator[KeptVersion]:
        """Yield the versions that can be read, the latest first."""
        for path in reversed(self._paths()):
            with contextlib.suppress(RepositoryError):
                kept = self._file(int(path.stem)).read()
                if kept is not None:
                    yield kept

    def read(self, version: int) -> KeptVersion | None:
        """Return a version; None if it is not kept. Raises `RepositoryError`."""
        return self._file(version).read()

    def _file(self, version: int) -> ConfigurationFile[KeptVersion]:
        path = self._folder / f"{version:010}.json"
        return ConfigurationFile(path, KeptVersion, FORMAT, damaged="it is an earlier version, and may be deleted")

    def _paths(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.glob("*.json") if path.stem.isdigit())
