"""Routes about many gateways: as CSV, and saved views of the list.

``GET  /api/v1/gateways.csv``      all gateways of a query, as `GET /api/v1/gateways` takes it
``GET  /api/v1/views``             the user's saved views
``PUT|DELETE /api/v1/views/<name>`` save or delete one: ``{"page": "fleet", "query": "show=all&selector=site%3Dlyon"}``

Saved views belong to the user who sends the request.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cloud.hub.committer import Committer
from cloud.hub.fleet_condition import FleetCondition
from cloud.hub.fleet_documents import SavedViewDocument
from cloud.hub.fleet_view import GatewayQuery
from cloud.hub.json_http import answering, json_response
from cloud.hub.labels import LabelError, format_labels, parse_selector
from cloud.hub.limits import SAVED_VIEWS_MAX, VIEW_BYTES_MAX
from cloud.hub.registry.fleet_pages import SORTS
from cloud.hub.registry.gateway_traits import GatewayTraits
from cloud.hub.registry.views import SavedView
from cloud.hub.scope import scope_of
from cloud.hub.seen_gateway import SeenGateway
from cloud.hub.version_rank import UNRANKED, rank_version
from edge.broker.http.access import HttpAccess
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.json_documents import read_document
from edge.broker.http.preconditions import precondition_of, tag_of
from edge.broker.http.queries import choice_of, sort_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.health.problems import Severity
from edge.output.text import cell
from edge.output.times import moment_us

VIEWS: Final = "/api/v1/views"
answered: Final = answering({})
COLUMNS: Final = (
    "tenant", "gateway", "state", "why", "since", "connected", "last_seen", "waiting_messages", "waiting_bytes",
    "room_hours", "version", "labels",
)  # fmt: skip
"""Columns of the CSV file."""


STATES: Final = ("", "danger", *FleetCondition)
"""Values of the query parameter `state`."""
SEVERITIES: Final = ("", *(each.value for each in Severity))
"""Values of the query parameter `severity`."""
CONNECTED: Final[Mapping[str, bool | None]] = {"": None, "true": True, "false": False}
"""Values of the query parameter `connected`."""
_AGE: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_UNITS_US: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_TIME_MS: Final = re.compile(r"\d{1,15}", re.ASCII)


class ViewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """View to save."""

    page: Annotated[str, msgspec.Meta(pattern=r"^[a-z]{1,32}$")]
    query: Annotated[str, msgspec.Meta(max_length=1_000)]


def read_query(query: Mapping[str, str], now_us: int) -> GatewayQuery:
    """Return the query of a request for gateways. Raises RequestRefused.

    ``?q=PART&state=danger|offline|…&selector=site=berlin&sort=[-]danger|name|…&connected=true|false&version=1.4.0``
    ``&older_than=1.5.0&problem=NAME&severity=error|warning|notice&seen_before=7d|MS&seen_after=1h|MS``
    """
    sort, state = sort_of(query, SORTS, "danger"), choice_of(query, "state", STATES)
    connected = CONNECTED[choice_of(query, "connected", list(CONNECTED))]
    try:
        selector = parse_selector(query["selector"]) if query.get("selector") else None
    except LabelError as error:
        raise RequestRefused(400, str(error)) from None
    older_than = query.get("older_than", "")
    below_rank = rank_version(older_than) if older_than else None
    if below_rank == UNRANKED:
        raise RequestRefused(400, "older_than is a version such as 1.4.0 or 1.5.0rc1")
    traits = GatewayTraits(
        query.get("version", ""),
        below_rank,
        query.get("problem", ""),
        choice_of(query, "severity", SEVERITIES),
        _time_us(query, "seen_before", now_us),
        _time_us(query, "seen_after", now_us),
    )
    return GatewayQuery(query.get("q", ""), state, selector, sort.name, sort.reverse, connected, traits)


def _time_us(query: Mapping[str, str], name: str, now_us: int) -> int | None:
    """Return a time in UTC microseconds: milliseconds since 1970, or an age. Raises RequestRefused."""
    text = query.get(name, "")
    if not text:
        return None
    if (age := _AGE.fullmatch(text)) is not None:
        return max(0, now_us - int(age[1]) * _UNITS_US[age[2]])
    if _TIME_MS.fullmatch(text) is None:
        raise RequestRefused(400, f"{name} is an age such as 30m, 12h or 7d, or a time in milliseconds since 1970")
    return int(text) * 1_000


async def csv_response(pages: AsyncGenerator[Sequence[SeenGateway], None]) -> Response:
    """Return gateways as a CSV file, a page at a time. Raises what reading the first page raises; an error of a later
    one ends the connection, so that no client takes the part for the whole."""
    first = await anext(pages, ())

    async def parts() -> AsyncIterator[str]:
        async with contextlib.aclosing(pages):
            yield _lines([COLUMNS, *map(_row, first)])
            async for gateways in pages:
                yield _lines(map(_row, gateways))

    headers = {**NEVER_CACHED, "Content-Disposition": 'attachment; filename="gateways.csv"'}
    return StreamingResponse(parts(), media_type="text/csv", headers=headers)


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _row(seen: SeenGateway) -> list[Any]:
    gateway, status = seen.gateway, seen.gateway.status or {}
    room = None if seen.room_hours is None else round(seen.room_hours, 1)
    return [
        cell(gateway.tenant),
        cell(gateway.name),
        seen.condition.value,
        seen.why,
        moment_us(seen.since_us) if seen.since_us else "",
        "yes" if gateway.connected else "no",
        moment_us(gateway.last_seen or None),
        status.get("backlog_messages"),
        status.get("backlog_bytes"),
        room,
        cell(str(status.get("version") or "")),
        cell(format_labels(seen.labels)),
    ]


def view_routes(committer: Committer, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of saved views."""
    api = _ViewApi(committer, access)
    return [
        HttpRoute(VIEWS, answered(api.all), methods=PURE),
        HttpRoute(VIEWS + "/{name}", answered(api.put), methods=("PUT",)),
        HttpRoute(VIEWS + "/{name}", answered(api.delete), methods=("DELETE",)),
    ]


class _ViewApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, committer: Committer, access: HttpAccess) -> None:
        self._committer = committer
        self._access = access

    async def all(self, request: Request) -> Response:
        user = await self._user(request)
        found = await self._committer.read(lambda registry: registry.views.of(user))
        return json_response({"views": [_view_document(each) for each in found]})

    async def put(self, request: Request) -> Response:
        user, name = await self._user(request), request.path_params["name"]
        wanted = await read_document(request, ViewRequest, VIEW_BYTES_MAX, "the view")
        if not (name.isprintable() and 0 < len(name) <= 60):
            raise RequestRefused(400, "the name of a view has 1 to 60 printable characters")
        view, condition = SavedView(name, wanted.page, wanted.query), precondition_of(request)

        def check(before: SavedView | None) -> None:
            condition.check(None if before is None else tag_of(before))

        if not await self._committer.read(lambda registry: registry.views.put(user, view, SAVED_VIEWS_MAX, check)):
            raise RequestRefused(409, f"you have {SAVED_VIEWS_MAX} views: delete one first")
        return json_response(_view_document(view))

    async def delete(self, request: Request) -> Response:
        user, name = await self._user(request), request.path_params["name"]
        condition = precondition_of(request)

        def check(before: SavedView) -> None:
            condition.check(tag_of(before))

        if not await self._committer.read(lambda registry: registry.views.delete(user, name, check)):
            raise RequestRefused(404, f"you have no view {name[:60]}")
        return json_response({"deleted": name})

    async def _user(self, request: Request) -> str:
        """Return the user, who needs the right to view. Raises `RequestRefused`."""
        await scope_of(self._access, request)
        async with self._access.admitted(request) as (grant, _):
            return grant.user if grant is not None else ""


def _view_document(view: SavedView) -> SavedViewDocument:
    return {"name": view.name, "page": view.page, "query": view.query, "etag": tag_of(view)}
