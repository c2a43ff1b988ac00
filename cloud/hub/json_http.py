"""JSON over HTTP, as every part of the hub's API takes and gives it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from edge.broker.http.content_encoding import decompressed, is_compressed
from edge.broker.http.limits import HTTP_BODY_S_MAX
from edge.broker.http.message_headers import message_headers
from edge.broker.http.refusal import RequestRefused
from edge.output.document import json

NOT_KEPT: Final = {"cache-control": "no-store"}


async def body_of(request: Request, bytes_max: int, what: str) -> bytes:
    """Return the body of a request, named `what` in errors.

    Raises RequestRefused when it is too large or does not arrive in time.
    """
    compressed, body = is_compressed(request), b""
    try:
        async with asyncio.timeout(HTTP_BODY_S_MAX):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise RequestRefused(413, f"{what} has {bytes_max} bytes at most")
    except (TimeoutError, ClientDisconnect):
        raise RequestRefused(408, "the request did not come in time") from None
    return decompressed(body, bytes_max) if compressed else body


def json_answer(document: Any, status: int = 200) -> Response:
    """Answer with a document that no cache keeps."""
    return Response(json(document), status, media_type="application/json", headers=NOT_KEPT)


def message_answer(document: Any, status: int = 200) -> Response:
    """Answer with a document that quotes what devices or applications sent."""
    return Response(json(document), status, headers=message_headers("application/json"))
