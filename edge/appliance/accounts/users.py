"""The users of a running gateway: those of resources are written to the credential file, changes of it are followed.

`waypost device` and the gateway are different processes; the file between them is all they share.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.sasl.scram import derive
from edge.broker.configuration import ConfiguredUser
from edge.broker.security.credentials import (
    BY_RESOURCE,
    CredentialFile,
    CredentialsError,
    Snapshot,
    User,
    new_user,
    with_rules,
    with_secret,
)
from edge.output.logs import said

log = logging.getLogger(__name__)

WATCH_S: Final = 0.5
"""How often a running gateway looks whether a device was added or removed: one pragma, some 10 us."""


class LiveUsers:
    """Follows the credential file of a data directory. `start`, later `stop`; inside a running loop."""

    def __init__(self, data: Path, update: Callable[[Snapshot], None]) -> None:
        """`update` gets every user after each change. Raises CredentialsError when the file cannot be opened."""
        self._file = CredentialFile.open(data)
        self._update = update
        self.trouble: str | None = None
        """Why changes are not followed; None: they are."""
        self._watching: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()

    async def start(self, configured: Sequence[ConfiguredUser]) -> None:
        """Take over users of the configuration, then follow the file. Raises CredentialsError."""
        await self.configure(configured)
        self._watching = asyncio.create_task(self._watch(), name="users")

    async def configure(self, configured: Sequence[ConfiguredUser]) -> None:
        """Make the users that came from resources those of this configuration; some 10 ms a password, on a thread.

        Raises CredentialsError.
        """
        async with self._busy:
            self._update(await asyncio.to_thread(apply_resources, self._file, configured))

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


def apply_resources(file: CredentialFile, configured: Sequence[ConfiguredUser]) -> Snapshot:
    """Write the users of resources into the file and take those away that have no resource any more.

    A user made by hand is not touched: its resource is not in force, which is said. Raises CredentialsError.
    """
    found = file.load().users
    wanted = {user.name: user for user in configured}
    changed: list[User] = []
    for name, described in wanted.items():
        existing = found.get(name)
        if existing is not None and existing.origin != BY_RESOURCE:
            log.warning(
                "user %s was made with `waypost device add`: its MessagingUser is not in force until that is removed",
                name,
            )
            continue
        user = _updated(existing or new_user(name, origin=BY_RESOURCE), described)
        if user != existing:
            changed.append(user)
    gone = [name for name, user in found.items() if user.origin == BY_RESOURCE and name not in wanted]
    if changed:
        file.put(changed)
    if gone:
        file.remove(gone)
    return file.load()


def _updated(user: User, described: ConfiguredUser) -> User:
    user = with_rules(user, described.rules)
    if described.password is None:
        return msgspec.structs.replace(user, secrets=())
    if user.secrets and derive(described.password, user.salt, user.iterations) == user.secrets[-1].keys:
        return user
    return with_secret(msgspec.structs.replace(user, secrets=()), described.password, at_s=time.time())
