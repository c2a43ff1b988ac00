"""What several readings of one device amount to: numbers, summed up without changing what a reader looks for.

A summary is the last message as it was, with a member ``thinned`` more: how many messages it stands for, from when to
when, and minimum, maximum and mean of every number in them, by the number's path (``accel.x``). A reader that knows
nothing of it sees the last reading. A bare number becomes an object whose number has the empty name. The user property
`PROPERTY`, in an AMQP message the annotation of that name, says so outside of the body too.

Called on the thread that commits: nothing in a message may make it fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from bridge.amqp_values import Symbol, Ulong, encode
from bridge.message import AMQP, Run
from edge.broker.message.amqp_annotations import merged
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run, encode_run
from edge.broker.message.readings import NUMBER_MAX, MessageReading, is_number, reading, rewritten

PROPERTY: Final = "x-opt-waypost-thinned"
"""User property or annotation of a summary; its value is the number of messages it stands for."""

MEMBER: Final = "thinned"
BARE: Final = "bare"
OBJECT: Final = "object"

DEPTH_MAX: Final = 8
"""Levels of objects whose numbers are summed up; deeper ones are documents, not readings."""

NUMBERS_MAX: Final = 64
"""Numbers of one message; with more it stays as it is."""


def kind(run: Run, body: bytes) -> str | None:
    """What can be summed up together has it in common, for a reading; None for anything else."""
    found = reading(run, body)
    if found is None:
        return None
    if not isinstance(found.document, dict):
        return f"{BARE} {found.form} {found.about}"
    if not 0 < sum(1 for _ in _numbers(found.document)) <= NUMBERS_MAX:
        return None
    return f"{OBJECT} {found.form} {found.about}"


def summarise(messages: Sequence[tuple[Run, bytes]]) -> Run | None:
    """One message for several, oldest first, all of one `kind`; None when they cannot be summed up."""
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    sums: dict[str, tuple[float, int]] = {}
    stands_for, since = 0, messages[0][0].received_at
    document: dict[str, Any] = {}
    for run, body in messages:
        found = reading(run, body)
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
        stands_for += count
        for path, value in mean.items():
            total, many = sums.get(path, (0.0, 0))
            sums[path] = (total + value * count, many + count)
            lowest[path] = min(lowest.get(path, value), low.get(path, value))
            highest[path] = max(highest.get(path, value), high.get(path, value))
    document[MEMBER] = {
        "messages": stands_for,
        "from": since,
        "to": messages[-1][0].received_at,
        "min": lowest,
        "max": highest,
        "mean": {path: total / many for path, (total, many) in sums.items()},
    }
    try:
        return _whole(*messages[-1], last, document, stands_for)
    except (ValueError, OverflowError, RecursionError):  # JSON can say what cannot be written again
        return None


def _whole(run: Run, body: bytes, found: MessageReading, document: dict[str, Any], count: int) -> Run:
    """The last message with what it stands for. Raises ValueError, OverflowError or RecursionError."""
    whole, properties = rewritten(run, body, found, document, MEMBER), run.properties
    if run.flags & AMQP:
        whole = merged(whole, encode({Symbol(PROPERTY): Ulong(count)}))
    else:
        properties = _marked(properties, count)
    return Run(run.address, run.device, run.flags, properties, [whole], run.received_at)


_Part = tuple[int, int, dict[str, float], dict[str, float], dict[str, float]]
"""(messages, nanoseconds since 1970 of the first or 0, minima, maxima, means)."""

_Number = Annotated[float, msgspec.Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
_INT64_MAX: Final = (1 << 63) - 1


class _Thinned(msgspec.Struct):
    messages: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    min: dict[str, _Number]
    max: dict[str, _Number]
    mean: dict[str, _Number]
    since: Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)] = msgspec.field(name="from", default=0)


def _part(member: Any) -> _Part | None:
    """What a message that is a summary itself stands for; None when it only looks like one."""
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
    except MqttError:  # checked when it came in
        found = decode_run(b"")
    others = tuple(pair for pair in found.user_property if pair[0] != PROPERTY)
    return encode_run(msgspec.structs.replace(found, user_property=(*others, (PROPERTY, str(count)))))
