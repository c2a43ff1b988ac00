"""Reload the users of a running node when its credential file changes.

The commands that add and remove users run in other processes. They share only this file with the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bridge.periodic_task import PeriodicTask
from edge.broker.security.credentials import CredentialFile, CredentialsError, CredentialSnapshot

log = logging.getLogger(__name__)

WATCH_S: Final = 0.5
"""Seconds between two checks for changed users: one pragma, some 10 us."""


class FollowedUsers:
    """Watches the credential file of a data directory. Call `start`, later `stop`, inside a running loop."""

    def __init__(self, data: Path, update: Callable[[CredentialSnapshot], None]) -> None:
        """`update` gets every user after each change. Raises CredentialsError when the file cannot be opened."""
        self._file = CredentialFile.open(data)
        self._update = update
        self._watching = PeriodicTask(
            "users", self._reload_changed, WATCH_S, log=log, failed="users not reloaded", expected=(CredentialsError,)
        )
        self._busy = asyncio.Lock()

    @property
    def trouble(self) -> str | None:
        """Why the last reload failed; None if it did not."""
        return self._watching.trouble

    async def start(self, change: Callable[[CredentialFile], CredentialSnapshot] = CredentialFile.load) -> None:
        """Apply `change` to the file, load all users, then watch the file. Raises CredentialsError."""
        await self.change(change)
        self._watching.start()

    async def change(self, change: Callable[[CredentialFile], CredentialSnapshot]) -> None:
        """Run `change` on a thread and apply the users it returns. Raises CredentialsError."""
        async with self._busy:
            self._update(await asyncio.to_thread(change, self._file))

    def reload_if_changed(self) -> None:
        """Reload changed users at once, as an unknown user tries to log in."""
        if self._busy.locked() or not self._file.changed():
            return
        try:
            self._update(self._file.load())
        except CredentialsError as error:
            log.warning("users not reloaded: %s", error)

    async def stop(self) -> None:
        """Stop watching and close the file."""
        await self._watching.stop()
        async with self._busy:
            self.close()

    def close(self) -> None:
        """Close the file, which is not watched."""
        self._file.close()

    async def _reload_changed(self) -> None:
        async with self._busy:
            if self._file.changed():
                self._update(await asyncio.to_thread(self._file.load))
