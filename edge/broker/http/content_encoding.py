"""Decompress request bodies (Content-Encoding, RFC 9110 section 8.4): gzip, up to a size limit."""

from __future__ import annotations

import zlib
from typing import Final

from starlette.requests import Request

from edge.broker.http.limits import HTTP_GZIP_MEMBERS_MAX
from edge.broker.http.refusal import RequestRefused

_GZIP: Final = ("gzip", "x-gzip")
"""Equivalent names (RFC 9110 section 8.4.1.3)."""
_GZIP_WINDOW: Final = 31
"""`wbits` of `zlib.decompressobj`: gzip header and trailer, largest window."""


def is_compressed(request: Request) -> bool:
    """Return True for a body in gzip. Raises RequestRefused (415) for any other encoding."""
    coding = ",".join(request.headers.getlist("content-encoding")).strip().lower()
    if coding in ("", "identity"):
        return False
    if coding not in _GZIP:
        words = f"the body is encoded as {coding[:40]!r}: send it as gzip or unencoded"
        raise RequestRefused(415, words, {"Accept-Encoding": "gzip"})
    return True


def decompress(body: bytes, bytes_max: int) -> bytes:
    """Decompress a gzip body of one or several members (RFC 1952 section 2.2). Raises RequestRefused.

    It never holds more than `bytes_max` and one byte.
    """
    parts: list[bytes] = []
    size = 0
    while body:
        if len(parts) == HTTP_GZIP_MEMBERS_MAX:
            raise RequestRefused(413, f"a gzip body has at most {HTTP_GZIP_MEMBERS_MAX} members")
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            part = member.decompress(body, bytes_max + 1 - size)
        except zlib.error as error:
            raise RequestRefused(400, f"the body is not gzip: {error}") from None
        size += len(part)
        if size > bytes_max:
            raise RequestRefused(413, f"a body has at most {bytes_max} bytes, decompressed")
        if not member.eof:
            raise RequestRefused(400, "the body is not gzip: it ends too early")
        parts.append(part)
        body = member.unused_data
    return b"".join(parts)
