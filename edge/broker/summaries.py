"""What several readings of one device amount to: numeric JSON, summed up without changing what a reader looks for.

A summary is the last message as it was, with a member ``thinned`` more: how many messages it stands for, from when to
when, and minimum, maximum and mean of every number in them, by the number's path (``accel.x``). A reader that knows
nothing of it sees the last reading. A bare number becomes an object whose number has the empty name. The user property
`PROPERTY` (an annotation in AMQP) says so outside of the body too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from bridge.message import AMQP, Run
from edge.broker.mqtt.errors import MqttError
from edge.broker.mqtt.properties import decode_run, encode_run

PROPERTY: Final = "x-opt-waypost-thinned"
"""User property of a summary; its value is the number of messages it stands for."""

MEMBER: Final = "thinned"
BARE: Final = "bare"
OBJECT: Final = "object"

DEPTH_MAX: Final = 8
"""Levels of objects whose numbers are summed up; deeper ones are documents, not readings."""

NUMBERS_MAX: Final = 64
"""Numbers of one message; with more it stays as it is."""

BODY_BYTES_MAX: Final = 4096
"""A longer body is no reading."""


def kind(run: Run, body: bytes) -> str | None:
    """`BARE` or `OBJECT` for a reading that can be summed up, None for anything else."""
    if run.flags & AMQP or len(body) > BODY_BYTES_MAX or body[:1] not in b"{-0123456789" or not body:
        return None
    document = _document(body)
    if _is_number(document):
        return BARE
    if isinstance(document, dict):
        count = sum(1 for _ in _numbers(document))
        if 0 < count <= NUMBERS_MAX:
            return OBJECT
    return None


def summarise(messages: Sequence[tuple[Run, bytes]]) -> Run | None:
    """One message for several, oldest first, all of one `kind`; None when they cannot be summed up."""
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    sums: dict[str, tuple[float, int]] = {}
    stands_for, since = 0, messages[0][0].received_at
    last: Any = None
    for _, body in messages:
        last = _document(body)
        if not isinstance(last, dict):
            last = {"": last}
        before = last.pop(MEMBER, None)
        part = _part(before) if before is not None else _own(last)
        if part is None:
            return None
        count, begin, low, high, mean = part
        since = min(since, begin) if begin else since
        stands_for += count
        for path, value in mean.items():
            total, many = sums.get(path, (0.0, 0))
            sums[path] = (total + value * count, many + count)
            lowest[path] = min(lowest.get(path, value), low.get(path, value))
            highest[path] = max(highest.get(path, value), high.get(path, value))
    run = messages[-1][0]
    last[MEMBER] = {
        "messages": stands_for,
        "from": since,
        "to": run.received_at,
        "min": lowest,
        "max": highest,
        "mean": {path: total / many for path, (total, many) in sums.items()},
    }
    properties = _marked(run.properties, stands_for)
    return Run(run.address, run.device, run.flags, properties, [msgspec.json.encode(last)], run.received_at)


_Part = tuple[int, int, dict[str, float], dict[str, float], dict[str, float]]
"""(messages, nanoseconds since 1970 of the first or 0, minima, maxima, means)."""


class _Thinned(msgspec.Struct):
    messages: int
    min: dict[str, float]
    max: dict[str, float]
    mean: dict[str, float]
    since: int = msgspec.field(name="from", default=0)


def _part(member: Any) -> _Part | None:
    """What a message that is a summary itself stands for; None when it only looks like one."""
    try:
        found = msgspec.convert(member, _Thinned)
    except msgspec.ValidationError:
        return None
    return found.messages, found.since, found.min, found.max, found.mean


def _own(document: dict[str, Any]) -> _Part:
    numbers = dict(_numbers(document))
    return 1, 0, numbers, numbers, numbers


def _numbers(node: dict[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, value in node.items():
        name = f"{path}.{key}" if path else key
        if _is_number(value):
            yield name, value
        elif isinstance(value, dict) and depth < DEPTH_MAX and name != MEMBER:
            yield from _numbers(value, name, depth + 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _document(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _marked(properties: bytes, count: int) -> bytes:
    try:
        found = decode_run(properties)
    except MqttError:  # checked when it came in
        found = decode_run(b"")
    others = tuple(pair for pair in found.user_property if pair[0] != PROPERTY)
    return encode_run(msgspec.structs.replace(found, user_property=(*others, (PROPERTY, str(count)))))
