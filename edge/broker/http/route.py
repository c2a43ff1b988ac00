"""Route with exactly the methods that it lists.

Starlette's `Route` adds HEAD to every path with GET. HEAD runs the endpoint of GET and drops the body: where GET
fetches a message, HEAD would lose it (RFC 9110 section 9.2.1 forbids any effect).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Answer = Callable[[Request], Awaitable[Response]]
"""Endpoint of a route."""
PURE: Final = ("GET", "HEAD")
"""Methods of a path where GET has no effect: HEAD is answered like GET, without the body."""
READS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing (RFC 9110 section 9.2.1). `GET /c/…` is an exception: it fetches a message."""


class HttpRoute(Route):
    """A path and its endpoint. Other methods are answered with 405."""

    def __init__(
        self,
        path: str,
        endpoint: Answer,
        *,
        methods: Iterable[str],
        middleware: Sequence[Middleware] = (),
    ) -> None:
        super().__init__(path, endpoint, methods=list(methods), middleware=middleware)
        self.methods = set(methods)
        self._middleware = middleware

    def wrapped(self, wrap: Callable[[Answer], Answer]) -> HttpRoute:
        """Return this route with another endpoint, which may call this one."""
        return HttpRoute(self.path, wrap(self.endpoint), methods=self.methods or (), middleware=self._middleware)


def allowed_methods(routes: Iterable[HttpRoute], path: str) -> str:
    """Return the methods of all routes of a path, as the Allow field lists them (RFC 9110 section 10.2.1)."""
    found = {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
    return ", ".join(sorted(found))
