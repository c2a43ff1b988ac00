"""Tenant of a gateway that downloads artefacts: by the certificate of its connection, as for its uplink."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from bridge.enrolment import RefusalReason
from cloud.hub.acceptor import CertificatePolicy
from cloud.hub.peers import DEFAULT_TENANT, InvalidPeer, read_certificate
from cloud.hub.registry.enrolments import EnrolmentRefused
from edge.broker.http.peer import peer_of

_WHY: Final = "a gateway downloads artefacts with its certificate, on the port of its uplink"


class GatewayCertificates:
    """Finds the tenant of a gateway that sent a request."""

    def __init__(self, policy: CertificatePolicy | None, *, dev: bool) -> None:
        """`policy`: of the certificates; None: every certificate that the listener accepts is good. `dev`: a gateway
        without a certificate belongs to the default tenant."""
        self._policy = policy
        self._dev = dev

    async def tenant(self, request: Request) -> str:
        """Return the tenant. Raises `EnrolmentRefused`."""
        certificate = peer_of(request).certificate
        if not certificate:
            if self._dev:
                return DEFAULT_TENANT
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, f"the client certificate is missing: {_WHY}")
        try:
            found = read_certificate(certificate)
        except InvalidPeer as fault:
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, f"{fault}: {_WHY}") from None
        if self._policy is not None and (why := self._policy.refusal(found.peer, found.serial)) is not None:
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, why)
        return found.peer.tenant
