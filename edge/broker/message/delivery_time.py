"""Read the delivery time that an AMQP message requests: annotations of ActiveMQ, Qpid JMS and Azure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from bridge.amqp_values import DecodeError, decode
from bridge.sections import MESSAGE_ANNOTATIONS, section_at, skip
from edge.broker.message.amqp_annotations import pairs, remove_annotations

_DELAY: Final = "x-opt-delivery-delay"
_TIMES: Final = ("x-opt-delivery-time", "x-opt-scheduled-enqueue-time")
_NAMES: Final = frozenset((_DELAY, *_TIMES))
_ENCODED: Final = tuple(name.encode() for name in _NAMES)


class DeliveryTime(NamedTuple):
    """Requested delivery time in the future."""

    annotation: str
    """Annotation that requests it."""
    wait_ms: int | None
    """Milliseconds from now, 1 or more; None: unknown, as no clock is right."""
    at_ms: int | None
    """Time of day in milliseconds since 1970 (UTC); None for a delay."""


def delivery_time_of(
    body: bytes, time_of_day_ms: Callable[[], int | None], created_ms: int | None
) -> DeliveryTime | None:
    """Return the delivery time that a message requests; None without one, or if it has passed.

    `body` has no header section. `time_of_day_ms` is called for a message with a request, and returns None while the
    clock is not known to be right: then a requested time of day is compared with `created_ms`, the creation-time by the
    sender's clock, as clients of JMS send it. Of several times the last one counts. Raises `DecodeError` for a value
    that is not a number.
    """
    section = section_at(body, 0)
    if section.code != MESSAGE_ANNOTATIONS:
        return None
    annotations = body[section.value : section.end]
    if not any(name in annotations for name in _ENCODED):
        return None
    now_ms = time_of_day_ms()
    known_ms = created_ms if now_ms is None else now_ms
    found: DeliveryTime | None = None
    for key, pair in pairs(annotations, 0):
        name = str(key)
        if name not in _NAMES:
            continue
        value, _ = decode(pair, skip(pair, 0))
        if value is None:
            continue
        requested_ms = _milliseconds(name, value)
        if name == _DELAY:
            each = DeliveryTime(name, requested_ms, None)
        elif known_ms is None:
            return DeliveryTime(name, None, requested_ms)
        else:
            at_ms = None if now_ms is None else requested_ms  # by a clock of the sender it is a delay
            each = DeliveryTime(name, requested_ms - known_ms, at_ms)
        if (each.wait_ms or 0) > (found.wait_ms or 0 if found is not None else 0):
            found = each
    return found


def without_delay(body: bytes) -> bytes:
    """Return a message without its delay: another broker that gets it later must not delay it once more.

    A time of day stays, as receivers may read it.
    """
    return remove_annotations(body, {_DELAY})


def _milliseconds(name: str, value: object) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return int(value)
    raise DecodeError(f"{name} is not a number of milliseconds")
