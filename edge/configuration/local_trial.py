"""Trial of a change that a person makes on the console: it is taken back unless that person keeps it in time.

A change may cut off the very console that made it. The configuration before is in a file of its own, which is on disk
before the change. After a start of the program the trial is over, as the program may have failed because of it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.hidden import hides
from edge.broker.store.lock import is_held
from edge.configuration.file import ConfigurationFile
from edge.configuration.repository import Repository
from edge.output.log_history import event

log = logging.getLogger(__name__)

FORMAT: Final = 1


@hides("previous")
class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Version on trial, and what it replaced."""

    format: int = FORMAT
    version: int
    """Version on trial. With another one in force the trial is over, as there was a later change."""
    previous: list[dict[str, Any]]
    by: str
    """User who tries it."""
    seconds: float
    """Time to keep it."""


def end_trial_at_start(data: Path) -> None:
    """Take a change back that was on trial when the program ended. Raises `RepositoryError`."""
    if not is_held(data):
        LocalTrial(Repository(data)).revert("the gateway was started again before it was kept")


class LocalTrial:
    """Trial of one gateway's own configuration; at most one at a time."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._file = ConfigurationFile(
            repository.folder / "trial.json", TriedChange, FORMAT, damaged="delete it; the present version then stays"
        )

    def current(self) -> TriedChange | None:
        """Return the trial, or None. Raises `RepositoryError`."""
        trial = self._file.read()
        return trial if trial is not None and trial.version == self._repository.version else None

    def begin(self, by: str, seconds: float) -> None:
        """Note that the next version is on trial. Raises `RepositoryError`."""
        previous = self._repository.documents()
        version = self._repository.version + 1
        self._file.write(TriedChange(version=version, previous=previous, by=by, seconds=seconds))

    def keep(self) -> None:
        """End the trial; its version stays. Raises `RepositoryError`."""
        self._file.delete()

    def revert(self, why: str) -> bool:
        """Restore the version before. Return False without a trial. Raises `RepositoryError`."""
        trial = self.current()
        if trial is not None:
            self._repository.restore(trial.previous, f"{trial.by}, taken back")
            log.warning(
                "version %d of the configuration is taken back: %s", trial.version, why, extra=event("configuration")
            )
        self._file.delete()
        return trial is not None
