"""TLS of consoles: authorities of the system or of a file, or the one certificate that the user has accepted."""

from __future__ import annotations

import hashlib
import socket
import ssl
from http.client import HTTPSConnection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509


class CertificateChanged(OSError):
    """The console has another key than that of the accepted certificate."""


def tls_context(ca: str = "", *, pinned: bool = False) -> ssl.SSLContext:
    """Return the TLS context for a console. `ca`: authorities (PEM); `pinned`: the certificate is compared instead.

    Raises ssl.SSLError for what is not a certificate.
    """
    context = ssl.create_default_context(cadata=ca or None)
    if pinned:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class PinnedConnection(HTTPSConnection):
    """Connection to a console with an accepted certificate. Nothing is sent to another one."""

    def __init__(self, host: str, port: int | None, timeout: float, certificate: str) -> None:
        super().__init__(host, port, timeout=timeout, context=tls_context(pinned=True))
        self._certificate = certificate

    def connect(self) -> None:
        """Connect. Raises OSError; `CertificateChanged` for another key."""
        super().connect()
        if not isinstance(self.sock, ssl.SSLSocket) or not _same_key(self.sock, self._certificate):
            self.close()
            raise CertificateChanged("its certificate is not the accepted one")


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of a certificate as browsers show it: ``AB:CD:…``. Raises ValueError for several."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - 50 ms

    der = one_certificate(pem).public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(der).digest().hex(":").upper()


def one_certificate(pem: str) -> x509.Certificate:
    """Return the only certificate of a text. Raises ValueError for another number of them.

    OpenSSL trusts every certificate of a text. A second one would be trusted unseen.
    """
    from cryptography import x509  # noqa: PLC0415 - 50 ms

    found = x509.load_pem_x509_certificates(pem.encode())
    if len(found) != 1:
        raise ValueError(f"expected one certificate, found {len(found)}")
    return found[0]


def shown_certificate(host: str, port: int, timeout_s: float) -> str:
    """Return the certificate of a server without verifying it (PEM). Raises OSError."""
    with (
        socket.create_connection((host, port), timeout=timeout_s) as plain,
        tls_context(pinned=True).wrap_socket(plain, server_hostname=host) as secure,
    ):
        return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"")


def _same_key(connected: ssl.SSLSocket, accepted: str) -> bool:
    """Return True for the accepted certificate, or one of the same key: a gateway renews its own and keeps the key."""
    shown, known = connected.getpeercert(binary_form=True) or b"", ssl.PEM_cert_to_DER_cert(accepted)
    if shown == known:
        return True
    from cryptography import x509  # noqa: PLC0415 - 50 ms, and only after a renewal

    keys = [x509.load_der_x509_certificate(each).public_key() for each in (shown, known)]
    return keys[0] == keys[1]
