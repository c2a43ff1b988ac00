"""Messages in the form of the lake: content type, properties as JSON, and body, for both protocols.

Pure functions of bytes. An unreadable message lands too, raw: content type null, and a property with the reason. Names
are those of the standards, MQTT 5 section 2.2.2.2 and AMQP 1.0 section 3.2, in lower case with hyphens.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from bridge.hidden import hides

MALFORMED = "waypost-malformed"
"""Property of an unreadable message with the reason. Its body is the unchanged message."""

CREATION_TIME = "creation-time"
"""Producer's time, milliseconds since 1970 UTC (AMQP 1.0 section 3.2.4; for MQTT 5 a user property of that name)."""

EVENT_TIME_MS_MAX = 253_402_300_799_999
"""Last millisecond of the year 9999: readers of the lake cannot show a later time."""


@hides("properties")
class MessageDescription(NamedTuple):
    """Content type, properties and producer's time of a message; `event_time_ms` None without a time."""

    content_type: str | None
    properties: str | None
    event_time_ms: int | None


NOTHING = MessageDescription(None, None, None)
"""A message without properties."""


class PropertiesError(Exception):
    """The bytes are not MQTT 5 properties."""


_NUMBERS = {0x01: ("payload-format-indicator", 1), 0x02: ("message-expiry-interval", 4), 0x23: ("topic-alias", 2)}
_TEXTS = {0x03: "content-type", 0x08: "response-topic"}
_CORRELATION_DATA, _SUBSCRIPTION_IDENTIFIER, _USER_PROPERTY = 0x09, 0x0B, 0x26


def describe_mqtt(properties: bytes) -> MessageDescription:
    """Describe a message by its encoded MQTT 5 publish properties (without length prefix)."""
    if not properties:
        return NOTHING
    try:
        found, user = _parse_mqtt(properties)
    except PropertiesError as error:
        return malformed(f"MQTT properties: {error}", properties)
    event_time_ms = _event_time_ms(user.get(CREATION_TIME))
    content_type = found.pop("content-type", None)
    if user:
        found["user-properties"] = user
    return MessageDescription(content_type, _json(found), event_time_ms)


def describe_amqp(content_type: str | None, properties: Mapping[str, Any]) -> MessageDescription:
    """Describe a message by what `edge.broker.message.translation.payload_of` found in a bare AMQP message."""
    return MessageDescription(content_type, _json(dict(properties)), _event_time_ms(properties.get(CREATION_TIME)))


def malformed(reason: str, raw: bytes = b"") -> MessageDescription:
    """Describe an unreadable message; `raw`: properties that would be lost otherwise."""
    found: dict[str, Any] = {MALFORMED: reason}
    if raw:
        found["waypost-raw-properties"] = base64.b64encode(raw).decode()
    return MessageDescription(None, _json(found), None)


def _parse_mqtt(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (named properties, user properties). A repeated user property becomes a list, in order."""
    found: dict[str, Any] = {}
    user: dict[str, Any] = {}
    at = 0
    while at < len(data):
        identifier = data[at]
        at += 1
        if identifier in _NUMBERS:
            name, width = _NUMBERS[identifier]
            found[name] = int.from_bytes(_take(data, at, width), "big")
            at += width
        elif identifier in _TEXTS:
            found[_TEXTS[identifier]], at = _text(data, at)
        elif identifier == _CORRELATION_DATA:
            value, at = _binary(data, at)
            found["correlation-data"] = base64.b64encode(value).decode()
        elif identifier == _USER_PROPERTY:
            name, at = _text(data, at)
            text, at = _text(data, at)
            _add(user, name, text)
        elif identifier == _SUBSCRIPTION_IDENTIFIER:
            at = _skip_variable_integer(data, at)
        else:
            raise PropertiesError(f"identifier {identifier:#04x} does not belong to PUBLISH")
    return found, user


def _add(user: dict[str, Any], name: str, text: str) -> None:
    if name not in user:
        user[name] = text
    elif isinstance(user[name], list):
        user[name].append(text)
    else:
        user[name] = [user[name], text]


def _take(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise PropertiesError("they end early")
    return data[at : at + length]


def _binary(data: bytes, at: int) -> tuple[bytes, int]:
    length = int.from_bytes(_take(data, at, 2), "big")
    return _take(data, at + 2, length), at + 2 + length


def _text(data: bytes, at: int) -> tuple[str, int]:
    value, at = _binary(data, at)
    try:
        return value.decode(), at
    except UnicodeDecodeError as error:
        raise PropertiesError("a string is not UTF-8") from error


def _skip_variable_integer(data: bytes, at: int) -> int:
    for length in range(1, 5):
        if _take(data, at + length - 1, 1)[0] < 0x80:
            return at + length
    raise PropertiesError("a variable byte integer has more than four bytes")


def _event_time_ms(value: object) -> int | None:
    """Return a valid producer's time; others stay among the properties only."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 15:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= EVENT_TIME_MS_MAX:
        return value
    return None


def _json(properties: dict[str, Any]) -> str | None:
    if not properties:
        return None
    return msgspec.json.encode(properties, enc_hook=str).decode()
