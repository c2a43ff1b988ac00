"""Error answers to HTTP requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

from starlette.responses import JSONResponse, Response

RETRY_AFTER_S: Final = 5
"""Retry-After of 429 and 503: longer than a commit, short for a device."""


class ErrorDocument(TypedDict):
    """Error of a request."""

    error: str


class RequestRefused(Exception):
    """The request is answered with an error: ``{"error": …}``."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else dict(headers or {})

    def response(self) -> Response:
        return JSONResponse({"error": str(self)}, self.status, headers=self.headers)
