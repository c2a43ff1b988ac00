"""Query parameters that a request may have: those of its operation in the OpenAPI document that the hub serves.

A hub that ignored a filter that it does not know would answer with all rows, and a client would take them for those
that it wants. So an unknown parameter is refused. The answer names the parameters that were applied, because a hub of
an earlier version refuses none: a client that misses a name there has asked such a hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from bridge.applied_query import APPLIED_QUERY
from edge.broker.http.openapi import FILE
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import Answer, HttpRoute

CHECKED: Final = "/api/v1/"
"""Begin of the paths with an operation that is checked. The registry of devices has the parameters of Eclipse Hono."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
"""Names of columns that a header field can have."""
_SHOWN_CHARACTERS_MAX: Final = 40
"""Characters of an unknown name in the error."""


class KnownParameters(NamedTuple):
    """Query parameters of one operation."""

    names: frozenset[str]
    others: bool
    """It takes further ones, such as the columns of a table."""

    def applied(self, request: Request) -> str:
        """Return the parameters of a request, as the header field names them; empty without any."""
        given = sorted(set(request.query_params))
        return ", ".join(name for name in given if name in self.names or _PLAIN.fullmatch(name))

    def unknown(self, request: Request) -> str | None:
        """Return a parameter of a request that the operation does not have; None without one."""
        if self.others:
            return None
        return next((name for name in request.query_params if name not in self.names), None)


NO_PARAMETERS: Final = KnownParameters(frozenset(), others=False)


def read_parameters(package: Traversable) -> dict[tuple[str, str], KnownParameters]:
    """Return the query parameters of each method and path of the OpenAPI document in a package."""
    api: dict[str, Any] = json.loads(package.joinpath(FILE).read_bytes())
    found: dict[tuple[str, str], KnownParameters] = {}
    for path, item in api["paths"].items():
        for method, operation in item.items():
            if isinstance(operation, dict):
                every = (*item.get("parameters", ()), *operation.get("parameters", ()))
                found[method.upper(), path] = _known([each for each in every if each["in"] == "query"])
    return found


def _known(parameters: Sequence[Mapping[str, Any]]) -> KnownParameters:
    """Return the names of parameters. An object stands for any names (OpenAPI 3.1, style `form` with `explode`)."""
    single = [each["name"] for each in parameters if each["schema"].get("type") != "object"]
    return KnownParameters(frozenset(single), others=len(single) < len(parameters))


def check_queries(routes: Iterable[HttpRoute], package: Traversable) -> list[HttpRoute]:
    """Return the routes; those of the API refuse parameters that the OpenAPI document in a package does not have."""
    known = read_parameters(package)
    return [_checked(each, known) if each.path.startswith(CHECKED) else each for each in routes]


def _checked(route: HttpRoute, operations: Mapping[tuple[str, str], KnownParameters]) -> HttpRoute:
    path = route.path.replace(":path}", "}").replace(":int}", "}")
    of_method = {method: operations.get((method, path), NO_PARAMETERS) for method in route.methods or ()}
    if "HEAD" in of_method:
        of_method["HEAD"] = of_method.get("GET", NO_PARAMETERS)
    return route.wrapped(lambda answer: _checking(answer, of_method))


def _checking(answer: Answer, of_method: Mapping[str, KnownParameters]) -> Answer:
    async def behind(request: Request) -> Response:
        known = of_method[request.method]
        unknown = known.unknown(request)
        if unknown is not None:
            shown = unknown[:_SHOWN_CHARACTERS_MAX]
            refused = RequestRefused(400, f"this has no query parameter {shown!r}", code="unknown-parameter")
            return refused.response(parameter=shown)
        response = await answer(request)
        if applied := known.applied(request):
            response.headers[APPLIED_QUERY] = applied
        return response

    return behind
