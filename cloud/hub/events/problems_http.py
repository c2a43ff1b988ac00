"""Problems of the fleet over HTTP.

``GET /api/v1/problems``          by name, with counts: ``?severity=&gateway=&tenant=&places=&after=&limit=``
``GET /api/v1/problems/{name}``   hubs and gateways that have it: ``?severity=&gateway=&tenant=&after=&limit=``

Needs the right to view: the gateways of one's own tenant, or with ``$fleet`` all of them, and the hubs. The same at
every hub of a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cloud.hub.events.problem_recorder import ProblemRecorder
from cloud.hub.json_http import answering, json_response
from cloud.hub.page_position import decode_position, encode_position
from cloud.hub.registry.problem_reader import PLACES_SHOWN_MAX, Place, PlacedProblem, ProblemFilter, ProblemGroup
from cloud.hub.scope import Scope, scope_of
from edge.broker.http.access import HttpAccess
from edge.broker.http.queries import choice_of, limit_of, whole_number
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.health.problems import Severity

PROBLEMS: Final = "/api/v1/problems"
answered: Final = answering({})


class ProblemPlaceDocument(msgspec.Struct, kw_only=True):
    """Problem of one gateway or hub."""

    name: str
    severity: Severity
    tenant: str
    """Empty for a hub."""
    gateway: str
    """Empty for a hub."""
    hub: str
    """Name of the hub; empty for a gateway."""
    what: str
    next_step: str
    """Empty for a gateway: its own console has the next step."""
    since: int
    """Milliseconds since 1970, UTC, by the clock of the gateway or hub."""
    connected: bool | None
    """State of the gateway; null for a hub. A gateway that is away has last reported it before `last_seen`."""
    last_seen: int | None
    """Milliseconds since 1970, UTC; null for a hub."""


class ProblemGroupDocument(msgspec.Struct, kw_only=True):
    """Problems of one name."""

    name: str
    severity: Severity
    """The worst of them."""
    count: int
    """Problems of this name; a gateway may have several."""
    gateways: int
    """Gateways that have it: `GET /api/v1/gateways?problem=NAME` lists them."""
    away: int
    """Gateways that have it and are not connected: it is as they have last reported it."""
    hubs: int
    """Hubs that have it."""
    since: int
    """Begin of the first one, in milliseconds since 1970, UTC."""
    places: list[ProblemPlaceDocument]
    """Ten of them at most, or as many as `places` of the request says."""


class FleetProblemsPage(msgspec.Struct, kw_only=True):
    """Page of problems by name."""

    problems: list[ProblemGroupDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""
    total: int
    """Names of problems on all pages."""


class ProblemPlacesPage(msgspec.Struct, kw_only=True):
    """Page of hubs and gateways with one problem."""

    places: list[ProblemPlaceDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""
    total: int


def problem_routes(
    problems: ProblemRecorder, access: HttpAccess, hub_names: Callable[[], Mapping[str, str]]
) -> list[HttpRoute]:
    """Return the routes of this module. `hub_names` returns the names of hubs by writer id."""

    async def groups(request: Request) -> Response:
        scope, query = await scope_of(access, request), request.query_params
        limit, wanted, after = limit_of(query), _filter_of(query, scope), query.get("after", "")
        places = whole_number(query, "places", PLACES_SHOWN_MAX, PLACES_SHOWN_MAX)
        found, total = await problems.read(lambda reader: reader.groups(wanted, after, limit + 1, places))
        following = found[limit - 1].code if len(found) > limit else None
        rows = [group_document(each, hub_names()) for each in found[:limit]]
        return json_response(FleetProblemsPage(problems=rows, next=following, total=total))

    async def places(request: Request) -> Response:
        scope, query = await scope_of(access, request), request.query_params
        limit, wanted = limit_of(query), _filter_of(query, scope)._replace(code=request.path_params["name"])
        if not wanted.code:
            raise RequestRefused(404, "the path ends with the name of a problem")
        after = _place_of(query.get("after", ""))
        found, total = await problems.read(lambda reader: reader.places(wanted, after, limit + 1))
        following = encode_position(found[limit - 1].place) if len(found) > limit else None
        rows = [place_document(each, hub_names()) for each in found[:limit]]
        return json_response(ProblemPlacesPage(places=rows, next=following, total=total))

    return [
        HttpRoute(PROBLEMS, answered(groups), methods=PURE),
        HttpRoute(PROBLEMS + "/{name:path}", answered(places), methods=PURE),
    ]


def _filter_of(query: Mapping[str, str], scope: Scope) -> ProblemFilter:
    severity = choice_of(query, "severity", ("", *(each.value for each in Severity)))
    tenant = scope.tenant if scope.tenant is not None else query.get("tenant") or None
    return ProblemFilter(tenant, query.get("gateway", ""), severity)


def group_document(group: ProblemGroup, hub_names: Mapping[str, str]) -> ProblemGroupDocument:
    """Return the document of a name. `hub_names`: names of hubs by writer id."""
    return ProblemGroupDocument(
        name=group.code,
        severity=_severity(group.severity),
        count=group.total,
        gateways=group.gateways,
        away=group.away,
        hubs=group.hubs,
        since=group.since // 1_000,
        places=[place_document(each, hub_names) for each in group.places],
    )


def place_document(problem: PlacedProblem, hub_names: Mapping[str, str]) -> ProblemPlaceDocument:
    """Return the document of a problem of one gateway or hub."""
    return ProblemPlaceDocument(
        name=problem.code,
        severity=_severity(problem.severity),
        tenant=problem.tenant,
        gateway=problem.gateway,
        hub=hub_names.get(problem.hub, problem.hub),
        what=problem.what,
        next_step=problem.next_step,
        since=problem.since // 1_000,
        connected=problem.connected,
        last_seen=problem.last_seen // 1_000 if problem.last_seen is not None else None,
    )


def _severity(word: str) -> Severity:
    """Return a severity; that of a newer program counts as an error."""
    return Severity(word) if word in {each.value for each in Severity} else Severity.ERROR


def _place_of(after: str) -> Place | None:
    """Parse the position of a page. Raises `RequestRefused`."""
    return decode_position(after, tuple[str, str, str, str]) if after else None
