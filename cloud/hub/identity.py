"""Identity of a hub: the certificate of its listeners, the authority, and the enrolment of gateways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bridge.enrolment import ALPN
from bridge.resources.endpoint import authority as host_and_port
from cloud.hub.acceptor import Acceptor
from cloud.hub.core import HubCore
from cloud.hub.enrolment.authority import KnownAuthority, OwnAuthority
from cloud.hub.enrolment.certificate_renewal import CertificateRenewal
from cloud.hub.enrolment.delegated_key import DelegatedKey
from cloud.hub.enrolment.files import FOLDER, OCSP_KEY, load_authority
from cloud.hub.enrolment.remote_authority import RemoteAuthority
from cloud.hub.enrolment.revocation_record import RevocationRecord
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.enrolment.signature_request import SignerPurpose
from cloud.hub.older_copy import OlderCopyNotice
from cloud.hub.opening import ListenerCredentials
from cloud.hub.receipts.signer import ReceiptSigner, certify_receipts
from cloud.hub.registry.notices import NoticeTopic
from cloud.hub.system_http import ends_at_in, ends_at_of
from edge.broker.listeners.tls import Certificates


class HubIdentity:
    """Certificates of one hub. `obtain`, `open`, then `keep` at intervals, later `close`."""

    def __init__(
        self, core: HubCore, own: ListenerCredentials | None, acceptor: Acceptor, older_copy: OlderCopyNotice
    ) -> None:
        """`own`: None if gateways cannot enrol. `acceptor` closes the connections of revoked gateways."""
        self._core, self._configuration = core, core.configuration
        self.tls = self._configuration.tls if own is None else own.server.listener
        """Files of the listeners' certificate; None without TLS."""
        self.certificates: Certificates | None = None
        """Certificate of the listeners; None without TLS, and before `obtain`."""
        self.authority = own.authority if own is not None else None
        """Authority of the gateways' certificates; None if gateways cannot enrol."""
        self._remote: RemoteAuthority | None = None
        """Process with the authority's key; None if the key is here."""
        self.enrolment: Enrolment | None = None
        """None if gateways cannot enrol."""
        self.renewal: CertificateRenewal | None = None
        """None without a certificate of the hub's own."""
        if own is not None:
            signer = self._signer(own.authority)
            self.enrolment = self._enrol(signer, own, acceptor, older_copy)
            self.renewal = CertificateRenewal(own.server, self._remote, self.enrolment)
            acceptor.set_policy(self.enrolment)

    async def obtain(self, stop: asyncio.Event) -> None:
        """Load the listeners' certificate; have a missing one signed first. Raises `NotSigned`, `RegistryError`,
        `AuthorityFileError`, `TlsError`."""
        if self._remote is not None and self.renewal is not None:
            await self._remote.open()
            await self.renewal.obtain(stop)
        if self.tls is not None:
            self.certificates = Certificates(self.tls, protocols=() if self._configuration.dev else (ALPN,))

    async def open(self) -> None:
        """Open the enrolment of gateways. Raises `RegistryError`."""
        if self.enrolment is not None:
            await self.enrolment.open()
        if self.renewal is not None:
            await self.renewal.store()

    async def keep(self) -> None:
        """Renew the certificate when it is due, and load a renewed one."""
        if self.renewal is not None:
            await self.renewal.keep()
        if self.certificates is not None:
            self.certificates.check()

    async def close(self) -> None:
        """End enrolment and renewal, each also after an error of another one. Idempotent."""
        async with contextlib.AsyncExitStack() as ends:
            for part in (self._remote, self.enrolment, self.renewal):
                if part is not None:
                    ends.push_async_callback(part.close)

    def receipt_signer(self) -> ReceiptSigner:
        """Return what signs landing receipts. Without enrolment an authority is made at the first signature."""
        data, enroller = self._configuration.data, self._configuration.enroller
        load = partial(load_authority, data, enroller.authority_files if enroller is not None else None)
        remote = self._remote
        certify = remote.certifier(SignerPurpose.RECEIPTS) if remote is not None else partial(certify_receipts, load)
        return ReceiptSigner(data / FOLDER, lambda: load(time.time()), certify)

    def ends_at(self) -> dict[str, Callable[[], float | None]]:
        """Return functions that read when certificates end, in seconds since 1970, by the name of the certificate."""
        ends: dict[str, Callable[[], float | None]] = {}
        if self.enrolment is not None:
            ends["authority"] = partial(ends_at_of, self.enrolment.authority.certificate)
        if self.tls is not None:
            ends["server"] = partial(ends_at_in, Path(self.tls.certificate))
        return ends

    def gateway_url(self, port: int) -> str:
        """Return the URL of this hub for gateways. `port` of its AMQP listener."""
        enroller = self._configuration.enroller
        name = str(enroller.names[0]) if enroller is not None and enroller.names else socket.gethostname()
        return f"amqps://{host_and_port(name, port)}"

    def _signer(self, authority: KnownAuthority) -> OwnAuthority | RemoteAuthority:
        """Return what signs for the hub: the authority, or the process with its key."""
        if isinstance(authority, OwnAuthority):
            return authority
        self._remote = RemoteAuthority(authority, self._core.registry, hint=self._core.hint(NoticeTopic.SIGNED))
        return self._remote

    def _enrol(
        self,
        signer: OwnAuthority | RemoteAuthority,
        own: ListenerCredentials,
        acceptor: Acceptor,
        older_copy: OlderCopyNotice,
    ) -> Enrolment:
        """Make the enrolment of gateways."""
        core = self._core
        return Enrolment(
            signer,
            core.registry,
            life_s=own.enroller.life_s,
            revoked=acceptor.review,
            forgotten=core.fleet.forget,
            tenants=self._configuration.tenants,
            registration=own.registration,
            record=RevocationRecord(self._configuration.data / FOLDER),
            older=older_copy.add,
            hint=core.hint(NoticeTopic.REVOCATIONS),
            ocsp_key=self._ocsp_key(),
        )

    def _ocsp_key(self) -> DelegatedKey | None:
        """Return the hub's key for OCSP; None if the authority's key is here."""
        if (remote := self._remote) is None:
            return None
        file = self._configuration.data / FOLDER / OCSP_KEY
        return DelegatedKey(file, lambda: remote.known, remote.certifier(SignerPurpose.OCSP))
