"""Keeps the certificate of the hub's listeners: signed here, or by the process with the authority's key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from bridge.periodic_task import end_task
from cloud.hub.enrolment.authority import new_key
from cloud.hub.enrolment.files import AuthorityFileError, ServerCertificate
from cloud.hub.enrolment.limits import AUTHORITY_AWAITED_S, DELEGATED_KEY_RETRY_S
from cloud.hub.enrolment.remote_authority import NotSigned, RemoteAuthority
from cloud.hub.enrolment.service import Enrolment
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds between two requests while the hub has no certificate."""


class CertificateRenewal:
    """Certificate of the listeners, from the start to the end of a hub. `obtain`, then `keep` at intervals, later
    `close`."""

    def __init__(
        self,
        own: ServerCertificate,
        remote: RemoteAuthority | None,
        enrolment: Enrolment,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`remote`: process with the authority's key; None if the key is here. `enrolment` stores the certificate.
        `now`: UTC seconds since 1970."""
        self.own = own
        self._remote = remote
        self._enrolment = enrolment
        self._now = now
        self._retry_at = float("-inf")
        self._renewing: asyncio.Task[None] | None = None

    async def obtain(self, stop: asyncio.Event, awaited_s: float = AUTHORITY_AWAITED_S) -> None:
        """Have a first certificate signed, if the hub has no valid one. Raises `NotSigned` after `awaited_s`, and
        `AuthorityFileError`."""
        if self._remote is None or self.own.is_usable(self._now()):
            return
        clock = asyncio.get_running_loop().time
        deadline, warned = clock() + awaited_s, False
        while True:
            try:
                await self._renew(self._remote)
                break
            except (NotSigned, RegistryError) as error:
                if stop.is_set() or clock() >= deadline:
                    raise NotSigned(f"the hub has no certificate yet: {error}") from error
                if not warned:
                    log.warning("waiting for the certificate of this hub: %s", error)
                warned = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await stop.wait()

    async def keep(self) -> None:
        """Renew the certificate when it is due. A process with the key is asked in the background."""
        if self._remote is None:
            try:
                if self.own.keep(self._now()):
                    log.info("renewed the hub's own certificate")
                    await self.store()
            except AuthorityFileError as error:
                log.warning("the hub's own certificate cannot be renewed: %s", error)
            return
        now = self._now()
        busy = self._renewing is not None and not self._renewing.done()
        waits = now < self._retry_at and self.own.file.exists()
        if not busy and not waits and self.own.is_due(now):
            self._renewing = asyncio.get_running_loop().create_task(self._renew_due(self._remote))

    async def store(self) -> None:
        """Store the certificate in the registry, for OCSP."""
        shown = self.own.shown()
        try:
            if shown is not None:
                await self._enrolment.store_own_certificate(shown)
        except RegistryError as error:
            log.warning("the hub's own certificate is not in the registry, so OCSP does not know it: %s", error)

    async def close(self) -> None:
        """End a renewal in progress. Idempotent."""
        task, self._renewing = self._renewing, None
        await end_task(task)

    async def _renew_due(self, remote: RemoteAuthority) -> None:
        try:
            await self._renew(remote)
        except (NotSigned, RegistryError, AuthorityFileError) as error:
            self._retry_at = self._now() + DELEGATED_KEY_RETRY_S
            log.warning("the hub's own certificate cannot be renewed: %s", error)
        else:
            log.info("renewed the hub's own certificate")
            await self.store()

    async def _renew(self, remote: RemoteAuthority) -> None:
        """Have a certificate for a new key signed. Raises `NotSigned`, `RegistryError`, `AuthorityFileError`."""
        key = new_key()
        self.own.install(key, await remote.server_certificate(key.public_key(), self.own.names))
