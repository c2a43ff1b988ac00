"""Content of a message: values, and reasons for its unreadable parts."""

from __future__ import annotations

from typing import NamedTuple


class Value(NamedTuple):
    """One value of a message, or one part that could not be read; then `reason` says why.

    Numbers are `value`, texts `text`. True and false are 1.0 and 0.0 with their word as `text`. An integer that a
    double cannot hold (from 2^53 on) is the nearest double, with its digits as `text`. Null is neither.
    """

    metric: str
    """Path of the value in its document, joined by dots (`accel.x`, `cells.0`).

    Empty for a bare value, which is named after its address later; for a reason, empty means the whole message.
    """
    value: float | None = None
    text: str | None = None
    reason: str | None = None
    time_us: int | None = None
    """Time of the measurement by the device, microseconds since 1970 UTC; None if the body has none."""
    unit: str | None = None
    device: str | None = None
    """Device that the value belongs to, if not the sender."""
    alias: int | None = None
    """Sparkplug's number for the metric's name."""
    datatype: int | None = None
    """Sparkplug's data type."""
    signed: float | None = None
    """The same bits as a signed integer, if only the birth can decide."""


class UnreadableBody(Exception):
    """The whole message cannot be read; the text is the reason."""


class EncodedMessage(NamedTuple):
    """Message as a decoder gets it."""

    body: bytes
    address: str = ""
    content_type: str | None = None
    received_us: int = 0
    """Reception at the gateway, microseconds since 1970 UTC: relative times are relative to it."""
    tenant: str = ""
