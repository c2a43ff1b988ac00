"""The page of a console: a document of a kilobyte that loads the console's files.

It has no data, so it needs no authentication. Its script asks the API, which does.
"""

from __future__ import annotations

import html
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from edge.broker.http.assets import StaticAssets
from edge.broker.http.caching import NEVER_CACHED

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy (W3C CSP 3, Trusted Types): files and data of this server only, no inline script or style,
and no text becomes markup."""
FIELDS: Final = {
    **NEVER_CACHED,
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
_OTHER_SENSORS: Final = "geolocation=(), microphone=()"
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1, viewport-fit=cover">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="{base}icon.svg">
<link rel="stylesheet" href="{base}waypost.css">
<link rel="stylesheet" href="{base}vendor/uplot.css">
<script src="{base}{script}" type="module"></script>
</head>
<body>
<noscript><main><h1>{title}</h1>
<p>This console needs JavaScript. The same figures are at /api/v1/status and /metrics.</p></main></noscript>
</body>
</html>
"""


class ConsolePage:
    """Answers ``GET /``."""

    def __init__(self, title: str, assets: StaticAssets, script: str, *, camera: bool = False) -> None:
        """`script`: name of the module that makes the page. `camera`: the page may ask to use the camera."""
        self._fields = {**FIELDS, "Permissions-Policy": f"camera=({'self' if camera else ''}), {_OTHER_SENSORS}"}
        self._text = _PAGE.format(title=html.escape(title), base=assets.base, script=script)

    async def respond(self, _request: Request) -> Response:
        return HTMLResponse(self._text, headers=self._fields)
