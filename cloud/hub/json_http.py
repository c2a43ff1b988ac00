"""JSON requests and responses of the hub's HTTP API."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from edge.broker.http.content_encoding import decompress, is_compressed
from edge.broker.http.limits import HTTP_BODY_S_MAX
from edge.broker.http.message_headers import message_headers
from edge.broker.http.refusal import RequestRefused
from edge.output.document import json

NOT_KEPT: Final = {"cache-control": "no-store"}


async def read_body(request: Request, bytes_max: int, what: str) -> bytes:
    """Read the body of a request; `what` names it in errors. Raises `RequestRefused` when it is larger than `bytes_max`
    or late."""
    compressed, body = is_compressed(request), b""
    try:
        async with asyncio.timeout(HTTP_BODY_S_MAX):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise RequestRefused(413, f"{what} is larger than {bytes_max} bytes")
    except (TimeoutError, ClientDisconnect):
        raise RequestRefused(408, "the request did not come in time") from None
    return decompress(body, bytes_max) if compressed else body


def json_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that must not be cached."""
    return Response(json(document), status, media_type="application/json", headers=NOT_KEPT)


def message_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that quotes what devices or applications sent."""
    return Response(json(document), status, headers=message_headers("application/json"))
