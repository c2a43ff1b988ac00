"""Tables of the lake over HTTP: gold tables, completeness, proofs, sizes and quarantine.

================================================  ===================================================================
``GET /api/v1/gold``                              gold tables with version and age
``GET /api/v1/gold/<table>``                      rows; ``rollup``: the table of minutes, hours or days that fits
``GET /api/v1/gold/series``                       series that have values
``GET /api/v1/completeness``                      balance of each tenant and day
``GET /api/v1/completeness/<gateway>``            balance of each hour of a gateway
``GET /api/v1/statements``                        missing and forged statements
``GET /api/v1/proof/<gateway>``                   proof of a gateway as a file
``GET /api/v1/lake``                              tables with rows, files, size, age and maintenance
``GET /api/v1/quarantine``                        newest deliveries that no program could read
================================================  ===================================================================

Reading is done in processes (`cloud.reader.client`), never in the hub. Rows of other tenants than the user's are never
read. Times are milliseconds since 1970, UTC. A table that no job has made yet has the version null, and a field
`missing` with the command that makes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.committer import Committer
from cloud.hub.fleet import GatewayState
from cloud.hub.fleet_condition import FleetCondition
from cloud.hub.fleet_view import FleetViews
from cloud.hub.json_http import answering, json_response
from cloud.hub.limits import SPANS_SENT_MAX
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.scope import Scope, require_fleet, scope_of
from cloud.reader.client import LakeReader, ReadBusy, ReadFailed, ReadTableMissing, ReadUnreadable
from cloud.reader.limits import DAYS_MAX, HOURS_DAYS_MAX, POINTS_MAX, PROOF_S_MAX, ROWS_DEFAULT, SERIES_DAYS
from cloud.reader.requests import (
    CompletenessDays,
    GatewayHours,
    GatewayProof,
    GoldRows,
    LakeRead,
    LakeTables,
    LandedSpans,
    QuarantineSample,
    SeriesList,
    StatementFaults,
    TableList,
    choose_rollup,
)
from edge.broker.http.access import HttpAccess
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.queries import whole_number
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

GOLD: Final = "/api/v1/gold"
COMPLETENESS: Final = "/api/v1/completeness"
_DAY_MS: Final = 86_400_000
_TIME_MAX: Final = 10**15 - 1
_PARAMETERS: Final = frozenset(("tenant", "begin", "end", "sort", "q", "after", "limit", "format", "points"))
"""Parameters of a read of rows; others are columns with the wanted value."""
_NO_ROWS: Final[dict[str, Any]] = {"version": None, "written_at": None, "columns": {}, "total": 0, "next": None}
"""Answer about a table that no job has made."""
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


def _missing(error: ReadTableMissing) -> Response:
    """Return no rows: analytics have not run. This is not an error, and the page says so."""
    return json_response({**_NO_ROWS, "missing": str(error)})


answered: Final = answering({ReadTableMissing: _missing, ReadBusy: 503, ReadUnreadable: 503, ReadFailed: 400})


def lake_routes(
    reader: LakeReader, access: HttpAccess, views: FleetViews, committer: Committer, now_us: Callable[[], int]
) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _LakeApi(reader, access, views, committer, now_us)
    return [
        HttpRoute(GOLD, answered(api.tables), methods=PURE),
        HttpRoute(GOLD + "/series", answered(api.series), methods=PURE),
        HttpRoute(GOLD + "/{table}", answered(api.rows), methods=PURE),
        HttpRoute(COMPLETENESS, answered(api.days), methods=PURE),
        HttpRoute(COMPLETENESS + "/{gateway:path}", answered(api.hours), methods=PURE),
        HttpRoute("/api/v1/statements", answered(api.statements), methods=PURE),
        HttpRoute("/api/v1/proof/{gateway:path}", answered(api.proof), methods=PURE),
        HttpRoute("/api/v1/lake", answered(api.lake), methods=PURE),
        HttpRoute("/api/v1/quarantine", answered(api.quarantine), methods=PURE),
    ]


class _LakeApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(
        self,
        reader: LakeReader,
        access: HttpAccess,
        views: FleetViews,
        committer: Committer,
        now_us: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._access = access
        self._views = views
        self._committer = committer
        self._now_us = now_us

    async def tables(self, request: Request) -> Response:
        await scope_of(self._access, request)
        return await self._json(TableList())

    async def rows(self, request: Request) -> Response:
        """Show rows of one table.

        Query: ``?begin=MS&end=MS&COLUMN=VALUE&sort=[-]COLUMN&q=PART&after=NEXT&limit=N&format=csv``, and for the table
        ``rollup`` ``&points=N``.
        """
        scope, query = await scope_of(self._access, request), request.query_params
        table, begin, end = request.path_params["table"], _time(request, "begin"), _time(request, "end")
        points = whole_number(query, "points", POINTS_MAX, POINTS_MAX)
        if table == "rollup":
            if begin is None or end is None:
                raise RequestRefused(400, "a rollup needs begin and end")
            table = choose_rollup(begin, end, points)
        csv = query.get("format") == "csv"
        found = await self._reader.ask(
            GoldRows(
                table,
                tenant=_tenant(scope, request),
                equal={name: value for name, value in query.items() if name not in _PARAMETERS},
                begin=begin,
                end=end,
                sort=query.get("sort", ""),
                text=query.get("q", ""),
                offset=whole_number(query, "after", 0, 10**9),
                limit=whole_number(query, "limit", points if table.startswith("rollup") else ROWS_DEFAULT, POINTS_MAX),
                csv=csv,
            )
        )
        return _file(found, f"{table}.csv", "text/csv; charset=utf-8") if csv else _document(found)

    async def series(self, request: Request) -> Response:
        scope, query = await scope_of(self._access, request), request.query_params
        today = self._now_us() // 1_000 // _DAY_MS * _DAY_MS
        since, offset = today - SERIES_DAYS * _DAY_MS, whole_number(query, "after", 0, 10**9)
        limit = whole_number(query, "limit", ROWS_DEFAULT, POINTS_MAX)
        gateway, text = query.get("gateway", ""), query.get("q", "")
        return await self._json(SeriesList(since, _tenant(scope, request), gateway, text, offset, limit))

    async def days(self, request: Request) -> Response:
        scope = await scope_of(self._access, request)
        return await self._json(CompletenessDays(self._since(request, 14, DAYS_MAX), _tenant(scope, request)))

    async def hours(self, request: Request) -> Response:
        """Show the hours of one gateway: ``?days=N&tenant=T``."""
        gateway = await self._gateway(request)
        tenant, name = gateway.tenant, gateway.name
        known = await self._committer.read(lambda registry: registry.commits.marks(tenant, name))
        landed = [LandedSpans(stream.epoch, stream.address, found.spans) for stream, found in known.landed.items()]
        if sum(len(each.spans) for each in landed) > SPANS_SENT_MAX:
            raise RequestRefused(503, f"more than {SPANS_SENT_MAX} ranges have landed: download the proof instead")
        status = gateway.status or {}
        since = self._since(request, 7, HOURS_DAYS_MAX)
        backlog, reported_at = status.get("backlog_messages"), status.get("reported_at")
        return await self._json(GatewayHours(tenant, name, since, landed, backlog, reported_at))

    async def statements(self, request: Request) -> Response:
        scope = await scope_of(self._access, request)
        since = self._now_us() // 1_000 - _days(request, 7, HOURS_DAYS_MAX) * _DAY_MS
        since -= since % 3_600_000  # the same question within an hour, and another part of a large fleet in the next
        return await self._json(StatementFaults(since, _tenant(scope, request), request.query_params.get("gateway")))

    async def proof(self, request: Request) -> Response:
        """Download the proof of one gateway: ``?days=N&tenant=T``; all its messages without ``days``."""
        gateway = await self._gateway(request)
        tenant, name = gateway.tenant, gateway.name
        since = self._since(request, 0, DAYS_MAX) if "days" in request.query_params else None
        found = await self._reader.ask(GatewayProof(name, tenant, since), seconds=PROOF_S_MAX)
        return _file(found, f"proof-{_NAME.sub('_', name)}.json", "application/json")

    async def lake(self, request: Request) -> Response:
        await require_fleet(self._access, request)
        return await self._json(LakeTables())

    async def quarantine(self, request: Request) -> Response:
        scope = await scope_of(self._access, request)
        return await self._json(QuarantineSample(_tenant(scope, request)))

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _json(self, read: LakeRead) -> Response:
        return _document(await self._reader.ask(read))

    async def _gateway(self, request: Request) -> GatewayState:
        """Return the gateway in the path. Raises `RequestRefused`."""
        scope = await scope_of(self._access, request)
        tenant, name = (
            request.query_params.get("tenant", scope.tenant or DEFAULT_TENANT),
            request.path_params["gateway"],
        )
        found = await self._views.of(scope.tenant).one((tenant, name)) if scope.covers(tenant) else None
        if found is None or found.condition is FleetCondition.NEVER:
            raise RequestRefused(404, f"no gateway {name} in tenant {tenant}", code="gateway-not-found")
        return found.gateway

    def _since(self, request: Request, default: int, most: int) -> int:
        """Return the start of the first day of a span that ends today."""
        return (self._now_us() // 1_000 // _DAY_MS - _days(request, default, most) + 1) * _DAY_MS


def _tenant(scope: Scope, request: Request) -> str | None:
    """Return the tenant of a read: the user's, or one that the request names. Raises `RequestRefused`."""
    wanted = request.query_params.get("tenant") or scope.tenant
    if wanted is not None and not scope.covers(wanted):
        raise RequestRefused(403, f"tenant {wanted} is outside your scope")
    return wanted


def _days(request: Request, default: int, most: int) -> int:
    return max(1, whole_number(request.query_params, "days", default, most))


def _time(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return None if not text else whole_number(request.query_params, name, 0, _TIME_MAX)


def _document(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers=NEVER_CACHED)


def _file(body: bytes, name: str, media_type: str) -> Response:
    headers = {**NEVER_CACHED, "content-disposition": f'attachment; filename="{name}"'}
    return Response(body, media_type=media_type, headers=headers)
