"""JSON responses of the hub's HTTP API, and the responses to its exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from bridge.desired import DesiredError
from bridge.enrolment import RefusalReason
from bridge.resources.errors import ConfigurationRejected
from cloud.hub.alerts.service import AlertsNotReady
from cloud.hub.commands.documents import InvalidCommand
from cloud.hub.commands.service import CommandsBusy
from cloud.hub.desired.service import NotReady
from cloud.hub.labels import LabelError
from cloud.hub.registry.commands import CommandRefusal, CommandRefused
from cloud.hub.registry.configurations import UnknownGateway
from cloud.hub.registry.enrolments import EnrolmentRefused
from cloud.hub.registry.rollouts import RolloutError
from cloud.hub.rollout import WavesError
from cloud.lake.faults import RegistryError
from cloud.reader.client import ReadBusy, ReadFailed, ReadTableMissing, ReadUnreadable
from edge.broker.http.application import Answer
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.message_headers import message_headers
from edge.broker.http.refusal import RequestRefused
from edge.output.document import json

ENROLMENT_STATUS: Final = {
    RefusalReason.MALFORMED: 400,
    RefusalReason.NAMELESS: 409,
    RefusalReason.UNKNOWN: 401,
    RefusalReason.NO_CERTIFICATE: 401,
    RefusalReason.EXPIRED: 403,
    RefusalReason.REVOKED: 403,
    RefusalReason.SPENT: 403,
    RefusalReason.OTHER_GATEWAY: 403,
    RefusalReason.NAME_TAKEN: 409,
    RefusalReason.TOO_MANY: 429,
    RefusalReason.TENANT_FULL: 429,
    RefusalReason.UNAVAILABLE: 503,
}
_COMMAND_STATUS: Final = {
    CommandRefusal.NO_GATEWAY: 404,
    CommandRefusal.FULL: 429,
    CommandRefusal.TENANT_FULL: 429,
    CommandRefusal.OTHER_CONTENT: 422,
}
_NO_ROWS: Final[dict[str, Any]] = {"version": None, "written_at": None, "columns": {}, "total": 0, "next": None}
"""Answer about a table that no job has made."""


def json_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that must not be cached."""
    return Response(json(document), status, media_type="application/json", headers=NEVER_CACHED)


def message_response(document: Any, status: int = 200) -> Response:
    """Return a response with a document that quotes what devices or applications sent."""
    return Response(json(document), status, headers=message_headers("application/json"))


def _rejected(error: ConfigurationRejected) -> Response:
    errors = [str(each) for each in error.errors]
    return json_response({"error": "; ".join(errors), "errors": errors}, 400)


def _missing(error: ReadTableMissing) -> Response:
    """Return no rows: analytics have not run, which is no error, and the page says so."""
    return json_response({**_NO_ROWS, "missing": str(error)})


_RESPONSES: Final[Mapping[type[Exception], int | Callable[[Any], int | Response]]] = {
    RequestRefused: RequestRefused.response,
    LabelError: 400,
    DesiredError: 400,
    WavesError: 400,
    InvalidCommand: 400,
    ConfigurationRejected: _rejected,
    UnknownGateway: 404,
    RolloutError: 409,
    NotReady: 503,
    CommandRefused: lambda refused: _COMMAND_STATUS[refused.why],
    CommandsBusy: 503,
    EnrolmentRefused: lambda refused: ENROLMENT_STATUS[refused.reason],
    AlertsNotReady: 503,
    ReadTableMissing: _missing,
    ReadBusy: 503,
    ReadUnreadable: 503,
    ReadFailed: 400,
    RegistryError: 503,
}
"""Status of each exception, or a function that returns the status or the response."""


def answered(answer: Answer) -> Answer:
    """Return an endpoint that answers the exceptions of the hub's parts with an error in JSON."""

    async def behind(request: Request) -> Response:
        try:
            return await answer(request)
        except tuple(_RESPONSES) as error:
            return _response_to(error)

    return behind


def _response_to(error: Exception) -> Response:
    found = next(_RESPONSES[each] for each in type(error).__mro__ if each in _RESPONSES)
    status = found if isinstance(found, int) else found(error)
    return RequestRefused(status, str(error)).response() if isinstance(status, int) else status
