"""Enrolment of a gateway by a token, and renewal of its certificate. Functions of this module block."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from cryptography import x509

from bridge.enrolment import (
    CERTIFICATE_PATH,
    RENEWAL_PATH,
    EnrolmentToken,
    IssuedCertificate,
    RefusalReason,
    RenewalRequest,
    enrolment_request,
)
from edge.appliance.identity.exchange import (
    AnswerLost,
    HubEnrolmentClient,
    HubUnreachable,
    NotIssued,
    WrongHub,
    trusting,
)
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.request import fingerprint, gateway_uri_in, only_first, require_ours, signing_request
from edge.appliance.identity.revocation_list import ListUnusable, fetch

A = TypeVar("A")

RETRY_S: Final = (1.0, 2.0, 4.0)
"""Pauses before the next attempts after a lost answer, or when the hub is busy."""
CLOCK_OFF_S: Final = 300.0
"""Difference to the hub's clock beyond which this machine's clock is reported as wrong."""


class EnrolmentResult(NamedTuple):
    """Result of an enrolment."""

    file: Path
    """File with key, certificate and authority."""
    issued: IssuedCertificate
    clock_off_s: float
    """Lead of this machine's clock over the hub's, in seconds."""


def enrol(
    data: Path,
    exchange: HubEnrolmentClient,
    token: EnrolmentToken,
    gateway: str,
    *,
    now: Callable[[], float] = time.time,
    pause: Callable[[float], None] = time.sleep,
) -> EnrolmentResult:
    """Get a certificate for this gateway and store it in its existing data directory.

    It may be called again after any failure, with the same token.

    Raises `HubUnreachable`, `WrongHub`, `NotIssued`, `edge.appliance.identity.request.CertificateMismatch`, OSError.
    """
    try:
        authority = only_first(exchange.authority())
    except (ValueError, x509.InvalidVersion):
        raise WrongHub(f"{exchange.endpoint} answers, but is not a hub at which gateways can enrol") from None
    if fingerprint(authority) != token.authority:
        raise WrongHub(f"{exchange.endpoint} is not the hub of this token: its authority has another fingerprint")
    exchange.require_amqp(_context(authority, now()))
    own = GatewayIdentity(data)
    first = not own.key_was_sent
    key = own.key_to_send()
    try:
        issued = _with_hub_name(
            lambda uri: _request_certificate(
                exchange, enrolment_request(token, gateway, signing_request(key, uri)), authority, now, pause
            )
        )
    except AnswerLost:
        raise
    except Exception:
        if first:
            own.forget_key()
        raise
    if _fingerprint(issued.authority) != token.authority:
        raise WrongHub(f"{exchange.endpoint} issued a certificate of another authority than the token names")
    require_ours(issued, key)
    own.replace(key, issued.certificate, authority)
    with contextlib.suppress(HubUnreachable, WrongHub, NotIssued, ListUnusable, OSError):
        fetch(data, exchange)  # on failure the running gateway tries again
    return EnrolmentResult(own.file, issued, now() - issued.now)


def try_in_order(urls: Iterable[str], ask: Callable[[str], A]) -> tuple[str, A]:
    """Ask at the first of a hub's URLs that answers; return that URL and the result.

    Raises what `ask` raises. If none answers and one request may have arrived, raises `AnswerLost`.
    """
    unreached: HubUnreachable | None = None
    for url in urls:
        try:
            return url, ask(url)
        except HubUnreachable as error:
            if not isinstance(unreached, AnswerLost):
                unreached = error
    raise unreached if unreached is not None else ValueError("no URL of a hub")


def renew(data: Path, exchange: HubEnrolmentClient) -> IssuedCertificate:
    """Get the next certificate of this gateway and replace the current one. It may be called again after any failure.

    Raises `HubUnreachable`, `WrongHub`, `NotIssued`, `edge.appliance.identity.request.CertificateMismatch`, OSError.
    """
    own = GatewayIdentity(data)
    authority = own.authority()
    context = trusting(authority)
    context.load_cert_chain(own.file, own.file)
    key = own.key_to_send()
    request = RenewalRequest(signing_request(key, gateway_uri_in(own.certificate())))
    issued = exchange.ask(RENEWAL_PATH, request, context)
    require_ours(msgspec.structs.replace(issued, authority=authority), key)
    own.replace(key, issued.certificate, authority)
    return issued


def _with_hub_name(ask: Callable[[str], IssuedCertificate]) -> IssuedCertificate:
    """Ask without a name, as only the hub knows the tenant of a token; then by the name that the hub returns, when its
    authority needs one in the request. Raises what `ask` raises."""
    try:
        return ask("")
    except NotIssued as error:
        if error.reason != RefusalReason.NAMELESS.value or not error.gateway_uri:
            raise
        return ask(error.gateway_uri)


def _request_certificate(
    exchange: HubEnrolmentClient,
    request: object,
    authority: str,
    now: Callable[[], float],
    pause: Callable[[float], None],
) -> IssuedCertificate:
    lost: AnswerLost | None = None
    for pause_s in (*RETRY_S, None):
        try:
            return exchange.ask(CERTIFICATE_PATH, request, _context(authority, now()))
        except AnswerLost as error:
            lost = error
        except HubUnreachable:
            if lost is None:
                raise
        except NotIssued as error:
            if error.reason != RefusalReason.UNAVAILABLE.value or pause_s is None:
                raise
        if pause_s is not None:
            pause(pause_s)
    raise lost if lost is not None else HubUnreachable(f"{exchange.endpoint} does not answer")


def _context(authority: str, now: float) -> ssl.SSLContext:
    """Return a context that trusts the authority. It ignores times when this machine's clock, which may start at 1970,
    is outside of the authority's validity. The fingerprint has already identified the hub."""
    known = x509.load_pem_x509_certificate(authority.encode("ascii"))
    possible = known.not_valid_before_utc.timestamp() <= now < known.not_valid_after_utc.timestamp()
    return trusting(authority, check_time=possible)


def _fingerprint(pem: str) -> bytes:
    try:
        return fingerprint(pem)
    except ValueError:
        return b""
