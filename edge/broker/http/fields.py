"""The header fields of a request as text: UTF-8, of which ASCII is a part (RFC 9110 section 5.5 leaves it to us)."""

from __future__ import annotations

from starlette.requests import Request


def fields_of(request: Request) -> dict[str, str]:
    """By name in lower case; of those that stand there more than once, the first."""
    found: dict[str, str] = {}
    for name, value in request.headers.raw:
        found.setdefault(name.decode("ascii"), value.decode("utf-8", "replace"))  # `guard` has refused what is not
    return found
