"""Properties of an MQTT 5 PUBLISH (section 3.3.2.3) as values, for messages that leave in another protocol.

The gateway's listener has validated them on arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.hidden import hides

USERS_ANNOTATION: Final = "x-opt-mqtt-user-properties"
"""Annotation of an AMQP message: names and values of user properties, alternating. It is set where a name repeats, as
application properties are a map."""

_PAYLOAD_FORMAT, _EXPIRY, _CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA, _USER_PROPERTY = 1, 2, 3, 8, 9, 38


@hides("correlation_data", "users")
class PublishProperties(NamedTuple):
    """The properties that other protocols can represent."""

    expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    users: tuple[tuple[str, str], ...] = ()
    """User properties, in order; names may repeat."""


_NONE = PublishProperties()
_STRING_BYTES_MAX: Final = 65_535


def read(data: bytes) -> PublishProperties:
    """Decode the properties in `bridge.message.Run.properties` of a run in MQTT encoding.

    Decoding stops at a property it does not know: a message is sent in any case.
    """
    if not data:
        return _NONE
    found = _NONE
    users: list[tuple[str, str]] = []
    offset = 0

    def take() -> bytes:
        nonlocal offset
        start = offset + 2
        offset = start + int.from_bytes(data[offset:start])
        return data[start:offset]

    while offset < len(data):
        kind = data[offset]
        offset += 1
        if kind == _PAYLOAD_FORMAT:
            offset += 1
        elif kind == _EXPIRY:
            found = found._replace(expiry_s=int.from_bytes(data[offset : offset + 4]))
            offset += 4
        elif kind == _CONTENT_TYPE:
            found = found._replace(content_type=take().decode("utf-8", "replace"))
        elif kind == _RESPONSE_TOPIC:
            found = found._replace(response_topic=take().decode("utf-8", "replace"))
        elif kind == _CORRELATION_DATA:
            found = found._replace(correlation_data=take())
        elif kind == _USER_PROPERTY:
            users.append((take().decode("utf-8", "replace"), take().decode("utf-8", "replace")))
        else:
            break
    return found._replace(users=tuple(users))


def write(properties: PublishProperties) -> bytes:
    """Encode properties, in the order of their identifiers. Raises `ValueError` when one is too long."""
    texts = (
        (_CONTENT_TYPE, properties.content_type),
        (_RESPONSE_TOPIC, properties.response_topic),
        (_CORRELATION_DATA, properties.correlation_data),
    )
    parts = [] if properties.expiry_s is None else [bytes((_EXPIRY,)) + properties.expiry_s.to_bytes(4)]
    parts += [bytes((kind,)) + _prefixed(value) for kind, value in texts if value is not None]
    parts += [bytes((_USER_PROPERTY,)) + _prefixed(name) + _prefixed(value) for name, value in properties.users]
    return b"".join(parts)


def list_repeated(users: Sequence[tuple[str, str]]) -> list[str] | None:
    """Return the value of `USERS_ANNOTATION` for these user properties; None where no name repeats."""
    return [text for pair in users for text in pair] if len(dict(users)) < len(users) else None


def _prefixed(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    if len(raw) > _STRING_BYTES_MAX:
        raise ValueError(f"a property of {len(raw)} bytes")
    return len(raw).to_bytes(2) + raw
