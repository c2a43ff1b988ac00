"""JSON responses of the hub's HTTP API, and the responses to exceptions of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.changes import CHANGE, NotedChange, note_error
from cloud.hub.labels import LabelError
from cloud.hub.peers import InvalidPeer
from cloud.hub.tenants import TenantRemoved
from cloud.lake.faults import RegistryError
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.message_headers import message_headers
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import Answer
from edge.output.document import json

Responses = Mapping[type[Exception], int | Callable[[Any], int | Response]]
"""Status of each exception, or a function that returns the status or the response. A class includes its
subclasses."""

_OF_EVERY_PART: Final[Responses] = {
    RequestRefused: RequestRefused.response,
    LabelError: 400,
    InvalidPeer: 400,
    RegistryError: 503,
    TenantRemoved: lambda why: RequestRefused(
        409, str(why), code="tenant-removed", next_step="use another name"
    ).response(),
}


class Answered(Protocol):
    """Returns an endpoint that answers exceptions with an error in JSON."""

    def __call__(self, answer: Answer, action: str = "") -> Answer:
        """`action`: noun and verb of the change that the endpoint makes, for the audit; empty if it changes nothing."""


def json_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that must not be cached."""
    return Response(json(document), status, media_type="application/json", headers=NEVER_CACHED)


def message_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that quotes what devices or applications sent."""
    return Response(json(document), status, headers=message_headers("application/json"))


def answering(responses: Responses) -> Answered:
    """Return a wrapper of endpoints. `responses`: to exceptions of one part, in addition to those of every part."""
    known = {**_OF_EVERY_PART, **responses}
    raised = tuple(known)

    def answered(answer: Answer, action: str = "") -> Answer:
        async def behind(request: Request) -> Response:
            if action:
                request.scope[CHANGE] = NotedChange(action)
            try:
                return await answer(request)
            except raised as error:
                note_error(request, str(error))
                return _response_to(error, known)

        return behind

    return answered


def _response_to(error: Exception, known: Responses) -> Response:
    found = next(known[each] for each in type(error).__mro__ if each in known)
    status = found if isinstance(found, int) else found(error)
    return RequestRefused(status, str(error)).response() if isinstance(status, int) else status
