"""Detect AMQP messages with a requested delivery time: annotations of ActiveMQ, Qpid JMS and Azure.

Scheduled delivery is not supported, so such a message is refused: a command that is ten minutes early does more harm
than a refused one.
"""

from __future__ import annotations

from typing import Final

from bridge.amqp_values import DecodeError, decode
from bridge.sections import MESSAGE_ANNOTATIONS, section_at, skip
from edge.broker.limits import DELIVERY_TIME_AHEAD_MS_MAX
from edge.broker.message.amqp_annotations import pairs

_DELAY: Final = "x-opt-delivery-delay"
_TIMES: Final = ("x-opt-delivery-time", "x-opt-scheduled-enqueue-time")
_NAMES: Final = tuple(name.encode() for name in (_DELAY, *_TIMES))


def delivery_delay_of(body: bytes, now_ms: int) -> tuple[str, int] | None:
    """Return the annotation that requests a later delivery, and the delay in milliseconds.

    `body` has no header section. Return None without such an annotation, or if its time has passed. Raises
    `DecodeError` for a value that is not a number.
    """
    section = section_at(body, 0)
    if section.code != MESSAGE_ANNOTATIONS:
        return None
    annotations = body[section.value : section.end]
    if not any(name in annotations for name in _NAMES):
        return None
    for key, pair in pairs(annotations, 0):
        name = str(key)
        if name != _DELAY and name not in _TIMES:
            continue
        value, _ = decode(pair, skip(pair, 0))
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DecodeError(f"{name} is not a number of milliseconds")
        ahead_ms = int(value) if name == _DELAY else int(value) - now_ms
        if ahead_ms > (0 if name == _DELAY else DELIVERY_TIME_AHEAD_MS_MAX):
            return name, ahead_ms
    return None
