"""Fetch the list of what the hub's authority has revoked (RFC 5280 section 5), and have OpenSSL look at it. Blocks."""

from __future__ import annotations

import base64
import logging
import textwrap
import time
from pathlib import Path
from typing import Final

from bridge.enrolment import REVOKED_PATH
from edge.appliance.identity.exchange import HubEnrolmentClient, WrongHub, trusting
from edge.appliance.identity.location import REVOKED, identity_file
from edge.broker.configuration import TlsFiles
from edge.broker.security.peer_tls import PeerTlsError, peer_context
from edge.broker.security.private_file import write_private
from edge.health.certificates import validity_of

log = logging.getLogger(__name__)

LIST_BYTES_MAX: Final = 8 << 20
"""Of a list: an entry is 40 bytes, so 200 000 gateways that are gone."""
CANDIDATE: Final = ".new"
REVOKED_WORDS: Final = "certificate revoked"
"""OpenSSL's, of a peer that is on the list."""


class ListUnusable(Exception):
    """What the hub sent is no list of its authority's that counts now; the message says why."""


def fetch(data: Path, exchange: HubEnrolmentClient) -> None:
    """Get the hub's list and keep it in place of the one that is there, if OpenSSL takes it for its authority's.

    Raises `HubUnreachable`, `WrongHub`, `NotIssued`, `ListUnusable`, OSError, ValueError.
    """
    own = identity_file(data)
    text = own.read_text("ascii")
    authority = text[text.rindex("-----BEGIN CERTIFICATE-----") :]
    context = trusting(authority, check_time=_clock_counts(own))
    listed = exchange.fetch(REVOKED_PATH, context, LIST_BYTES_MAX)
    candidate = own.with_name(REVOKED + CANDIDATE)
    write_private(candidate, _pem(listed))
    try:
        _look_at(candidate, own, exchange)
        candidate.replace(own.with_name(REVOKED))
    finally:
        candidate.unlink(missing_ok=True)


def _look_at(candidate: Path, own: Path, exchange: HubEnrolmentClient) -> None:
    """Shake hands by it, as connections will. That the hub's certificate is on it is what a list is for."""
    try:
        exchange.handshake(peer_context(TlsFiles(ca=str(own), crl=str(candidate))))
    except PeerTlsError as error:
        raise ListUnusable(f"{exchange.endpoint} sent no list of revoked certificates: {error}") from error
    except WrongHub as error:
        if REVOKED_WORDS not in str(error):
            raise ListUnusable(f"the list of revoked certificates does not count: {error}") from error
        log.warning("%s shows a certificate that was revoked: nothing is sent there", exchange.endpoint)


def _clock_counts(own: Path) -> bool:
    """Certificates may be judged by this machine's clock."""
    return time.time() >= validity_of(own)[0]


def _pem(listed: bytes) -> str:
    encoded = "\n".join(textwrap.wrap(base64.b64encode(listed).decode(), 64))
    return f"-----BEGIN X509 CRL-----\n{encoded}\n-----END X509 CRL-----\n"
