"""Build one ASGI application from routes, with authentication on every path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.broker.http.access import HttpAccess
from edge.broker.http.audit import AuditLog
from edge.broker.http.compression import Compression
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import Answer, HttpRoute, allowed_methods
from edge.broker.http.session_keeper import RecoverSessions

Requirement = Callable[[Request], Awaitable[None]]
"""Raises RequestRefused if a request does not fulfil it."""


def needing(requirement: Requirement) -> Callable[[Answer], Answer]:
    """Return a decorator that lets an endpoint answer only requests that fulfil the requirement. RequestRefused of the
    endpoint is answered too."""

    def wrap(answer: Answer) -> Answer:
        async def behind(request: Request) -> Response:
            try:
                await requirement(request)
                return await answer(request)
            except RequestRefused as refused:
                return refused.response()

        return behind

    return wrap


class NoSniff:
    """Adds nosniff to every answer, as documents and metrics contain names that devices chose."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_field(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        await self._app(scope, receive, send_with_field if scope["type"] == "http" else send)


def application(routes: Sequence[HttpRoute], access: HttpAccess) -> Starlette:
    """Serve the routes, which check `access` themselves. Only users learn that a path or method is unknown."""

    async def unknown(request: Request, error: Exception) -> Response:
        try:
            await access.require_user(request)
        except RequestRefused as refused:
            return refused.response()
        if not isinstance(error, HTTPException):
            raise error
        if error.status_code == 405:
            return _not_allowed(request, routes)
        return RequestRefused(error.status_code, error.detail, error.headers).response()

    app = Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown, 500: _failed})
    app.router.redirect_slashes = False  # paths are exact
    app.add_middleware(RecoverSessions, recover=access.recover_session)
    app.add_middleware(NoSniff)
    app.add_middleware(Compression)
    app.add_middleware(AuditLog)
    return app


async def _failed(_request: Request, _error: Exception) -> Response:
    """Answer an internal error, which is then logged. Its text may contain secrets."""
    return RequestRefused(500, "internal error").response()


def _not_allowed(request: Request, routes: Sequence[HttpRoute]) -> Response:
    """Answer 405 with all methods of the path (RFC 9110 section 15.5.6). Starlette lists only those of one route."""
    allow = allowed_methods(routes, request.scope["path"])
    return RequestRefused(405, f"this path supports {allow}, not {request.method}", {"Allow": allow}).response()
