"""Meaning of an HTTP status for the messages of its request (RFC 9110 section 15, RFC 6585)."""

from __future__ import annotations

import email.utils
import enum
from http import HTTPStatus
from typing import Final

from bridge.connectors.limits import HTTP_RETRY_AFTER_S_MAX


class ResponseVerdict(enum.Enum):
    """Action to take after a response."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    """Send the same request again later."""
    REJECTED = "rejected"
    """The server rejects at least one of the messages."""
    MISCONFIGURED = "misconfigured"
    """The server would reject any request until an operator changes the configuration."""


_REJECTED: Final = frozenset((400, 413, 422))
_RETRY: Final = frozenset((408, 409, 425, 429))
"""409: the server is still processing a request with the same Idempotency-Key."""


def verdict(status: int) -> ResponseVerdict:
    """Return the verdict for a status."""
    if 200 <= status < 300:
        return ResponseVerdict.ACCEPTED
    if status in _REJECTED:
        return ResponseVerdict.REJECTED
    if status in _RETRY or status >= 500:
        return ResponseVerdict.RETRY
    return ResponseVerdict.MISCONFIGURED


def advice(status: int) -> str:
    """Return the next step for an operator, or an empty text."""
    if 300 <= status < 400:
        return "redirects are not followed: set the connector to the final address"
    if status in (401, 403):
        return "check the connector's credentials and signing secret, and the clock of this gateway"
    if status in (404, 405, 410):
        return "check http.path of the connector"
    if status == 415:
        return "check http.format of the connector"
    return ""


def phrase(status: int) -> str:
    """Return a status with its phrase: ``503 Service Unavailable``."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def wait_s(retry_after: str | None, now: float) -> float:
    """Return the seconds of Retry-After (RFC 9110 section 10.2.3), 0 without one; `now`: seconds since 1970."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), HTTP_RETRY_AFTER_S_MAX)
    try:
        until = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(until - now, 0.0), HTTP_RETRY_AFTER_S_MAX)
