"""Positions of pages: the `next` of a page of the API, which a request for the next one repeats as `after`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from edge.broker.http.refusal import RequestRefused

T = TypeVar("T")


def encode_position(key: Sequence[str | int]) -> str:
    """Return the position after the row with this key."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode()


def decode_position(after: str, kind: type[T]) -> T:
    """Parse a position of `encode_position`. Raises `RequestRefused`."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(after), type=kind)
    except (binascii.Error, ValueError):  # msgspec.MsgspecError is one
        raise wrong_position() from None


def decode_time_position(after: str) -> tuple[int, str]:
    """Parse a position of the form TIME-ID, of rows in order of a time. Raises `RequestRefused`."""
    at, _, identifier = after.partition("-")
    if not (at.isascii() and at.isdigit() and len(at) < 19 and identifier.isalnum()):
        raise wrong_position()
    return int(at), identifier


def wrong_position() -> RequestRefused:
    """Return the refusal of a text that is the position of no page."""
    return RequestRefused(400, "after must be the `next` of the page before")
