"""Bundles over HTTP, for the updates of gateways.

``GET /bundles/<name>``  a bundle (`X.raucb`) or its index (`X.raucb.blocks`), also in ranges (RFC 9110 section 14);
                         ``?sha256=`` requires this bundle, and not another one of the name

A gateway of any tenant may fetch every bundle with its certificate. With ``--dev`` every client may.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from bridge.hub_bundles import PATH, SHA256
from cloud.hub.acceptor import Acceptor
from cloud.hub.bundles.downloads import BundleDownloads, DownloadsFull
from cloud.hub.gateway_certificate import gateway_of
from cloud.hub.json_http import answering
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

log = logging.getLogger(__name__)

answered: Final = answering({DownloadsFull: 503})


def bundle_routes(downloads: BundleDownloads, acceptor: Acceptor) -> list[HttpRoute]:
    """Return the routes of this module. `acceptor` knows which certificates are accepted."""

    async def fetch(request: Request) -> Response:
        gateway = gateway_of(request, acceptor)
        name: str = request.path_params["name"]
        sha256 = request.query_params.get(SHA256)
        asked, condition = request.headers.get("range"), request.headers.get("if-range")
        try:
            found = await downloads.begin(gateway, name, sha256, asked, condition)
        except OSError as error:
            log.warning("bundle %s cannot be read: %s", name, error.strerror or error)
            raise RequestRefused(503, "the bundle cannot be read now") from None
        if found is None:
            raise RequestRefused(404, "this hub has no such bundle", next_step="add it: waypost hub bundle add")
        return found

    return [HttpRoute(PATH + "/{name}", answered(fetch), methods=PURE)]
