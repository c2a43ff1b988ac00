"""Read the delivery time that an AMQP message requests: annotations of ActiveMQ, Qpid JMS and Azure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from bridge.amqp_values import DecodeError, decode
from bridge.sections import MESSAGE_ANNOTATIONS, section_at, skip
from edge.broker.limits import DELIVERY_TIME_AHEAD_MS_MAX
from edge.broker.message.amqp_annotations import pairs, remove_annotations

_DELAY: Final = "x-opt-delivery-delay"
_TIMES: Final = ("x-opt-delivery-time", "x-opt-scheduled-enqueue-time")
_NAMES: Final = frozenset((_DELAY, *_TIMES))
_ENCODED: Final = tuple(name.encode() for name in _NAMES)


class DeliveryTime(NamedTuple):
    """Requested delivery time in the future."""

    annotation: str
    """Annotation that requests it."""
    wait_ms: int
    """Milliseconds from now, 1 or more."""
    at_ms: int | None
    """Time of day in milliseconds since 1970 (UTC); None for a delay."""


def delivery_time_of(body: bytes, now_ms: int) -> DeliveryTime | None:
    """Return the delivery time that a message requests; None without one, or if it has passed.

    `body` has no header section. Raises `DecodeError` for a value that is not a number.
    """
    section = section_at(body, 0)
    if section.code != MESSAGE_ANNOTATIONS:
        return None
    annotations = body[section.value : section.end]
    if not any(name in annotations for name in _ENCODED):
        return None
    for key, pair in pairs(annotations, 0):
        name = str(key)
        if name not in _NAMES:
            continue
        value, _ = decode(pair, skip(pair, 0))
        if value is None:
            continue
        requested_ms = _milliseconds(name, value)
        if name == _DELAY:
            if requested_ms > 0:
                return DeliveryTime(name, requested_ms, None)
        elif requested_ms - now_ms > DELIVERY_TIME_AHEAD_MS_MAX:
            return DeliveryTime(name, requested_ms - now_ms, requested_ms)
    return None


def _milliseconds(name: str, value: object) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value)
    raise DecodeError(f"{name} is not a number of milliseconds")


def without_delivery_time(body: bytes) -> bytes:
    """Return a message without the request: another broker that gets it later must not delay it once more."""
    return remove_annotations(body, _NAMES)
