"""Users that the hubs of a registry share: a change at one hub takes effect at all of them.

Runs on the event loop. The registry work runs in a thread with a connection of its own. Users of a data directory from
before are moved to the registry at the first start with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from cloud.hub.limits import USERS_CHECK_INTERVAL_S
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.users import RegistryUsers
from cloud.lake.faults import RegistryError
from edge.broker.security.credentials import (
    FILE,
    CredentialFile,
    CredentialsError,
    CredentialSnapshot,
    CredentialStore,
)
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

MOVED: Final = f"{FILE}.moved"
"""Name of a credential file after its users were moved to the registry."""


class SharedUsers:
    """Follows the users in the registry. Call `start`, later `stop`, inside a running loop. It replaces
    `edge.broker.security.followed_users.FollowedUsers`."""

    def __init__(
        self, registry: sa.URL, data: Path, update: Callable[[CredentialSnapshot], None], hint: ChangeHint
    ) -> None:
        """`update` gets every user after each change; `hint` is given when another hub or process changes users."""
        self._url = registry
        self._data = data
        self._update = update
        self._hint = hint
        self.trouble: str | None = None
        """Why the last reload failed; None if it did not."""
        self._seen = -1
        """Revision that was read last."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="users")
        self._store: RegistryUsers | None = None
        self._watching: asyncio.Task[None] | None = None
        self._busy = asyncio.Lock()

    async def start(self) -> None:
        """Open the registry, load all users, then follow their changes. Raises `CredentialsError`."""
        loop = asyncio.get_running_loop()
        try:
            self._store = await loop.run_in_executor(self._executor, RegistryUsers, self._url)
        except RegistryError as error:
            raise CredentialsError(str(error)) from error
        await loop.run_in_executor(self._executor, _move_users, self._data, self._store)
        await self._reload()
        self._watching = loop.create_task(self._watch(), name="users")

    async def change(self, change: Callable[[CredentialStore], CredentialSnapshot]) -> None:
        """Run `change` on the registry's thread, and apply the users after it. Raises `CredentialsError`."""
        store = self._store
        if store is None:
            raise CredentialsError("the hub is starting or stopping; try again in some seconds")
        await asyncio.get_running_loop().run_in_executor(self._executor, change, store)
        await self._reload()

    def reload_if_changed(self) -> None:
        """Look for changed users now, as an unknown user tries to log in."""
        self._hint.give()

    async def stop(self) -> None:
        """Stop following, and close the registry. Idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        store, self._store = self._store, None
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, store.close)
        self._executor.shutdown()

    async def _reload(self) -> None:
        store = self._store
        if store is None:
            return
        async with self._busy:
            snapshot, self._seen = await asyncio.get_running_loop().run_in_executor(self._executor, store.read)
            self._update(snapshot)

    async def _watch(self) -> None:
        store, loop = self._store, asyncio.get_running_loop()
        while store is not None:
            await self._hint.wait(USERS_CHECK_INTERVAL_S)
            try:
                if await loop.run_in_executor(self._executor, store.revision) != self._seen:
                    await self._reload()
                self.trouble = None
            except Exception as error:  # keep following after any error
                why = str(error) if isinstance(error, CredentialsError) else describe_error(error)
                if self.trouble != why:
                    log.warning("users not reloaded: %s", why)
                self.trouble = why


def _move_users(data: Path, store: RegistryUsers) -> None:
    """Move the users of a data directory to the registry. A user that is there already stays as it is there. Raises
    `CredentialsError`."""
    if not (data / FILE).is_file():
        return
    with CredentialFile.open(data) as file:
        found = file.load().users
    added = store.add_missing(found.values())
    try:
        (data / FILE).replace(data / MOVED)
    except OSError as error:
        raise CredentialsError(
            f"{data / FILE} cannot be renamed: {error.strerror}; give the hub write access"
        ) from error
    if found:
        words = "%d of %d users of %s are in the registry now; the others were there already"
        log.info(words, len(added), len(found), data / FILE)
