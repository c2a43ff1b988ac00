"""JSON responses of the hub's HTTP API."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from edge.broker.http.message_headers import message_headers
from edge.output.document import json

NOT_KEPT: Final = {"cache-control": "no-store"}


def json_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that must not be cached."""
    return Response(json(document), status, media_type="application/json", headers=NOT_KEPT)


def message_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that quotes what devices or applications sent."""
    return Response(json(document), status, headers=message_headers("application/json"))
