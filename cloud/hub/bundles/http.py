"""Bundles over HTTP, for the updates of gateways.

``GET /bundles/<name>``  a bundle (`X.raucb`) or its index (`X.raucb.blocks`), also in ranges (RFC 9110 section 14)

A gateway of any tenant may fetch every bundle with its certificate. With ``--dev`` every client may.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from bridge.hub_bundles import PATH
from cloud.hub.acceptor import Acceptor
from cloud.hub.bundles.downloads import BundleDownloads, DownloadsFull
from cloud.hub.groups import Key
from cloud.hub.json_http import answering
from cloud.hub.peers import DEFAULT_TENANT, InvalidPeer, read_certificate
from edge.broker.http.access import remote_host
from edge.broker.http.peer import peer_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

log = logging.getLogger(__name__)

_STEP: Final = "a gateway fetches bundles with the certificate of its enrolment"

answered: Final = answering({DownloadsFull: 503})


def bundle_routes(downloads: BundleDownloads, acceptor: Acceptor) -> list[HttpRoute]:
    """Return the routes of this module. `acceptor` knows which certificates are accepted."""

    async def fetch(request: Request) -> Response:
        gateway = _gateway_of(request, acceptor)
        name: str = request.path_params["name"]
        asked, condition = request.headers.get("range"), request.headers.get("if-range")
        try:
            found = await downloads.begin(gateway, name, asked, condition)
        except OSError as error:
            log.warning("bundle %s cannot be read: %s", name, error.strerror or error)
            raise RequestRefused(503, "the bundle cannot be read now") from None
        if found is None:
            raise RequestRefused(404, "this hub has no such bundle", next_step="add it: waypost hub bundle add")
        return found

    return [HttpRoute(PATH + "/{name}", answered(fetch), methods=PURE)]


def _gateway_of(request: Request, acceptor: Acceptor) -> Key:
    """Return the gateway that a request's certificate names. Raises RequestRefused."""
    certificate: Mapping[str, Any] | None = peer_of(request).certificate
    if acceptor.dev:
        return DEFAULT_TENANT, remote_host(request)
    if not certificate:
        raise RequestRefused(403, "the client certificate is missing", next_step=_STEP)
    try:
        shown = read_certificate(certificate)
    except InvalidPeer as why:
        raise RequestRefused(403, str(why), next_step=_STEP) from None
    policy = acceptor.authority
    refusal = policy.refusal(shown.peer, shown.serial) if policy is not None else None
    if refusal is not None:
        raise RequestRefused(403, refusal)
    peer_of(request).set_user(shown.peer.identity)
    return shown.peer.tenant, shown.peer.name
