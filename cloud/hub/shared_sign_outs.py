"""Logouts of people at the issuer, which the hubs of a registry share: one hub gets the logout, each ends the sign-in.

Runs on the event loop; the registry work runs in a thread with a connection of its own.
"""

from __future__ import annotations

import logging
from functools import partial

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.limits import SIGN_OUTS_CHECK_INTERVAL_S
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.sign_outs import RegistrySignOuts, SignOutMark
from cloud.hub.registry_thread import RegistryThread
from cloud.lake.faults import RegistryError
from edge.broker.security.limits import SIGN_OUTS_MAX
from edge.broker.security.sign_outs import EndedSignIn, SignOutNotKept, SignOuts

log = logging.getLogger(__name__)


class SharedSignOuts:
    """Logouts in the registry (`SignOutArchive`). Call `start`, later `stop`, inside a running loop."""

    def __init__(self, registry: sa.URL, issuer: str, sign_outs: SignOuts, hint: ChangeHint) -> None:
        """`sign_outs`: those that count at this hub; `hint` is given when another hub gets a logout."""
        self._sign_outs = sign_outs
        self._seen: SignOutMark | None = None
        self._unwritten: dict[EndedSignIn, None] = {}
        """Logouts that the registry lacks, the oldest first."""
        self._thread = RegistryThread("sign-outs", lambda: RegistrySignOuts(registry, issuer))
        self._following = PeriodicTask(
            "sign-outs", self._follow, SIGN_OUTS_CHECK_INTERVAL_S,
            log=log, failed="logouts are not exchanged with other hubs", expected=(RegistryError,), wait=hint.wait,
        )  # fmt: skip
        sign_outs.keep_in(self)

    @property
    def trouble(self) -> str | None:
        """Why logouts at other hubs are not known here, or those of here not there; None if they are."""
        return self._following.trouble

    async def start(self) -> None:
        """Load all logouts, then follow those at other hubs. Raises `RegistryError`."""
        await self._thread.open()
        await self._read()
        self._following.start()

    async def stop(self) -> None:
        """Stop following, and close the registry. Idempotent."""
        await self._following.stop()
        await self._thread.close()

    async def add(self, ended: EndedSignIn) -> None:
        self._unwritten[ended] = None  # first: the request may be cancelled
        if len(self._unwritten) > SIGN_OUTS_MAX:
            del self._unwritten[next(iter(self._unwritten))]
        try:
            await self._write()
        except RegistryError as error:
            raise SignOutNotKept(f"the registry cannot be written: {error}; it is written later") from error

    async def _follow(self) -> None:
        await self._write()
        await self._read()

    async def _write(self) -> None:
        """Write the logouts that the registry lacks. Raises `RegistryError`."""
        for ended in list(self._unwritten):
            await self._thread.run(partial(RegistrySignOuts.add, ended=ended))
            self._unwritten.pop(ended, None)

    async def _read(self) -> None:
        """Apply the logouts if the table has changed. Raises `RegistryError`."""
        mark = await self._thread.run(RegistrySignOuts.mark)
        if mark != self._seen:
            self._sign_outs.apply(await self._thread.run(RegistrySignOuts.read))
            self._seen = mark
