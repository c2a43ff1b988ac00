"""Header fields of a request as UTF-8 text (RFC 9110 section 5.5 leaves the encoding to us)."""

from __future__ import annotations

from starlette.requests import Request


def fields_of(request: Request) -> dict[str, str]:
    """Return the fields by name in lower case; of repeated fields the first."""
    found: dict[str, str] = {}
    for name, value in request.headers.raw:
        found.setdefault(name.decode("ascii"), value.decode("utf-8", "replace"))  # `guard` has refused other names
    return found
