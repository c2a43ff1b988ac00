"""TLS towards a remote peer: whom we trust, and what we show of ourselves.

Files are read anew for each attempt to connect, so that renewed ones count without a restart.
"""

from __future__ import annotations

import ssl

from edge.broker.configuration import TlsFiles


class PeerTlsError(OSError):
    """A file cannot be used; the message names it and the reason."""


def peer_context(files: TlsFiles) -> ssl.SSLContext:
    """A context that verifies the peer's certificate and name. Raises PeerTlsError. Blocks for a few milliseconds."""
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=files.ca)
    except OSError as error:
        raise PeerTlsError(f"authority {files.ca}: {tls_reason(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # what is older is broken (RFC 8996)
    if files.certificate is not None:
        try:
            context.load_cert_chain(files.certificate, files.key, password=no_passphrase)
        except (OSError, ValueError) as error:
            raise PeerTlsError(f"certificate {files.certificate} with key {files.key}: {tls_reason(error)}") from error
    return context


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
