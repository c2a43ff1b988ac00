"""What a message says: values, and reasons for what could not be read."""

from __future__ import annotations

from typing import NamedTuple


class Value(NamedTuple):
    """One value of a message, or one thing in it that could not be read (then `reason` says why).

    Numbers are `value`, texts `text`; true and false are 1.0 and 0.0 with their word as `text`, and an integer that no
    double is (from 2^53 on) is the nearest one with its digits as `text`; null is neither.
    """

    metric: str
    """Path of the value in its document, joined by dots (`accel.x`, `cells.0`). Empty: a bare value, named after its
    address later. Of a reason, empty means the whole message."""
    value: float | None = None
    text: str | None = None
    reason: str | None = None
    time_us: int | None = None
    """When the device measured it, microseconds since 1970 UTC; None where the body does not say."""
    unit: str | None = None
    device: str | None = None
    """Whom the message speaks of, where that is not who sent it."""
    alias: int | None = None
    """Sparkplug's number for the metric's name."""
    datatype: int | None = None
    """Sparkplug's data type."""
    signed: float | None = None
    """The same bits as a signed integer, where only the birth can tell."""


class UnreadableBody(Exception):
    """The whole message cannot be read; its text is the reason."""


class EncodedMessage(NamedTuple):
    """What a decoder sees of a message."""

    body: bytes
    address: str = ""
    content_type: str | None = None
    received_us: int = 0
    """When the gateway received it, microseconds since 1970 UTC: relative times are relative to that."""
    tenant: str = ""
