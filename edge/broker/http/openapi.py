"""Description of the HTTP interface for programs: ``GET /api/v1/openapi.json``, OpenAPI 3.1.

`docs.generate.openapi` makes the file. It has no data, so it needs no authentication. Anybody may ask for it, so it is
read and compressed once.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.route import PURE, HttpRoute

FILE: Final = "openapi.json"
"""Name of the file in the package of a console."""
_TAG_LENGTH: Final = 16


class ServedDescription(NamedTuple):
    """Description in the forms in which it is sent."""

    plain: bytes
    compressed: bytes
    tag: str
    """Entity tag. It is weak, as both forms have it."""


class InterfaceDescription:
    """Serves the description of a package; about 200 kB after the first request."""

    def __init__(self, package: Traversable) -> None:
        self._file = package.joinpath(FILE)
        self._served: ServedDescription | None = None

    async def respond(self, request: Request) -> Response:
        """Answer with the description; 304 if the client has it."""
        served = self._served
        if served is None:
            served = self._served = await asyncio.to_thread(_read, self._file)
        fields = {"Cache-Control": "no-cache", "ETag": served.tag, "Vary": "Accept-Encoding"}
        if served.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=fields)
        if "gzip" in request.headers.get("accept-encoding", ""):
            fields["Content-Encoding"] = "gzip"
            return Response(served.compressed, media_type="application/json", headers=fields)
        return Response(served.plain, media_type="application/json", headers=fields)


def openapi_route(package: Traversable) -> HttpRoute:
    """Return the route of the description in a package."""
    return HttpRoute("/api/v1/openapi.json", InterfaceDescription(package).respond, methods=PURE)


def _read(file: Traversable) -> ServedDescription:
    plain = file.read_bytes()
    tag = f'W/"{hashlib.sha256(plain).hexdigest()[:_TAG_LENGTH]}"'
    return ServedDescription(plain, gzip.compress(plain, mtime=0), tag)
