"""Identity of a gateway over HTTP: its certificates, and their end.

``GET  /api/v1/identities/<gateway>``       certificates, tokens that they were issued for, attestation, last address
``POST /api/v1/gateways/<gateway>/revoke``  revoke its certificates; it is disconnected within a second
``POST /api/v1/gateways/<gateway>/forget``  forget a gateway without a valid certificate: its name becomes free

Reading needs the right to view, changes the right to manage: for one's own tenant, or with ``$fleet`` and ``?tenant=``
for every tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from cryptography import x509
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import note_change
from cloud.hub.enrolment.http import STATUS
from cloud.hub.enrolment.limits import CERTIFICATES_SHOWN_MAX
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.json_http import answering, json_response
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.enrolments import (
    CertificateRecord,
    EnrolmentRefused,
    Enrolments,
    ForgetRefusal,
    NotForgotten,
    RegisteredIdentity,
    TokenRecord,
)
from cloud.hub.scope import scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.model.authorization import Operation

answered: Final = answering(
    {
        EnrolmentRefused: lambda refused: STATUS[refused.reason],
        NotForgotten: lambda refused: 404 if refused.why is ForgetRefusal.UNKNOWN else 409,
    }
)


class CertificateDocument(msgspec.Struct, kw_only=True):
    """Certificate of a gateway."""

    serial: str
    """Serial number, hexadecimal."""
    issuer: str
    """Name of the authority (RFC 4514); empty if only the connection was seen."""
    begins_at: int
    ends_at: int
    revoked_at: int | None
    state: str
    """``valid``, ``ended`` or ``revoked``."""
    token: str | None
    """Id of the token it was issued for; null for a renewal."""
    token_made_at: int | None


class IdentityDocument(msgspec.Struct, kw_only=True):
    """Identity of a gateway."""

    tenant: str
    gateway: str
    remote: str
    """Address of its last connection; empty if it has never connected."""
    certificates: list[CertificateDocument]
    """The latest first."""
    attested_at: int | None
    attestation: Any
    """Facts that it measured about itself when it was set up (`bridge.enrolment.Attestation`); null without any."""


def gateway_routes(enrolment: Enrolment, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _IdentityApi(enrolment, access)
    return [
        HttpRoute("/api/v1/identities/{name:path}", answered(api.show), methods=PURE),
        HttpRoute("/api/v1/gateways/{name:path}/revoke", answered(api.revoke, "gateway.revoke"), methods=("POST",)),
        HttpRoute("/api/v1/gateways/{name:path}/forget", answered(api.forget, "gateway.forget"), methods=("POST",)),
    ]


class _IdentityApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, enrolment: Enrolment, access: HttpAccess) -> None:
        self._enrolment = enrolment
        self._access = access

    async def show(self, request: Request) -> Response:
        tenant, name = await self._gateway(request, Operation.VIEW)
        now_us = self._enrolment.now_us()

        def work(registry: Enrolments) -> IdentityDocument | None:
            found = registry.identity(tenant, name, CERTIFICATES_SHOWN_MAX)
            return None if found is None else _identity_document(tenant, name, found, now_us)

        document = await self._enrolment.ask(work)
        if document is None:
            raise RequestRefused(404, f"gateway {name} of tenant {tenant} is unknown", code="gateway-not-found")
        return json_response(document)

    async def revoke(self, request: Request) -> Response:
        tenant, name = await self._gateway(request, Operation.MANAGE)
        now_us = self._enrolment.now_us()
        count = await self._enrolment.ask(lambda registry: registry.revoke(tenant, name, now_us))
        note_change(request, after={"certificates": count})
        if not count:
            raise RequestRefused(
                404, f"gateway {name} of tenant {tenant} has no valid certificate", code="no-valid-certificate"
            )
        return json_response({"tenant": tenant, "gateway": name, "certificates": count})

    async def forget(self, request: Request) -> Response:
        tenant, name = await self._gateway(request, Operation.MANAGE)
        now_us = self._enrolment.now_us()
        at_us = await self._enrolment.ask(lambda registry: registry.forget(tenant, name, now_us))
        return json_response({"tenant": tenant, "gateway": name, "forgotten_at": at_us // 1_000})

    async def _gateway(self, request: Request, operation: Operation) -> tuple[str, str]:
        """Return tenant and name of the gateway in the path. Raises `RequestRefused`."""
        scope, name = await scope_of(self._access, request, operation), request.path_params["name"]
        tenant = request.query_params.get("tenant", scope.tenant or DEFAULT_TENANT)
        if not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant} is outside your scope")
        note_change(request, subject=name, tenant=tenant)
        return tenant, name


def _identity_document(tenant: str, name: str, found: RegisteredIdentity, now_us: int) -> IdentityDocument:
    tokens = {each.serial: each for each in found.tokens if each.serial is not None}
    told_at, document = found.attestation or (None, None)
    return IdentityDocument(
        tenant=tenant,
        gateway=name,
        remote=found.remote,
        certificates=[_certificate_document(each, tokens, now_us) for each in found.certificates],
        attested_at=None if told_at is None else told_at // 1_000,
        attestation=None if document is None else msgspec.json.decode(document),
    )


def _certificate_document(
    record: CertificateRecord, tokens: Mapping[str, TokenRecord], now_us: int
) -> CertificateDocument:
    token = tokens.get(record.serial)
    ended = "ended" if record.revoked_at is None else "revoked"
    return CertificateDocument(
        serial=record.serial,
        issuer=x509.load_pem_x509_certificate(record.pem.encode()).issuer.rfc4514_string() if record.pem else "",
        begins_at=record.begins_at // 1_000,
        ends_at=record.ends_at // 1_000,
        revoked_at=None if record.revoked_at is None else record.revoked_at // 1_000,
        state="valid" if record.good(now_us) else ended,
        token=token.id if token is not None else None,
        token_made_at=token.created_at // 1_000 if token is not None else None,
    )
