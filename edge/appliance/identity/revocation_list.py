"""Fetch the revocation list of the hub's authority (RFC 5280 section 5), and verify it by OpenSSL. It blocks."""

from __future__ import annotations

import base64
import logging
import textwrap
import time
from pathlib import Path
from typing import Final

from bridge.durable_file import replace_file
from bridge.enrolment import REVOKED_PATH
from edge.appliance.identity.exchange import HubEnrolmentClient, WrongHub, trusting
from edge.appliance.identity.location import REVOKED, identity_file
from edge.broker.configuration import TlsFiles
from edge.broker.security.peer_tls import PeerTlsError, peer_context
from edge.health.certificates import validity_of

log = logging.getLogger(__name__)

LIST_BYTES_MAX: Final = 8 << 20
"""Largest size of a list: 200 000 revoked gateways at 40 bytes each."""
CANDIDATE: Final = ".new"
REVOKED_WORDS: Final = "certificate revoked"
"""OpenSSL's error for a peer with a certificate on the list."""


class ListUnusable(Exception):
    """The hub sent a list that is not valid, or not from its authority. The message says why."""


def fetch(data: Path, exchange: HubEnrolmentClient) -> None:
    """Fetch the hub's list and replace the current one, if OpenSSL accepts it as the authority's.

    Raises `HubUnreachable`, `WrongHub`, `NotIssued`, `ListUnusable`, OSError, ValueError.
    """
    own = identity_file(data)
    text = own.read_text("ascii")
    authority = text[text.rindex("-----BEGIN CERTIFICATE-----") :]
    context = trusting(authority, check_time=_clock_is_plausible(own))
    listed = exchange.fetch(REVOKED_PATH, context, LIST_BYTES_MAX)
    candidate = own.with_name(REVOKED + CANDIDATE)
    replace_file(candidate, _pem(listed).encode())
    try:
        _verify_list(candidate, own, exchange)
        candidate.replace(own.with_name(REVOKED))
    finally:
        candidate.unlink(missing_ok=True)


def _verify_list(candidate: Path, own: Path, exchange: HubEnrolmentClient) -> None:
    """Verify the list by a TLS handshake, as connections do. The hub's own certificate may be on it."""
    try:
        exchange.handshake(peer_context(TlsFiles(ca=str(own), crl=str(candidate))))
    except PeerTlsError as error:
        raise ListUnusable(f"{exchange.endpoint} sent no list of revoked certificates: {error}") from error
    except WrongHub as error:
        if REVOKED_WORDS not in str(error):
            raise ListUnusable(f"the list of revoked certificates is not valid: {error}") from error
        log.warning("%s presents a revoked certificate: nothing is sent there", exchange.endpoint)


def _clock_is_plausible(own: Path) -> bool:
    """Return True when this machine's clock is plausible enough to check the validity of certificates."""
    return time.time() >= validity_of(own)[0]


def _pem(listed: bytes) -> str:
    encoded = "\n".join(textwrap.wrap(base64.b64encode(listed).decode(), 64))
    return f"-----BEGIN X509 CRL-----\n{encoded}\n-----END X509 CRL-----\n"
