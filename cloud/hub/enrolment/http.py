"""Enrolment over HTTP. Needs no user: requests are authenticated by token or certificate."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.enrolment import (
    ATTESTATION_PATH,
    AUTHORITY_PATH,
    CERTIFICATE_PATH,
    DOCUMENT_BYTES_MAX,
    RENEWAL_PATH,
    REVOKED_PATH,
    Attestation,
    EnrolmentRefusal,
    EnrolmentRequest,
    IssuedCertificate,
    RefusalReason,
    RenewalRequest,
)
from cloud.hub.enrolment import ocsp
from cloud.hub.enrolment.limits import OCSP_REQUEST_BYTES_MAX, OCSP_VALID_S
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.json_http import json_response
from cloud.hub.registry.enrolments import EnrolmentRefused, NamelessRequest
from cloud.lake.faults import RegistryError
from edge.broker.http.body import read_body
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.json_documents import read_document
from edge.broker.http.peer import peer_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

Document = TypeVar("Document", EnrolmentRequest, RenewalRequest, Attestation)
Answer = TypeVar("Answer")

OCSP_PATH: Final = "/enrolment/ocsp"
"""OCSP requests (RFC 6960): POST, or GET with the request in Base64 after a slash."""


STATUS: Final = {
    RefusalReason.MALFORMED: 400,
    RefusalReason.NAMELESS: 409,
    RefusalReason.UNKNOWN: 401,
    RefusalReason.NO_CERTIFICATE: 401,
    RefusalReason.EXPIRED: 403,
    RefusalReason.REVOKED: 403,
    RefusalReason.SPENT: 403,
    RefusalReason.OTHER_GATEWAY: 403,
    RefusalReason.NAME_TAKEN: 409,
    RefusalReason.TOO_MANY: 429,
    RefusalReason.TENANT_FULL: 429,
    RefusalReason.UNAVAILABLE: 503,
}


class KeptAttestation(msgspec.Struct, frozen=True):
    """Answer to an attestation."""

    kept: bool


def routes(enrolment: Enrolment, now: Callable[[], float]) -> list[HttpRoute]:
    """Return the routes of `bridge.enrolment`. `now`: UTC seconds since 1970."""

    async def authority(_request: Request) -> Response:
        return Response(enrolment.authority.pem, media_type="application/x-pem-file", headers=NEVER_CACHED)

    async def revoked(_request: Request) -> Response:
        found = enrolment.revocations()
        if found is None:
            why = "the process with the authority's key has published no revocation list yet\n"
            return Response(why, 503, media_type="text/plain", headers=NEVER_CACHED)
        return Response(found, media_type="application/pkix-crl", headers=NEVER_CACHED)

    async def status(request: Request) -> Response:
        try:
            asked = await _asked_about(request)
        except RequestRefused as refused:
            return Response(str(refused), refused.status, media_type="text/plain")
        kept = (
            NEVER_CACHED if request.method == "POST" else {"cache-control": f"public, max-age={int(OCSP_VALID_S / 2)}"}
        )
        return Response(await enrolment.status_of(asked), media_type=ocsp.MEDIA_TYPE, headers=kept)

    async def certificate(request: Request) -> Response:
        return await respond(_enrolled(request), now)

    async def renewal(request: Request) -> Response:
        return await respond(_renewed(request), now)

    async def _enrolled(request: Request) -> IssuedCertificate:
        return await enrolment.enrol(await _document(request, EnrolmentRequest))

    async def _renewed(request: Request) -> IssuedCertificate:
        return await enrolment.renew(await _document(request, RenewalRequest), peer_of(request).certificate)

    async def attestation(request: Request) -> Response:
        return await respond(_attested(request), now)

    async def _attested(request: Request) -> KeptAttestation:
        await enrolment.attest(await _document(request, Attestation), peer_of(request).certificate)
        return KeptAttestation(kept=True)

    return [
        HttpRoute(AUTHORITY_PATH, authority, methods=PURE),
        HttpRoute(REVOKED_PATH, revoked, methods=PURE),
        HttpRoute(OCSP_PATH, status, methods=("POST",)),
        HttpRoute(OCSP_PATH + "/{question:path}", status, methods=PURE),
        HttpRoute(CERTIFICATE_PATH, certificate, methods=("POST",)),
        HttpRoute(RENEWAL_PATH, renewal, methods=("POST",)),
        HttpRoute(ATTESTATION_PATH, attestation, methods=("POST",)),
    ]


async def _asked_about(request: Request) -> bytes:
    """Read an OCSP request, DER, from HTTP (RFC 6960 appendix A.1). Raises `RequestRefused`."""
    if request.method == "POST":
        return await read_body(request, OCSP_REQUEST_BYTES_MAX, "an OCSP request")
    text: str = request.path_params["question"]
    if len(text) > 2 * OCSP_REQUEST_BYTES_MAX:
        raise RequestRefused(414, f"an OCSP request is larger than {OCSP_REQUEST_BYTES_MAX} bytes")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""  # answered as a malformed request


async def respond(asked: Awaitable[Answer], now: Callable[[], float]) -> Response:
    """Return the response with the document, or with the refusal."""
    document: Answer | EnrolmentRefusal
    try:
        document, status = await asked, 200
    except EnrolmentRefused as refused:
        named = refused.gateway_uri if isinstance(refused, NamelessRequest) else ""
        document, status = (
            EnrolmentRefusal(str(refused), refused.reason.value, now(), named),
            STATUS[refused.reason],
        )
    except RegistryError as error:
        document, status = EnrolmentRefusal(str(error), RefusalReason.UNAVAILABLE.value, now()), 503
    return json_response(document, status)


async def _document(request: Request, kind: type[Document]) -> Document:
    """Read the document in the body of a request. Raises `EnrolmentRefused`."""
    try:
        return await read_document(request, kind, DOCUMENT_BYTES_MAX)
    except RequestRefused as refused:
        raise EnrolmentRefused(RefusalReason.MALFORMED, str(refused)) from None
