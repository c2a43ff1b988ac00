"""HTTP routes of checks that `waypost doctor` does too.

==============================  ======  ==========================================================================
``GET /api/v1/bridge/check``    view    `uplink_check.UplinkCheckReport` of the latest check
``POST /api/v1/bridge/check``   manage  check the way to each peer step by step; while one is running, that one
==============================  ======  ==========================================================================

A client that has started a check asks again until `running` is false: the steps are added as they end.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from edge.appliance.doctor.uplink_check import UplinkCheck
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.json_documents import json_answer
from edge.broker.http.route import PURE, HttpRoute


def check_routes(check: UplinkCheck, access: HttpAccess) -> Sequence[HttpRoute]:
    """Return the routes of a gateway's checks."""

    async def show(request: Request) -> Response:
        return json_answer(check.report())

    async def start(request: Request) -> Response:
        check.start()
        return json_answer(check.report())

    return [
        HttpRoute("/api/v1/bridge/check", needing(access.require_view)(show), methods=PURE),
        HttpRoute("/api/v1/bridge/check", needing(access.require_manage)(start), methods=("POST",)),
    ]
