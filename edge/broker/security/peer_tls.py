"""TLS contexts for outgoing connections: trusted authorities and our own certificate.

The files are read for each attempt to connect, so renewed certificates apply without a restart.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Final

from edge.broker.configuration import TlsFiles
from edge.broker.security.stamp import Stamp, stamp_of
from edge.health.certificates import CertificateError, validity_of

log = logging.getLogger(__name__)

NO_CHECK_TIME: Final = 0x20_0000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: ignore the validity period of certificates."""


class PeerTlsError(OSError):
    """A file cannot be used. The message names the file and the reason."""


def peer_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context that verifies the peer's certificate and name. Raises PeerTlsError. Blocks for milliseconds."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=files.ca)
    except OSError as error:
        raise PeerTlsError(f"authority {files.ca}: {tls_reason(error)}") from error
    if files.ca is not None:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a listed intermediate authority is trusted by itself
    if files.crl is not None:
        try:
            context.load_verify_locations(files.crl)
        except (OSError, ValueError) as error:
            raise PeerTlsError(f"list of revoked certificates {files.crl}: {tls_reason(error)}") from error
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # older versions are broken (RFC 8996)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a peer could request handshakes without end
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate, files.key, password=no_passphrase)
        except (OSError, ValueError) as error:
            raise PeerTlsError(f"certificate {files.certificate} with key {files.key}: {tls_reason(error)}") from error
        if _clock_is_behind(files.certificate):
            log.warning(
                "the clock is behind our own certificate; the peer's validity period is not checked: set the clock"
            )
            context.verify_flags |= NO_CHECK_TIME
    return context


def peer_stamps(files: TlsFiles | None) -> tuple[Stamp, ...]:
    """Return a value that changes when authority, certificate or key is replaced.

    The revocation list is not included, since its issuer replaces it all the time.
    """
    return () if files is None else tuple(stamp_of(path) for path in (files.ca, files.certificate, files.key))


def _clock_is_behind(certificate: str) -> bool:
    """Return True if the clock shows a time before our own certificate was issued, so it has not been set yet.

    A machine without a battery clock starts in the past; an uplink that waited for the clock might wait forever.
    """
    try:
        return time.time() < validity_of(Path(certificate))[0]
    except (OSError, CertificateError):
        return False


def no_passphrase() -> str:
    """Raise ValueError instead of asking the terminal for the passphrase of a protected key."""
    raise ValueError("the key is protected by a passphrase")


def tls_reason(error: Exception) -> str:
    """Return in words why a certificate or key could not be read."""
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "EE_KEY_TOO_SMALL": "the key is too short",
            "CA_MD_TOO_WEAK": "signed with an insecure digest",
        }
        return known.get(error.reason or "", "not a certificate or key in PEM format")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
