"""First checks of every HTTP request: well-formed, addressed to this node, from an allowed page.

They run before the path is evaluated, so that no path can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from edge.broker.http.refusal import RequestRefused
from edge.broker.security.site import ForeignRequest, RequestOrigin, Site

_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
"""A percent sign without two hexadecimal digits (RFC 3986 section 2.1)."""
PAGES: Final = frozenset(("/", "/api/v1/session/oidc/callback"))
"""Paths that links on other sites may lead to. The issuer of a sign-in is one; `oidc_api` checks its answer."""


class Guard:
    """ASGI middleware that checks requests."""

    def __init__(
        self,
        app: ASGIApp,
        site: Site,
        guarded: Callable[[], bool],
        origins: Callable[[str], Collection[str]] = lambda path: (),
    ) -> None:
        """`guarded` returns True if clients must authenticate. `origins`: other origins allowed for a path (CORS)."""
        self._app = app
        self._site = site
        self._guarded = guarded
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except RequestRefused as refused:
                await refused.response()(scope, receive, send)
                return
            except ForeignRequest as why:
                await RequestRefused(why.status, str(why)).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raise RequestRefused or ForeignRequest."""
        fields: dict[bytes, bytes] = dict(scope["headers"])
        _check_target(scope["raw_path"], scope["query_string"])
        _check_text(b"\n".join(value for _, value in scope["headers"]), "a header field is not UTF-8")
        path = scope["path"]
        origin = RequestOrigin(
            _text(fields, b"host"),
            _text(fields, b"origin"),
            _text(fields, b"sec-fetch-site"),
            navigates=scope["method"] == "GET" and path in PAGES and fields.get(b"sec-fetch-mode") == b"navigate",
        )
        self._site.check(origin, guarded=self._guarded(), others=self._origins(path))


def _text(fields: dict[bytes, bytes], name: bytes) -> str | None:
    value = fields.get(name)
    return None if value is None else value.decode("latin-1")


def _check_target(path: bytes, query: bytes) -> None:
    """Raise RequestRefused unless the escaped target is UTF-8 (RFC 3986 section 2.5)."""
    if not path.startswith(b"/"):
        raise RequestRefused(400, "the request's target is not a path")
    for part in (path, query):
        if _BROKEN_ESCAPE.search(part):
            raise RequestRefused(400, "a % in the request's target is not followed by two hexadecimal digits")
        _check_text(unquote_to_bytes(part), "the request's target is not UTF-8")


def _check_text(raw: bytes, fault: str) -> None:
    if raw.isascii():
        return
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestRefused(400, fault) from None
