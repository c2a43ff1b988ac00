"""Bodies of requests, up to a size and within a time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from edge.broker.http.content_encoding import decompress, is_compressed
from edge.broker.http.limits import HTTP_BODY_S_MAX
from edge.broker.http.refusal import RequestRefused


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
