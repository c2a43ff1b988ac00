"""What an answer means for the messages of its request (RFC 9110 section 15, RFC 6585)."""

from __future__ import annotations

import email.utils
import enum
from http import HTTPStatus
from typing import Final

from bridge.connectors.limits import HTTP_RETRY_AFTER_S_MAX


class ResponseVerdict(enum.Enum):
    """What is to be done."""

    ACCEPTED = "accepted"
    LATER = "later"
    """The server cannot now: the same request again."""
    UNFIT = "unfit"
    """The server does not take at least one of the messages."""
    MISCONFIGURED = "misconfigured"
    """It would answer any request so: everything waits for a person."""


_UNFIT: Final = frozenset((400, 413, 422))
_LATER: Final = frozenset((408, 409, 425, 429))
"""409: a request with the same Idempotency-Key is being worked on."""


def verdict(status: int) -> ResponseVerdict:
    """Of an answer with this status."""
    if 200 <= status < 300:
        return ResponseVerdict.ACCEPTED
    if status in _UNFIT:
        return ResponseVerdict.UNFIT
    if status in _LATER or status >= 500:
        return ResponseVerdict.LATER
    return ResponseVerdict.MISCONFIGURED


def advice(status: int) -> str:
    """What a person should do, where there is something."""
    if 300 <= status < 400:
        return "redirects are not followed: give the connector the address it really has"
    if status in (401, 403):
        return "see the connector's credentials and signing secret, and the clock of this gateway"
    if status in (404, 405, 410):
        return "see http.path of the connector"
    if status == 415:
        return "see http.format of the connector"
    return ""


def phrase(status: int) -> str:
    """``503 Service Unavailable``."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def wait_s(retry_after: str | None, now: float) -> float:
    """Seconds a server asks to wait by Retry-After (RFC 9110 section 10.2.3), 0 when it asks for nothing; `now` in
    seconds since 1970."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), HTTP_RETRY_AFTER_S_MAX)
    try:
        until = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(until - now, 0.0), HTTP_RETRY_AFTER_S_MAX)
