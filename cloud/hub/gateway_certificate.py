"""Gateway that sends an HTTP request: by the certificate of its connection, as for its uplink."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from cloud.hub.acceptor import Acceptor
from cloud.hub.groups import Key
from cloud.hub.peers import DEFAULT_TENANT, InvalidPeer, read_certificate
from edge.broker.http.access import remote_host
from edge.broker.http.peer import peer_of
from edge.broker.http.refusal import RequestRefused

_STEP: Final = "a gateway sends this with the certificate of its enrolment, also on the port of its uplink"


def gateway_of(request: Request, acceptor: Acceptor) -> Key:
    """Return tenant and name of the gateway that a request's certificate names. Raises RequestRefused (401).

    `acceptor`: knows which certificates are accepted. With ``--dev``, a client without one is a gateway of the default
    tenant.
    """
    certificate = peer_of(request).certificate
    if not certificate:
        if acceptor.dev:
            return DEFAULT_TENANT, remote_host(request)
        raise RequestRefused(401, "the client certificate is missing", next_step=_STEP)
    try:
        shown = read_certificate(certificate)
    except InvalidPeer as why:
        raise RequestRefused(401, str(why), next_step=_STEP) from None
    policy = acceptor.authority
    if policy is not None and (refusal := policy.refusal(shown.peer, shown.serial)) is not None:
        raise RequestRefused(401, refusal, next_step=_STEP)
    peer_of(request).set_user(shown.peer.identity)
    return shown.peer.tenant, shown.peer.name
