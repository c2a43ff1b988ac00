"""HTTP routes of the bridge, for `waypost bridge`.

====================================  ======  ========================================================
``GET /api/v1/bridge``                view    `documents.BridgeStatus`
``POST /api/v1/bridge/pause``         manage  close `?connector=NAME`, or all, until ``/resume``
``POST /api/v1/bridge/state``         manage  request a manifest of the messages accepted until now
``POST /api/v1/bridge/test``          manage  probe `?connector=NAME`, or all: list of `documents.ProbeResult`
``GET /api/v1/topology``              view    `topology.TopologyStatus` of the router network
====================================  ======  ========================================================

All but the last two answer with the status. An unknown connector gets 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from edge.appliance.crossing.documents import BridgeStatus
from edge.appliance.crossing.probe import probe
from edge.appliance.crossing.status import BridgeWatch
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.json_documents import json_answer
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.router.uplinks import AnyConnector, is_to_hub


def bridge_routes(watch: BridgeWatch, status: Callable[[], BridgeStatus], access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the routes of a gateway's bridge."""
    bridge = _Bridge(watch, status)
    view, manage = needing(access.require_view), needing(access.require_manage)
    return [
        HttpRoute("/api/v1/bridge", view(bridge.show), methods=PURE),
        HttpRoute("/api/v1/topology", view(bridge.topology), methods=PURE),
        HttpRoute("/api/v1/bridge/pause", manage(bridge.pause), methods=("POST",)),
        HttpRoute("/api/v1/bridge/resume", manage(bridge.resume), methods=("POST",)),
        HttpRoute("/api/v1/bridge/state", manage(bridge.state), methods=("POST",)),
        HttpRoute("/api/v1/bridge/test", manage(bridge.test), methods=("POST",)),
    ]


class _Bridge:
    def __init__(self, watch: BridgeWatch, status: Callable[[], BridgeStatus]) -> None:
        self._watch = watch
        self._status = status

    async def show(self, request: Request) -> Response:
        return self._status_response()

    async def topology(self, request: Request) -> Response:
        return json_answer(self._watch.topology())

    async def pause(self, request: Request) -> Response:
        return self._each(request, lambda uplink: uplink.dialer.pause())

    async def resume(self, request: Request) -> Response:
        return self._each(request, lambda uplink: uplink.dialer.resume())

    async def state(self, request: Request) -> Response:
        return self._each(request, _request_manifest)

    async def test(self, request: Request) -> Response:
        uplinks = self._chosen(request)
        if uplinks is None:
            return self._unknown(request)
        results = await asyncio.gather(*map(probe, uplinks))
        return json_answer(results)

    def _each(self, request: Request, act: Callable[[AnyConnector], None]) -> Response:
        uplinks = self._chosen(request)
        if uplinks is None:
            return self._unknown(request)
        for uplink in uplinks:
            act(uplink)
        return self._status_response()

    def _chosen(self, request: Request) -> list[AnyConnector] | None:
        """Return the connector that the request names, or all; None for an unknown name."""
        name, connectors = request.query_params.get("connector"), self._watch.connectors
        if name is None:
            return list(connectors.values())
        return [connectors[name]] if name in connectors else None

    def _unknown(self, request: Request) -> Response:
        known = ", ".join(self._watch.connectors) or "none"
        error = f"connector {request.query_params['connector']!r} not found; configured: {known}"
        return RequestRefused(404, error).response()

    def _status_response(self) -> Response:
        return json_answer(self._status())


def _request_manifest(uplink: AnyConnector) -> None:
    if is_to_hub(uplink):
        uplink.manifests.request_close()
