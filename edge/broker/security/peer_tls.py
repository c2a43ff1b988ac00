"""TLS towards a remote peer: whom we trust, and what we show of ourselves.

Files are read anew for each attempt to connect, so that renewed ones count without a restart.
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
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: certificates are good at any time."""


class PeerTlsError(OSError):
    """A file cannot be used; the message names it and the reason."""


def peer_context(files: TlsFiles) -> ssl.SSLContext:
    """A context that verifies the peer's certificate and name. Raises PeerTlsError. Blocks for a few milliseconds."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=files.ca)
    except OSError as error:
        raise PeerTlsError(f"authority {files.ca}: {tls_reason(error)}") from error
    if files.ca is not None:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # who is named is trusted, whomever it is subordinate to
    if files.crl is not None:
        try:
            context.load_verify_locations(files.crl)
        except (OSError, ValueError) as error:
            raise PeerTlsError(f"list of revoked certificates {files.crl}: {tls_reason(error)}") from error
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # what is older is broken (RFC 8996)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a peer could have us do one handshake after the other
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate, files.key, password=no_passphrase)
        except (OSError, ValueError) as error:
            raise PeerTlsError(f"certificate {files.certificate} with key {files.key}: {tls_reason(error)}") from error
        if _clock_is_behind(files.certificate):
            log.warning("the clock is behind our own certificate, so it does not judge the peer's: set it")
            context.verify_flags |= NO_CHECK_TIME
    return context


def peer_stamps(files: TlsFiles | None) -> tuple[Stamp, ...]:
    """Return another value after a file of these was replaced that proves who we are, or whom we trust. The list of
    revoked certificates is left out: it is replaced all the time, by the peer."""
    return () if files is None else tuple(stamp_of(path) for path in (files.ca, files.certificate, files.key))


def _clock_is_behind(certificate: str) -> bool:
    """The clock shows a time before our own certificate was made: it is wrong, as it is where a machine has no battery,
    and nobody has set it yet. An uplink that waits for that may wait for ever."""
    try:
        return time.time() < validity_of(Path(certificate))[0]
    except (OSError, CertificateError):
        return False


def no_passphrase() -> str:
    """A protected key would ask the terminal, where nobody is. Raises ValueError."""
    raise ValueError("the key is protected by a passphrase")


def tls_reason(error: Exception) -> str:
    """Why a certificate or key could not be read, for a person."""
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "EE_KEY_TOO_SMALL": "the key is too short",
            "CA_MD_TOO_WEAK": "signed with a broken digest",
        }
        return known.get(error.reason or "", "no certificate or key in PEM")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
