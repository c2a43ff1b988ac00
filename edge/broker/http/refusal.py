"""Error answers to HTTP requests: problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

import msgspec
from starlette.responses import Response

from edge.broker.http.caching import NEVER_CACHED
from edge.output.http_errors import code_of_status, words_of

RETRY_AFTER_S: Final = 5
"""Retry-After of 429 and 503: longer than a commit, short for a device."""
PROBLEM: Final = "application/problem+json"
"""Media type of every error."""
_TYPE: Final = "urn:waypost:error:"


class ProblemDocument(TypedDict):
    """Error of a request (RFC 9457). Some errors have further fields."""

    type: str
    """`urn:waypost:error:` and the code."""
    title: str
    """Short text, the same for every error with this code."""
    status: int
    detail: str
    """Fault of this request."""
    code: str
    """Word for programs; `waypost explain CODE` has its cause."""
    next_step: str
    """Remedy."""
    error: str
    """Deprecated: what is wrong and the next step. Use `detail` and `next_step`."""


class RequestRefused(Exception):
    """The request is answered with an error (`ProblemDocument`)."""

    def __init__(
        self,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
        *,
        code: str = "",
        next_step: str = "",
    ) -> None:
        """`code` and `next_step`: those of the status unless given."""
        super().__init__(f"{text}: {next_step}" if next_step else text)
        self.status = status
        self.headers = {**({"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else {}), **(headers or {})}
        self._detail = text
        self._code = code
        self._next_step = next_step

    def response(self, **more: Any) -> Response:
        """Return the answer; `more`: further fields of its document."""
        code = self._code or code_of_status(self.status)
        words = words_of(code, self.status)
        document = {
            "type": _TYPE + code,
            "title": words.title,
            "status": self.status,
            "detail": self._detail,
            "code": code,
            "next_step": self._next_step or words.next_step,
            "error": str(self),
            **more,
        }
        return Response(
            msgspec.json.encode(document), self.status, media_type=PROBLEM, headers={**NEVER_CACHED, **self.headers}
        )
