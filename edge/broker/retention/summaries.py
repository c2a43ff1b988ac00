"""Summaries of several readings of one device.

A summary is the last message with an added member ``thinned``. It has the number of messages, their first and last
time, and the minimum, maximum and mean of every number in them, by the path of the number (``accel.x``). A reader that
ignores the member sees the last reading. A bare number becomes an object with the number under the empty name. The user
property `PROPERTY`, or the annotation of that name in an AMQP message, marks a summary outside of the body.

These functions run on the writer's thread. No message may make them fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from bridge.amqp_values import Symbol, Ulong, encode
from bridge.message import AMQP, Run
from edge.broker.message.amqp_annotations import merge_annotations
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run, encode_run
from edge.broker.message.readings import NUMBER_MAX, MessageReading, is_number, parse_reading, rewrite_body

PROPERTY: Final = "x-opt-waypost-thinned"
"""User property or annotation of a summary; its value is the number of summarised messages."""

MEMBER: Final = "thinned"
BARE: Final = "bare"
OBJECT: Final = "object"

DEPTH_MAX: Final = 8
"""Levels of nested objects that are searched for numbers. Deeper objects are documents, not readings."""

NUMBERS_MAX: Final = 64
"""Most numbers of one message that is summarised."""


def kind(run: Run, body: bytes) -> str | None:
    """Return a key for a reading: readings with the same key can be summarised. None for other messages."""
    found = parse_reading(run, body)
    if found is None:
        return None
    if not isinstance(found.document, dict):
        return f"{BARE} {found.form} {found.about}"
    if not 0 < sum(1 for _ in _numbers(found.document)) <= NUMBERS_MAX:
        return None
    return f"{OBJECT} {found.form} {found.about}"


def summarise(messages: Sequence[tuple[Run, bytes]]) -> Run | None:
    """Return one message for several of one `kind`, oldest first; None when they cannot be summarised."""
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    sums: dict[str, tuple[float, int]] = {}
    represented, since = 0, messages[0][0].received_at
    document: dict[str, Any] = {}
    for run, body in messages:
        found = parse_reading(run, body)
        if found is None:
            return None
        last = found
        document = dict(found.document) if isinstance(found.document, dict) else {"": found.document}
        before = document.pop(MEMBER, None)
        part = _part(before) if before is not None else _own(document)
        if part is None:
            return None
        count, begin, low, high, mean = part
        since = min(since, begin) if begin else since
        represented += count
        for path, value in mean.items():
            total, many = sums.get(path, (0.0, 0))
            sums[path] = (total + value * count, many + count)
            lowest[path] = min(lowest.get(path, value), low.get(path, value))
            highest[path] = max(highest.get(path, value), high.get(path, value))
    document[MEMBER] = {
        "messages": represented,
        "from": since,
        "to": messages[-1][0].received_at,
        "min": lowest,
        "max": highest,
        "mean": {path: total / many for path, (total, many) in sums.items()},
    }
    try:
        return _whole(*messages[-1], last, document, represented)
    except (ValueError, OverflowError, RecursionError):  # JSON can be read that cannot be written again
        return None


def _whole(run: Run, body: bytes, found: MessageReading, document: dict[str, Any], count: int) -> Run:
    """Return the last message with the summary. Raises ValueError, OverflowError or RecursionError."""
    whole, properties = rewrite_body(run, body, found, document, MEMBER), run.properties
    if run.flags & AMQP:
        whole = merge_annotations(whole, encode({Symbol(PROPERTY): Ulong(count)}))
    else:
        properties = _marked(properties, count)
    return Run(run.address, run.device, run.flags, properties, [whole], run.received_at)


_Part = tuple[int, int, dict[str, float], dict[str, float], dict[str, float]]
"""(messages, nanoseconds since 1970 of the first or 0, minima, maxima, means)."""

_Number = Annotated[float, msgspec.Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
_INT64_MAX: Final = (1 << 63) - 1


class _Thinned(msgspec.Struct):
    """Member `MEMBER` of a summary."""

    messages: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    min: dict[str, _Number]
    max: dict[str, _Number]
    mean: dict[str, _Number]
    since: Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)] = msgspec.field(name="from", default=0)


def _part(member: Any) -> _Part | None:
    """Return the figures of a message that is a summary itself; None when the member is something else."""
    try:
        found = msgspec.convert(member, _Thinned)
    except (msgspec.ValidationError, OverflowError):
        return None
    return found.messages, found.since, found.min, found.max, found.mean


def _own(document: dict[str, Any]) -> _Part:
    numbers = dict(_numbers(document))
    return 1, 0, numbers, numbers, numbers


def _numbers(node: dict[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, value in node.items():
        name = f"{path}.{key}" if path else key
        if is_number(value):
            yield name, value
        elif isinstance(value, dict) and depth < DEPTH_MAX and name != MEMBER:
            yield from _numbers(value, name, depth + 1)


def _marked(properties: bytes, count: int) -> bytes:
    try:
        found = decode_run(properties)
    except MqttError:  # it was checked on receipt
        found = decode_run(b"")
    others = tuple(pair for pair in found.user_property if pair[0] != PROPERTY)
    return encode_run(msgspec.structs.replace(found, user_property=(*others, (PROPERTY, str(count)))))
