"""Description of the HTTP interface for programs: ``GET /api/v1/openapi.json``, OpenAPI 3.1.

`docs.generate.openapi` makes the file. It has no data, so it needs no authentication.
"""

from __future__ import annotations

import asyncio
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.route import PURE, HttpRoute

FILE: Final = "openapi.json"
"""Name of the file in the package of a console."""
_KEPT: Final = {"Cache-Control": "no-cache"}


def openapi_route(package: Traversable) -> HttpRoute:
    """Return the route of the description in a package. It is read for each request: few ask for it, once."""
    file = package.joinpath(FILE)

    async def respond(_request: Request) -> Response:
        content = await asyncio.to_thread(file.read_bytes)
        return Response(content, media_type="application/json", headers=_KEPT)

    return HttpRoute("/api/v1/openapi.json", respond, methods=PURE)
