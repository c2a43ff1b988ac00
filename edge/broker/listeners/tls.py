"""TLS for listeners: certificates that are reloaded when their files change, and names of client certificates.

A listener reads `Certificates.context` at each connection, so a renewed certificate applies to new connections only.
If the new files cannot be used, the current certificate stays in use and the error is logged.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from edge.broker.configuration import DeviceTls, TlsListener, TlsVersion
from edge.broker.listeners.revocations import ClientRevocations
from edge.broker.security.certified_devices import (
    UNRECOGNIZED,
    CertifiedDevices,
    DeviceCandidate,
    RecognizedCertificate,
)
from edge.broker.security.peer_tls import no_passphrase, tls_reason
from edge.broker.security.stamp import Stamp, stamp_of

if TYPE_CHECKING:
    from edge.broker.listeners.ocsp.certificate_status import CertificateStatus

log = logging.getLogger(__name__)

VERSIONS: Final = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}
"""Configurable minimum versions; older versions are broken (RFC 8996)."""


NoteServerName = Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]
"""Called in a handshake, with the server name that the client requests; None without one."""


class TlsError(Exception):
    """Certificate files cannot be used. The message names the file and the reason."""


class CertificateReviewer(Protocol):
    """Listener that knows the certificates of its open connections."""

    def review(self) -> None:
        """Close connections with a certificate that a list revokes now."""
        ...

    def close_revoked(self, digest: str) -> None:
        """Close connections with a certificate that an OCSP answer revokes."""
        ...

    def close_untrusted(self) -> None:
        """Close connections of devices that their certificates no longer prove."""
        ...

    def close_unproven(self, identities: Set[str]) -> None:
        """Close connections with these identities if their certificates prove another one now, or none."""
        ...

    def refresh(self, status: CertificateStatus) -> None:
        """Ask about certificates again after the end of their OCSP answer."""
        ...


class Certificates:
    """Certificate, key and trusted authorities of a TLS listener, from files."""

    def __init__(
        self,
        files: TlsListener,
        protocols: Sequence[str] = (),
        data: Path | None = None,
    ) -> None:
        """Read the files. `protocols`: offered by ALPN. `data`: folder for answers about client certificates. Raises
        TlsError. Blocks for a few milliseconds."""
        self.files = files
        self._data = data
        self._protocols = protocols
        self._server_name: NoteServerName | None = None
        self.trouble: str | None = None
        """Why the current files are not in use; None if they are."""
        self._stamps = _stamps(files)
        self._devices: CertifiedDevices | None = None
        """Devices of the hub that have certificates."""
        self._configured: list[bytes] = []
        """Certificates of `clientCa` in DER; only with devices of the hub."""
        self.context = self._make_context()
        self.revocations = ClientRevocations(_crl_of(files), files.client_ca, time.time)
        self.reviewers: list[CertificateReviewer] = []
        """Called by `check` or `follow` when other certificates may be revoked, and regularly with OCSP."""
        self.status: CertificateStatus | None = None
        """Status of client certificates by OCSP; None without it."""
        self._follow_status(files)

    def note_server_names(self, note: NoteServerName | None) -> None:
        """Call `note` with the server name of each handshake from now on (RFC 6066 section 3); None: ignore them."""
        self._server_name = self.context.sni_callback = note

    def admit_devices(self, devices: CertifiedDevices) -> None:
        """Trust the authorities of these devices for client certificates too, and follow their changes."""
        self._devices = devices
        devices.watch(self._follow_devices)
        devices.call_to_review(self._close_unproven)
        if devices.certificates:
            self._follow_devices()

    def recognize(self, certificate: bytes) -> RecognizedCertificate:
        """Return what a verified client certificate (DER) proves by the authorities of the hub."""
        return UNRECOGNIZED if self._devices is None else self._devices.recognize(certificate, self._configured)

    def provision(self, candidate: DeviceCandidate, decided: Callable[[bool], None]) -> None:
        """Let a device in that is not registered; `decided` is called with the outcome, at once or later."""
        if self._devices is None:
            decided(False)
        else:
            self._devices.provision(candidate, decided)

    def follow(self, files: TlsListener) -> None:
        """Apply the revocation list of a changed configuration, and its OCSP."""
        self._follow_status(files)
        if self.revocations.follow(_crl_of(files)):
            self._review()

    def close(self) -> None:
        """Stop asking about client certificates."""
        status, self.status = self.status, None
        if status is not None:
            status.close()

    def check(self) -> bool:
        """Read changed files. Return True if a new certificate is in use."""
        if self.revocations.check():
            self._review()
        if self.status is not None:
            for each in self.reviewers:
                each.refresh(self.status)
            self.status.write_if_due()
        stamps = _stamps(self.files)
        if stamps == self._stamps:
            return False
        self._stamps = stamps  # also if they are invalid: logged once, not at every check
        try:
            self.context = self._make_context()
        except TlsError as error:
            self.trouble = f"the current certificate stays in use: {error}"
            log.warning("%s", self.trouble)
            return False
        self.trouble = None
        log.info("reloaded certificate %s for new connections", self.files.certificate)
        return True

    def _make_context(self) -> ssl.SSLContext:
        context = make_context(self.files, self._protocols)
        context.sni_callback = self._server_name
        authorities = self._devices.certificates if self._devices is not None else ()
        self._configured = _configured(self.files) if authorities else []
        if authorities:
            known = {_key_of(each) for each in self._configured}
            further = [each for each in authorities if _key_of(each) not in known]
            if further:
                context.load_verify_locations(cadata=b"".join(further))
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if context.verify_mode is ssl.CERT_NONE:
                context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _close_unproven(self, identities: Set[str]) -> None:
        for each in self.reviewers:
            each.close_unproven(identities)

    def _follow_devices(self) -> None:
        """Apply changed authorities: to new connections, and to those of devices that are not trusted any more."""
        try:
            self.context = self._make_context()
        except (TlsError, ssl.SSLError) as error:
            log.warning("the authorities of the hub's devices do not apply to new connections: %s", error)
        for each in self.reviewers:
            each.close_untrusted()

    def _follow_status(self, files: TlsListener) -> None:
        wanted = files.client_ocsp if isinstance(files, DeviceTls) and files.client_ca is not None else None
        if wanted == (self.status.settings if self.status is not None else None):
            return
        self.close()
        if wanted is not None and files.client_ca is not None:
            from edge.broker.listeners.ocsp.certificate_status import (  # noqa: PLC0415 - cryptography takes 10 MiB
                CertificateStatus,
            )

            self.status = CertificateStatus(wanted, files.client_ca, self._data, time.time, self._close_revoked)

    def _review(self) -> None:
        for each in self.reviewers:
            each.review()

    def _close_revoked(self, digest: str) -> None:
        for each in self.reviewers:
            each.close_revoked(digest)


def _configured(files: TlsListener) -> list[bytes]:
    """Return the certificates of `clientCa` in DER. Raises TlsError."""
    if files.client_ca is None:
        return []
    from cryptography import x509  # noqa: PLC0415 - 10 MiB, only with authorities of the hub
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    try:
        found = x509.load_pem_x509_certificates(Path(files.client_ca).read_bytes())
    except (OSError, ValueError) as error:
        raise TlsError(f"client authority {files.client_ca}: {error}") from error
    return [each.public_bytes(Encoding.DER) for each in found]


def _key_of(certificate: bytes) -> tuple[bytes, bytes]:
    """Return subject and public key of a certificate, in DER."""
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415

    found = x509.load_der_x509_certificate(certificate)
    key = found.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found.subject.public_bytes(), key


def _crl_of(files: TlsListener) -> str | None:
    return files.client_crl if isinstance(files, DeviceTls) else None


def make_context(files: TlsListener, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """Return a server context for these files. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[files.minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if protocols:
        context.set_alpn_protocols(list(protocols))
    try:
        # OpenSSL would ask the terminal for the passphrase of a key.
        context.load_cert_chain(files.certificate, files.key, password=no_passphrase)
    except (OSError, ValueError) as error:
        raise TlsError(f"certificate {files.certificate} with key {files.key}: {tls_reason(error)}") from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            raise TlsError(f"client authority {files.client_ca}: {tls_reason(error)}") from error
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a listed intermediate authority is trusted by itself
        context.verify_mode = ssl.CERT_REQUIRED if files.client_required else ssl.CERT_OPTIONAL
    return context


def subject_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the common name (RFC 4519 section 2.3) of a verified client certificate; None without one.

    Of several names the last is the most specific.
    """
    names = [
        value
        for relative_name in (certificate or {}).get("subject", ())
        for key, value in relative_name
        if key == "commonName"
    ]
    return str(names[-1]) if names and names[-1] else None


def _stamps(files: TlsListener) -> tuple[Stamp, ...]:
    return tuple(stamp_of(path) for path in (files.certificate, files.key, files.client_ca))
