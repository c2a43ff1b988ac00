"""Log each change that a user makes over HTTP: who, from where, what, and the outcome.

``audit: user=anna from=10.0.0.7 POST /api/v1/bridge/pause?connector=hub -> 200``

Only the interface for people and programs (``/api/``) is logged, as messages of devices are no changes of the node.
Bodies are not logged, as they may contain secrets. Requests without a user, which change nothing, are left out, and so
are requests that only check a change (`note_rehearsal`), and sign-ins, which have lines of their own (`session_api`).
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.broker.http.access import USER
from edge.broker.http.route import READS
from edge.broker.http.session_api import PATH as SESSION
from edge.output.log_history import event
from edge.output.logs import UNLIMITED
from edge.output.text import line

log = logging.getLogger(__name__)

_AUDITED: Final = "/api/"
_REHEARSALS: Final = frozenset({"/api/v1/configuration/check", "/api/v1/plans", "/api/v1/commands/rehearsal"})
"""Paths of requests that change nothing; a page sends some as one types."""
REHEARSAL: Final = "waypost.rehearsal"
"""Key of the scope of a request that turned out to be a dry run."""
_TARGET_CHARACTERS_MAX: Final = 500
"""Characters of path and query in a line; names have up to 255."""
_FAILED: Final = 500
"""Status of an answer when the endpoint raised an exception."""


class AuditLog:
    """ASGI middleware that logs changes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READS or not _is_audited(scope["path"]):
            await self._app(scope, receive, send)
            return
        status = _FAILED

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            if not scope.get(REHEARSAL):
                _report(scope, status)


def note_rehearsal(scope: Scope) -> None:
    """Leave this request out of the audit: it changes nothing."""
    scope[REHEARSAL] = True


def _is_audited(path: str) -> bool:
    return path.startswith(_AUDITED) and path != SESSION and path not in _REHEARSALS


def _report(scope: Scope, status: int) -> None:
    user, client = scope.get(USER), scope.get("client")
    if user is None and status >= 400:
        return
    target = scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        target = f"{target}?{scope['query_string'].decode('latin-1')}"
    log.info(
        "audit: user=%s from=%s %s %s -> %d",
        line(user or "-"), client[0] if client else "-", scope["method"], line(target[:_TARGET_CHARACTERS_MAX]), status,
        extra={**UNLIMITED, **event("change")},
    )  # fmt: skip
