"""Logouts of people at the issuer, which the hubs of a registry share: one hub gets the logout, each ends the sign-in.

Runs on the event loop; the registry work runs in a thread with a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from cloud.hub.ended_task import end_task
from cloud.hub.limits import SIGN_OUTS_CHECK_INTERVAL_S
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.sign_outs import RegistrySignOuts, SignOutMark
from cloud.lake.faults import RegistryError
from edge.broker.security.sign_outs import EndedSignIn, SignOutNotKept, SignOuts
from edge.output.logs import describe_error

log = logging.getLogger(__name__)


class SharedSignOuts:
    """Logouts in the registry (`SignOutArchive`). Call `start`, later `stop`, inside a running loop."""

    def __init__(self, registry: sa.URL, issuer: str, sign_outs: SignOuts, hint: ChangeHint) -> None:
        """`sign_outs`: those that count at this hub; `hint` is given when another hub gets a logout."""
        self._url = registry
        self._issuer = issuer
        self._sign_outs = sign_outs
        self._hint = hint
        self._seen: SignOutMark | None = None
        self.trouble: str | None = None
        """Why logouts at other hubs are not known here; None if they are."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sign-outs")
        self._registry: RegistrySignOuts | None = None
        self._watching: asyncio.Task[None] | None = None
        sign_outs.archive = self

    async def start(self) -> None:
        """Load all logouts, then follow those at other hubs. Without the registry they are loaded later."""
        await self._look()
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="sign-outs")

    async def stop(self) -> None:
        """Stop following, and close the registry. Idempotent."""
        watching, self._watching = self._watching, None
        await end_task(watching)
        registry, self._registry = self._registry, None
        if registry is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, registry.close)
        self._executor.shutdown()

    async def add(self, ended: EndedSignIn) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, lambda: self._opened().add(ended))
        except (RegistryError, RuntimeError) as error:  # RuntimeError: the executor was shut down
            raise SignOutNotKept(f"the registry cannot be written: {error}; the issuer may send it again") from error

    def _opened(self) -> RegistrySignOuts:
        """Return the registry, opened at first use in its thread. Raises `RegistryError`."""
        if self._registry is None:
            self._registry = RegistrySignOuts(self._url, self._issuer)
        return self._registry

    async def _watch(self) -> None:
        while True:
            await self._hint.wait(SIGN_OUTS_CHECK_INTERVAL_S)
            await self._look()

    async def _look(self) -> None:
        try:
            await self._read()
            self.trouble = None
        except Exception as error:  # keep following after any error
            why = str(error) if isinstance(error, RegistryError) else describe_error(error)
            if self.trouble != why:
                log.warning("logouts at other hubs are not known: %s", why)
            self.trouble = why

    async def _read(self) -> None:
        """Apply the logouts if the table has changed. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        mark = await loop.run_in_executor(self._executor, lambda: self._opened().mark())
        if mark != self._seen:
            found = await loop.run_in_executor(self._executor, lambda: self._opened().read())
            self._sign_outs.apply(found)
            self._seen = mark
