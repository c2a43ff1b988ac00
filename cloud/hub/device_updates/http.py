"""Reports of devices about artefacts over HTTP.

``GET /api/v1/artefact-reports``         a page: ``?artefact=&version=&device=&state=&after=&limit=&tenant=``
``GET /api/v1/artefact-reports/counts``  numbers of devices by version and state: ``?artefact=&version=&tenant=``

Both need the right to view: for one's own tenant, or with ``$fleet`` and ``?tenant=`` for every tenant.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from bridge.artefacts.report import UpdateState
from cloud.hub.device_updates.documents import (
    ArtefactReportCounts,
    ArtefactReportPage,
    count_document,
    report_document,
)
from cloud.hub.device_updates.service import DeviceUpdatesBusy, HubDeviceUpdates
from cloud.hub.json_http import answering, json_response
from cloud.hub.page_position import decode_position, encode_position
from cloud.hub.peers import DEFAULT_TENANT, tenant_fault
from cloud.hub.registry.device_updates import DeviceUpdate, UpdateFilter, UpdateKey
from cloud.hub.scope import scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.queries import limit_of
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

REPORTS: Final = "/api/v1/artefact-reports"
COUNTS: Final = "/api/v1/artefact-reports/counts"
STATES: Final = tuple(each.value for each in UpdateState)
_CursorPart = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z", max_length=600)]

answered: Final = answering({DeviceUpdatesBusy: 503})


def report_routes(updates: HubDeviceUpdates, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""
    api = _ReportApi(updates, access)
    return [
        HttpRoute(REPORTS, answered(api.page), methods=PURE),
        HttpRoute(COUNTS, answered(api.counts), methods=PURE),
    ]


class _ReportApi:
    """Endpoints. Every method raises what `answered` translates."""

    def __init__(self, updates: HubDeviceUpdates, access: HttpAccess) -> None:
        self._updates = updates
        self._access = access

    async def page(self, request: Request) -> Response:
        """List reports."""
        wanted, query = await self._filter(request), request.query_params
        limit, after = limit_of(query), _after(query.get("after", ""))
        rows = await self._updates.page(wanted, after, limit + 1)
        following = cursor_of(rows[limit - 1]) if len(rows) > limit else None
        reports = [report_document(row) for row in rows[:limit]]
        return json_response(ArtefactReportPage(reports=reports, next=following))

    async def counts(self, request: Request) -> Response:
        """Count devices by version and state."""
        rows = await self._updates.counts(await self._filter(request))
        return json_response(ArtefactReportCounts(counts=[count_document(row) for row in rows]))

    async def _filter(self, request: Request) -> UpdateFilter:
        scope, query = await scope_of(self._access, request), request.query_params
        tenant = query.get("tenant") or scope.tenant or DEFAULT_TENANT
        if tenant_fault(tenant) is not None or not scope.covers(tenant):
            raise RequestRefused(403, f"tenant {tenant[:255]} is outside your scope")
        given = {name: query.get(name) or None for name in ("artefact", "version", "device", "state")}
        if any(value is not None and "\0" in value for value in given.values()):
            raise RequestRefused(400, "a parameter has a NUL")
        if given["state"] not in (None, *STATES):
            raise RequestRefused(400, f"state must be one of: {', '.join(STATES)}")
        return UpdateFilter(tenant, given["artefact"], given["version"], given["device"], given["state"])


def cursor_of(row: DeviceUpdate) -> str:
    """Return the place of a report in the order of pages."""
    return encode_position((row.name, row.version, row.device))


def _after(cursor: str) -> UpdateKey | None:
    """Return the place of a cursor. Raises `RequestRefused`."""
    return decode_position(cursor, tuple[_CursorPart, _CursorPart, _CursorPart]) if cursor else None
