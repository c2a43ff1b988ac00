"""Paths over HTTP, of gateway and hub: their methods match the declared ones, and HEAD changes no state."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.routing import Route

from bridge import __file__ as bridge_file
from cloud.hub.api import application as hub_application
from cloud.hub.commands.http import routes as command_routes
from cloud.hub.desired.http import routes as desired_routes
from cloud.hub.enrolment.http import routes as enrolment_routes
from cloud.hub.users_http import user_routes
from edge.appliance.console.app import make_app
from edge.appliance.crossing.routes import bridge_routes
from edge.broker.hono.http import HonoApi
from edge.broker.http.access import HttpAccess
from edge.broker.http.api import HttpDeviceApi
from edge.broker.http.route import HttpRoute, allowed_methods
from edge.broker.http.session_api import session_routes
from edge.broker.limits import Limits

ANY: Any = None
ROOT = Path(bridge_file).parents[1]
TAKES_BY_GET = {
    "/c/{address:path}",
    "/api/v1/events",
    "/api/v1/session/oidc",
    "/api/v1/session/oidc/callback",
}
"""Paths where GET has an effect: it locks a message, opens a stream, or is a step of a sign-in."""


def common() -> list[HttpRoute]:
    return list(session_routes(HttpAccess()))


def gateway() -> list[Route]:
    class Service:
        router = ANY
        cors_origins = ("https://page.example",)

    routes = HonoApi(cast(Any, Service()), Limits()).routes
    app = make_app(ANY, ANY, HttpAccess(), None, [*routes, *common(), *bridge_routes(ANY, ANY, HttpAccess())])
    return cast(Any, app).routes  # type: ignore[no-any-return]


def hub() -> list[Route]:
    access = HttpAccess()
    more = [*common(), *command_routes(ANY, access), *desired_routes(ANY, access, ANY), *enrolment_routes(ANY, ANY)]
    given = {"dev": False, "now_us": lambda: 0, "clock": lambda: 0.0}
    parts = {
        "views": ANY,
        "alerts": ANY,
        "audit": ANY,
        "happened": ANY,
        "more": [*more, *user_routes(ANY, ANY, access)],
    }
    app = hub_application(ANY, ANY, ANY, HttpAccess(), ANY, **cast(Any, {**given, **parts}))
    return cast(Any, app).routes  # type: ignore[no-any-return]


@pytest.mark.parametrize("routes", [gateway, hub])
def test_every_route_has_its_declared_methods(routes: Any) -> None:
    found = routes()
    assert len(found) > 10
    for route in found:
        assert isinstance(route, HttpRoute), route.path
        assert route.methods, route.path
        if "GET" in route.methods:
            assert ("HEAD" in route.methods) is (route.path not in TAKES_BY_GET), route.path
        else:
            assert "HEAD" not in route.methods, route.path


def modules() -> Iterator[Path]:
    for package in ("bridge", "edge", "cloud", "spark", "images"):
        yield from (ROOT / package).rglob("*.py")


def test_modules_use_the_common_route_class() -> None:
    """Such a route would accept HEAD wherever it accepts GET."""
    for path in modules():
        if path.name == "route.py" and path.parent.name == "http":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = {name.name for name in node.names}
                assert not (node.module == "starlette.routing" and "Route" in names), path


def test_allowed_methods_include_all_routes_of_a_path() -> None:
    found = [each for each in command_routes(ANY, HttpAccess()) if isinstance(each, HttpRoute)]
    assert allowed_methods(found, "/api/v1/commands") == "GET, HEAD, POST"
    assert allowed_methods(found, "/api/v1/commands/7") == "DELETE, GET, HEAD"


def test_device_api_is_absent_without_hono() -> None:
    async def main() -> None:
        router: Any = None
        assert {route.path for route in HttpDeviceApi(router, Limits()).routes} >= {"/c/{address:path}"}

    asyncio.run(main())
