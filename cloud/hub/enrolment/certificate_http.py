"""The hub's own certificate over HTTP, to revoke it when its key was stolen.

``GET  /api/v1/hub/certificate``         the certificate that this hub shows, with an `ETag`
``POST /api/v1/hub/certificate/revoke``  revoke it; the hub makes another one within seconds

Each hub of a registry has a certificate of its own: the request goes to the hub with the stolen key. It needs the right
on ``$fleet``. With `If-Match` a repetition does not revoke the next certificate too.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change
from cloud.hub.enrolment.files import ServerCertificate
from cloud.hub.enrolment.gateway_http import answered
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.json_http import json_response
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.scope import FLEET, scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.preconditions import precondition_of, tag_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

log = logging.getLogger(__name__)

CERTIFICATE: Final = "/api/v1/hub/certificate"


class HubCertificateDocument(msgspec.Struct, kw_only=True):
    """Certificate of the hub's listeners. Times are milliseconds since 1970, UTC."""

    serial: str
    """Serial number, hexadecimal."""
    begins_at: int
    ends_at: int
    etag: str
    """State of the certificate, for `If-Match` of a revocation."""


class RevokedHubCertificate(msgspec.Struct, kw_only=True):
    """Certificate that this hub no longer shows."""

    serial: str
    """Serial number, hexadecimal."""


def certificate_routes(enrolment: Enrolment, access: HttpAccess, own: ServerCertificate) -> list[HttpRoute]:
    """Return the routes of this module. `own`: certificate of the hub's listeners."""
    api = _CertificateApi(enrolment, access, own)
    return [
        HttpRoute(CERTIFICATE, answered(api.show), methods=PURE),
        HttpRoute(CERTIFICATE + "/revoke", answered(api.revoke, "hub-certificate.revoke"), methods=("POST",)),
    ]


class _CertificateApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, enrolment: Enrolment, access: HttpAccess, own: ServerCertificate) -> None:
        self._enrolment = enrolment
        self._access = access
        self._own = own

    async def show(self, request: Request) -> Response:
        await self._require_fleet(request, Operation.VIEW)
        document = await self._enrolment.ask(lambda _: self._document())
        if document is None:
            raise _no_certificate()
        answer = json_response(document)
        answer.headers["ETag"] = document.etag
        return answer

    async def revoke(self, request: Request) -> Response:
        await self._require_fleet(request, Operation.MANAGE)
        note_change(request, subject="", tenant="")
        condition = precondition_of(request)

        def work(registry: Enrolments) -> str | None:
            document = self._document()
            condition.check(None if document is None else document.etag)
            return None if document is None else self._revoke(registry)

        serial = await self._enrolment.ask(work)
        if serial is None:
            raise _no_certificate()
        note_change(request, before={"serial": serial})
        return json_response(RevokedHubCertificate(serial=serial))

    def _document(self) -> HubCertificateDocument | None:
        """Read the certificate, on the registry's thread; None without a valid one of the hub's authority."""
        shown = self._own.shown()
        if shown is None:
            return None
        return HubCertificateDocument(
            serial=shown.serial,
            begins_at=int(shown.begins_at * 1_000),
            ends_at=int(shown.ends_at * 1_000),
            etag=tag_of(shown.serial),
        )

    def _revoke(self, registry: Enrolments) -> str | None:
        shown = self._own.shown()
        if shown is None:
            return None
        begins_us, ends_us = (int(at_s * 1_000_000) for at_s in (shown.begins_at, shown.ends_at))
        now_us = self._enrolment.now_us()
        registry.revoke_hub_certificate(shown.serial, shown.key_id, begins_us, ends_us, now_us, shown.pem)
        try:
            self._own.file.unlink(missing_ok=True)
        except OSError as error:
            what = f"the certificate is revoked, and cannot be removed: {error.strerror}"
            step = "remove authority/server.pem from the data directory of the hub, then it makes another one"
            raise RequestRefused(500, what, next_step=step) from None
        log.warning("the hub's own certificate %s was revoked", shown.serial)
        return shown.serial

    async def _require_fleet(self, request: Request, operation: Operation) -> None:
        """Raise RequestRefused unless the user has the right on the whole fleet."""
        if (await scope_of(self._access, request, operation)).tenant is not None:
            raise RequestRefused(
                403,
                f"this is about all tenants, which requires the right {operation.value}:{FLEET}",
                next_step=f"ask an operator with manage:{FLEET}",
            )


def _no_certificate() -> RequestRefused:
    what = "the hub has no valid certificate of its own authority"
    return RequestRefused(404, what, code="no-valid-certificate", next_step="it makes one within seconds")
