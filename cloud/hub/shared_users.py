"""Users that the hubs of a registry share: a change at one hub takes effect at all of them.

Runs on the event loop. The registry work runs in a thread with a connection of its own. Users of a data directory from
before are moved to the registry at the first start with it, if the registry has never had users.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.limits import USERS_CHECK_INTERVAL_S
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.users import RegistryUsers
from cloud.hub.registry_thread import RegistryClosed, RegistryThread
from cloud.lake.faults import RegistryError
from edge.broker.security.credentials import (
    FILE,
    FILE_MODE,
    CredentialFile,
    CredentialsError,
    CredentialSnapshot,
    CredentialStore,
    CredentialsUnavailable,
    CredentialUser,
)
from edge.output.text import line

log = logging.getLogger(__name__)

MOVED: Final = f"{FILE}.moved"
"""Name of a credential file after its users were moved to the registry; also the mark that they are there."""
NAMES_SHOWN_MAX: Final = 20
"""Names of users in one line of the log."""


class SharedUsers:
    """Follows the users in the registry. Call `start`, later `stop`, inside a running loop. It replaces
    `edge.broker.security.followed_users.FollowedUsers`."""

    def __init__(
        self,
        registry: sa.URL,
        data: Path,
        update: Callable[[CredentialSnapshot], None],
        hint: ChangeHint,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`update` gets every user after each change; `hint` is given when another hub or process changes users;
        `clock`: monotonic seconds."""
        self._data = data
        self._update = update
        self._hint = hint
        self._clock = clock
        self._asked_s = float("-inf")
        """Time of the last look for an unknown user."""
        self._seen = -1
        """Revision that was read last."""
        self._thread = RegistryThread("users", lambda: RegistryUsers(registry))
        self._following = PeriodicTask(
            "users", self._follow, USERS_CHECK_INTERVAL_S,
            log=log, failed="users not reloaded", expected=(CredentialsError, RegistryClosed), wait=hint.wait,
        )  # fmt: skip
        self._busy = asyncio.Lock()

    @property
    def trouble(self) -> str | None:
        """Why the last reload failed; None if it did not."""
        return self._following.trouble

    async def start(self) -> None:
        """Open the registry, load all users, then follow their changes. Raises `CredentialsError`."""
        try:
            await self._thread.open()
        except RegistryError as error:
            raise CredentialsError(str(error)) from error
        await self._thread.run(lambda store: _move_users(self._data, store))
        await self._reload()
        self._following.start()

    async def change(self, change: Callable[[CredentialStore], CredentialSnapshot]) -> None:
        """Run `change` on the registry's thread, and apply the users after it. Raises `CredentialsError`."""
        try:
            await self._thread.run(change)
            await self._reload()
        except RegistryClosed as error:
            raise CredentialsUnavailable(str(error)) from error

    def reload_if_changed(self) -> None:
        """Look for changed users now, as an unknown user tries to log in: once in `USERS_CHECK_INTERVAL_S`, because
        strangers try names too, and the next look of `_follow` comes within that time."""
        now_s = self._clock()
        if now_s - self._asked_s >= USERS_CHECK_INTERVAL_S:
            self._asked_s = now_s
            self._hint.give()

    async def stop(self) -> None:
        """Stop following, and close the registry. Idempotent."""
        await self._following.stop()
        await self._thread.close()

    async def _follow(self) -> None:
        if await self._thread.run(RegistryUsers.revision) != self._seen:
            await self._reload()

    async def _reload(self) -> None:
        async with self._busy:
            snapshot, self._seen = await self._thread.run(RegistryUsers.read)
            self._update(snapshot)


def _move_users(data: Path, store: RegistryUsers) -> None:
    """Move the users of a data directory to a registry that has never had users, and mark the directory. Raises
    `CredentialsError`."""
    found: list[CredentialUser] = []
    if (data / FILE).is_file():
        with CredentialFile.open(data) as file:
            found = list(file.load().users.values())
    added = store.add_first(found)
    try:
        if (data / FILE).is_file():
            (data / FILE).replace(data / MOVED)
        (data / MOVED).touch(FILE_MODE)
    except OSError as error:
        why = f"{data / FILE} cannot be renamed: {error.strerror}"
        raise CredentialsError(f"{why}; give the hub write access") from error
    if added:
        log.info("%d users of %s are in the registry now", len(added), data / FILE)
    elif found:
        names = ", ".join(line(user.name) for user in found[:NAMES_SHOWN_MAX])
        words = (
            "%d users of %s were not added to the registry, which has users of its own (%s); add those that you need"
        )
        log.warning(words, len(found), data / FILE, names)
