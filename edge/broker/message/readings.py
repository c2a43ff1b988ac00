"""Numbers out of messages: which message is a reading, what it says, and the same message saying more.

An MQTT payload is one when it is JSON; an AMQP message when its body is one data section or string of JSON, a number or
a map. Everything of a message but its body stays byte for byte. A message that asks for an answer, belongs to a group
or has a footer, which may be a signature, is none: it means more than its numbers.
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
"""A longer body is no reading."""

NUMBER_MAX: Final = 1e200
"""A number beyond is no measured value, and could not be added up."""

_JSON, _TEXT, _VALUE = "json", "text", "value"

_REPLY_TO, _CORRELATION_ID, _GROUP_ID = 4, 5, 10
_DESCRIPTIVE: Final = (1, 2, 3, 6, 7)
"""Fields of the properties (AMQP 1.0 section 3.2.4) that tell what a message is about: user-id, to, subject,
content-type and content-encoding."""


@hides("document")
class MessageReading(NamedTuple):
    """A message's numbers, and how they are written in it."""

    document: Any
    """A number, or a map with text for keys."""
    form: str
    about: str
    """What else of the message tells one kind of reading from another."""
    start: int
    """Where the body begins that is to be written anew, and where it ends."""
    end: int


def reading(run: Run, body: bytes) -> MessageReading | None:
    """The message as a reading; None when it is none."""
    if len(body) > BODY_BYTES_MAX or run.flags & GROUPED:
        return None
    if not run.flags & AMQP:
        return _of_json(body, _JSON, "", 0, len(body))
    plain = s.plain_data(body)
    if plain is not None:
        return _of_json(plain, _JSON, "", 0, len(body))
    try:
        return _of_message(body)
    except DecodeError:  # checked when it came in, but not what its sections hold
        return None


def rewritten(run: Run, body: bytes, found: MessageReading, document: dict[str, Any], name: str) -> bytes:
    """The message with `document` for its body, which is its own with the member `name` more.

    Raises ValueError or OverflowError when that cannot be written.
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
    """True for what can be added up."""
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
    """What the properties say of what was read; None when the message is no reading."""
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
    """The section with a map for its value: the pairs it has as they are encoded, a number under the empty name."""
    at = s.section_at(body, found.start).value
    if isinstance(found.document, dict):
        others = [pair for key, pair in pairs(body, at) if key != name]
    else:
        others = [encode("") + body[at : found.end]]
    content = b"".join((*others, encode(name), encode(value)))
    count = 2 * (len(others) + 1)
    return b"\x00\x53\x77\xd1" + (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content
