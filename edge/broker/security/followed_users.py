"""The users of a running node: changes of its credential file are followed.

The commands that add and remove users and the node are different processes; the file between them is all they share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from edge.broker.security.credentials import CredentialFile, CredentialsError, CredentialSnapshot
from edge.output.logs import said

log = logging.getLogger(__name__)

WATCH_S: Final = 0.5
"""How often a running node looks whether a user was added or removed: one pragma, some 10 us."""


class FollowedUsers:
    """Follows the credential file of a data directory. `start`, later `stop`; inside a running loop."""

    def __init__(self, data: Path, update: Callable[[CredentialSnapshot], None]) -> None:
        """`update` gets every user after each change. Raises CredentialsError when the file cannot be opened."""
        self._file = CredentialFile.open(data)
        self._update = update
        self.trouble: str | None = None
        """Why changes are not followed; None: they are."""
        self._watching: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()

    async def start(self, change: Callable[[CredentialFile], CredentialSnapshot] = CredentialFile.load) -> None:
        """Take over those there are, after a `change`; then follow the file. Raises CredentialsError."""
        await self.change(change)
        self._watching = asyncio.create_task(self._watch(), name="users")

    async def change(self, change: Callable[[CredentialFile], CredentialSnapshot]) -> None:
        """Change the file, on a thread, and take over what `change` returns. Raises CredentialsError."""
        async with self._busy:
            self._update(await asyncio.to_thread(change, self._file))

    def look_again(self) -> None:
        """Take a change up now instead of at the next look: somebody nobody knows wants to come in."""
        if self._busy.locked() or not self._file.changed():
            return
        try:
            self._update(self._file.load())
        except CredentialsError as error:
            log.warning("the users are unchanged: %s", error)

    async def stop(self) -> None:
        """Stop following, and close the file."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        async with self._busy:
            self._file.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                async with self._busy:
                    if self._file.changed():
                        self._update(await asyncio.to_thread(self._file.load))
                self.trouble = None
            except Exception as error:  # whatever it is, the next look comes
                why = str(error) if isinstance(error, CredentialsError) else said(error)
                if self.trouble != why:
                    log.warning("the users are unchanged: %s", why)
                self.trouble = why
