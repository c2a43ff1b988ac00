"""Detect readings in messages, and add a member to the body of a reading.

An MQTT message is a reading if its payload is JSON. An AMQP message is one if its body is a data section or string with
JSON, a number or a map. Only the body is rewritten. A message that requests a response, belongs to a group or has a
footer (perhaps a signature) is not a reading, as it means more than its numbers.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from bridge import sections as s
from bridge.amqp_values import DecodeError, Timestamp, decode, encode
from bridge.hidden import hides
from bridge.message import AMQP, GROUPED, Run
from edge.broker.message.amqp_annotations import pairs

BODY_BYTES_MAX: Final = 4096
"""Largest body of a reading."""

NUMBER_MAX: Final = 1e200
"""Largest number of a reading; larger ones are not measurements and could not be summed."""

_JSON, _TEXT, _VALUE = "json", "text", "value"

_REPLY_TO, _CORRELATION_ID, _GROUP_ID = 4, 5, 10
_DESCRIPTIVE: Final = (1, 2, 3, 6, 7)
"""Fields of the properties (AMQP 1.0 section 3.2.4) that describe a message: user-id, to, subject, content-type and
content-encoding."""


@hides("document")
class MessageReading(NamedTuple):
    """Numbers of a message, with their encoding and position."""

    document: Any
    """A number, or a map with string keys."""
    form: str
    about: str
    """Further properties of the message that distinguish kinds of readings."""
    start: int
    """Start and end of the body to rewrite."""
    end: int


def parse_reading(run: Run, body: bytes) -> MessageReading | None:
    """Return the message as a reading, or None."""
    if len(body) > BODY_BYTES_MAX or run.flags & GROUPED:
        return None
    if not run.flags & AMQP:
        return _of_json(body, _JSON, "", 0, len(body))
    plain = s.plain_data(body)
    if plain is not None:
        return _of_json(plain, _JSON, "", 0, len(body))
    try:
        return _of_message(body)
    except DecodeError:  # only the sections were checked on receipt, not their values
        return None


def rewrite_body(run: Run, body: bytes, found: MessageReading, document: dict[str, Any], name: str) -> bytes:
    """Return the message with `document` as its body: its own with the additional member `name`.

    Raises ValueError or OverflowError if it cannot be encoded.
    """
    if found.form == _VALUE:
        written = _with_pair(body, found, name, document[name])
    else:
        text = msgspec.json.encode(document)
        if not run.flags & AMQP:
            return text
        code, value = (s.DATA, text) if found.form == _JSON else (s.VALUE, text.decode())
        written = b"\x00\x53" + bytes((code,)) + encode(value)
    return body[: found.start] + written + body[found.end :]


def is_number(value: object) -> bool:
    """Return True for a number that can be summed."""
    return isinstance(value, int | float) and not isinstance(value, bool | Timestamp) and abs(value) <= NUMBER_MAX


def _of_message(body: bytes) -> MessageReading | None:
    about: list[str] = []
    found: s.MessageSection | None = None
    for section in s.sections(body):
        if section.code == s.PROPERTIES:
            description = _description(decode(body, section.value)[0])
            if description is None:
                return None
            about.append(description)
        elif section.code == s.APPLICATION_PROPERTIES:
            about.append(body[section.value : section.end].decode("latin-1"))
        elif section.code in (s.DATA, s.VALUE) and found is None:
            found = section
        elif section.code != s.MESSAGE_ANNOTATIONS:
            return None
    return _of_body(body, found, "\n".join(about)) if found is not None else None


def _of_body(body: bytes, found: s.MessageSection, key: str) -> MessageReading | None:
    value, _ = decode(body, found.value)
    if isinstance(value, bytes) and found.code == s.DATA:
        return _of_json(value, _JSON, key, found.start, found.end)
    if type(value) is str:
        return _of_json(value.encode("utf-8", "replace"), _TEXT, key, found.start, found.end)
    if is_number(value) or (isinstance(value, dict) and all(type(name) is str for name in value)):
        return MessageReading(value, _VALUE, key, found.start, found.end)
    return None


def _description(properties: Any) -> str | None:
    """Return the description in the properties; None if the message is not a reading."""
    if not isinstance(properties, list):
        return None
    fields = [*properties, *[None] * 13]
    if any(fields[field] is not None for field in (_REPLY_TO, _CORRELATION_ID, _GROUP_ID)):
        return None
    return repr([fields[field] for field in _DESCRIPTIVE])


def _of_json(text: bytes, form: str, about: str, start: int, end: int) -> MessageReading | None:
    if text[:1] not in b"{-0123456789" or not text:
        return None
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(document, dict) and not is_number(document):
        return None
    return MessageReading(document, form, about, start, end)


def _with_pair(body: bytes, found: MessageReading, name: str, value: Any) -> bytes:
    """Encode the section with an added pair. Other pairs keep their encoding; a number gets the empty name."""
    at = s.section_at(body, found.start).value
    if isinstance(found.document, dict):
        others = [pair for key, pair in pairs(body, at) if key != name]
    else:
        others = [encode("") + body[at : found.end]]
    content = b"".join((*others, encode(name), encode(value)))
    count = 2 * (len(others) + 1)
    return b"\x00\x53\x77\xd1" + (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content
