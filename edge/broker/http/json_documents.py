"""JSON documents of an API: read from requests, and sent as answers."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.body import read_body
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.limits import API_BODY_BYTES_MAX
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import Answer

T = TypeVar("T")


async def read_document(
    request: Request,
    kind: type[T],
    bytes_max: int = API_BODY_BYTES_MAX,
    what: str = "the body",
    *,
    optional: bool = False,
) -> T:
    """Return the document in the body of a request. Raises RequestRefused.

    `what`: its name in errors. `optional`: no body is an empty document.
    """
    body = await read_body(request, bytes_max, what)
    try:
        return msgspec.json.decode(b"{}" if optional and not body else body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestRefused(400, f"{what} is not valid: {error}") from None


def answering(answer: Answer) -> Answer:
    """Return an endpoint that answers RequestRefused with its error."""

    async def behind(request: Request) -> Response:
        try:
            return await answer(request)
        except RequestRefused as refused:
            return refused.response()

    return behind


def json_answer(document: Any, status: int = 200) -> Response:
    """Return a document as an answer that no cache keeps."""
    return Response(msgspec.json.encode(document), status, media_type="application/json", headers=NEVER_CACHED)
