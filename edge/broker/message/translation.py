"""Translate messages between AMQP bare messages and MQTT application messages, without I/O.

A run is stored as received, and translated as a whole when it is sent in the other protocol. Properties that both
protocols have survive a round trip: content type, response topic and reply-to, correlation, user and application
properties, message expiry and ttl, payload format and type of body, quality of service and durability, retain flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from bridge import sections as s
from bridge.amqp_values import (
    Allowance,
    DecimalBits,
    DecodeError,
    DescribedValue,
    Symbol,
    Timestamp,
    TooLarge,
    Ubyte,
    Uint,
    decode,
    encode,
)
from bridge.hidden import hides
from bridge.limits import HEADER_VALUES_MAX, JSON_BYTES_MAX
from bridge.message import AMQP, DURABLE, RETAIN, Run
from bridge.publish_properties import USERS_ANNOTATION, list_repeated
from edge.broker.limits import HEADER_USUAL_BYTES_MAX, HEADERS_USUAL_MAX
from edge.broker.message.amqp_identifiers import STRING_BYTES_MAX, as_text, correlation_data, identifier
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import NONE as NO_PROPERTIES
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run

QOS_ANNOTATION: Final = Symbol("x-opt-mqtt-qos")
RETAIN_ANNOTATION: Final = Symbol("x-opt-retain-message")
DEAD_PREFIX: Final = "x-opt-waypost-dead-"
"""Prefix of the annotations of a dead letter, which are user properties in MQTT."""

AMQP_MESSAGE: Final = "application/vnd.waypost.amqp-message"
"""Content type of an untranslated AMQP message (without header section) for an MQTT client."""

PROPERTY_NAMES: Final = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
"""Fields of the properties section in order (section 3.2.4)."""
_MESSAGE_ID, _TO, _REPLY_TO, _CORRELATION_ID, _CONTENT_TYPE = 0, 2, 4, 5, 6
_CREATION_TIME: Final = 9
EXPIRY_FIELD: Final = 8
"""Index of absolute-expiry-time in the properties."""
GROUP_FIELD: Final = 10
AS_USER_PROPERTIES: Final = ("message-id", "subject", "content-encoding", "group-id")
"""Fields that are user properties of the same names in MQTT, which has no properties for them."""
PRIORITY: Final = "priority"
"""User property for the priority of the header, unless it is the default."""
_PRIORITY_USUAL: Final = 4
_PRIORITY_MAX: Final = 9
_FIELDS: Final = {name: PROPERTY_NAMES.index(name) for name in AS_USER_PROPERTIES}
_NO_PROPERTIES: Final = (None,) * len(PROPERTY_NAMES)

_MS: Final = 1000
_NS_IN_MS: Final = 1_000_000
_UINT32_MAX: Final = 0xFFFF_FFFF
_VARIABLE: Final = frozenset((0xB0, 0xB1, 0xB3))
"""Constructors of long binary, string and symbol values."""


class Header(NamedTuple):
    """Fields of a header section (section 3.2.1) that the broker reads."""

    durable: bool = False
    ttl_ms: int | None = None
    priority: int = 4


_NO_HEADER: Final = Header()


@hides("annotations", "properties", "application", "body")
class ParsedMessage(NamedTuple):
    """Sections of a bare message."""

    annotations: dict[Any, Any]
    properties: Sequence[Any]
    application: dict[Any, Any]
    body: bytes
    is_text: bool
    """True if the body is a string."""


# --- reading an AMQP message ------------------------------------------------------------------------------------


def read_header(header: bytes) -> Header:
    """Decode a header section. Fields that are missing or of the wrong type have their default."""
    if not header:
        return _NO_HEADER
    return _read_usual_header(header) if len(header) <= HEADER_USUAL_BYTES_MAX else _read_header(header)


def _read_header(header: bytes) -> Header:
    try:
        fields, _ = decode(header, s.section_at(header, 0).value, Allowance(HEADER_VALUES_MAX))
    except DecodeError:
        return Header()
    if not isinstance(fields, list):
        return Header()
    ttl = fields[2] if len(fields) > 2 else None
    priority = fields[1] if len(fields) > 1 and type(fields[1]) is int else 4
    return Header(bool(fields) and fields[0] is True, ttl if type(ttl) is int else None, priority)


_read_usual_header = lru_cache(maxsize=HEADERS_USUAL_MAX)(_read_header)


def parse_message(message: bytes) -> ParsedMessage:
    """Decode a bare message. Raises `DecodeError` if it is invalid; `TooLarge` if it has too many values, or too long a
    list, map or array as its body."""
    allowance = Allowance()
    annotations: dict[Any, Any] = {}
    application: dict[Any, Any] = {}
    properties: Sequence[Any] = ()
    data: list[bytes] = []
    values: list[Any] = []
    is_value = False
    for section in s.sections(message):
        if section.code in (s.HEADER, s.DELIVERY_ANNOTATIONS, s.FOOTER):
            continue
        if section.code in (s.VALUE, s.SEQUENCE) and section.end - section.value > JSON_BYTES_MAX:
            _check_is_text(message, section)
        value, end = decode(message, section.value, allowance)
        if end != section.end:
            raise DecodeError(f"section at byte {section.start} does not end with its value")
        if section.code == s.DATA and isinstance(value, bytes):
            data.append(value)
        elif section.code in (s.VALUE, s.SEQUENCE):
            values.append(value)
            is_value = section.code == s.VALUE
        elif section.code == s.PROPERTIES and isinstance(value, list):
            properties = value
        elif section.code == s.MESSAGE_ANNOTATIONS and isinstance(value, dict):
            annotations = value
        elif section.code == s.APPLICATION_PROPERTIES and isinstance(value, dict):
            application = value
        else:
            raise DecodeError(f"section 0x{section.code:x} at byte {section.start} has a value of the wrong type")
    if not values:
        return ParsedMessage(annotations, properties, application, data[0] if len(data) == 1 else b"".join(data), False)
    body, is_text = _body_bytes(values[0] if is_value and len(values) == 1 else values)
    return ParsedMessage(annotations, properties, application, body, is_text)


def _check_is_text(message: bytes, section: s.MessageSection) -> None:
    """Raise `TooLarge` unless a long body is a string or binary, which is sent as bytes."""
    if message[section.value] not in _VARIABLE or section.code == s.SEQUENCE:
        raise TooLarge(f"a list, map or array of more than {JSON_BYTES_MAX} bytes")


def payload_of(bare_message: bytes) -> tuple[str | None, dict[str, Any], bytes]:
    """Return content type, properties and payload of a bare message. Raises `DecodeError` if it is invalid.

    Payload: data sections, a string or binary value as bytes, any other value as JSON. Properties have their names of
    section 3.2.4; `application-properties` and `message-annotations` are maps.
    """
    plain = s.plain_data(bare_message)
    if plain is not None:
        return None, {}, plain
    found = parse_message(bare_message)
    properties: dict[str, Any] = {}
    content_type: str | None = None
    for name, value in zip(PROPERTY_NAMES, found.properties, strict=False):
        if name == "content-type" and isinstance(value, str):
            content_type = str(value)
        elif value is not None:
            properties[name] = plain_value(value)
    if found.application:
        application = {str(key): plain_value(value) for key, value in found.application.items()}
        properties["application-properties"] = application
    if found.annotations:
        properties["message-annotations"] = {str(key): plain_value(value) for key, value in found.annotations.items()}
    return content_type, properties, found.body


def is_empty(bare_message: bytes) -> bool:
    """Return True if the payload is empty, which clears a retained message in either protocol."""
    plain = s.plain_data(bare_message)
    if plain is not None:
        return not plain
    try:
        return not parse_message(bare_message).body
    except DecodeError:
        return False


def properties_of(bare_message: bytes) -> Sequence[Any]:
    """Return the fields of the properties section (section 3.2.4), None if absent. Raises `DecodeError`."""
    for section in s.sections(bare_message):
        if section.code == s.PROPERTIES:
            properties, _ = decode(bare_message, section.value, Allowance(HEADER_VALUES_MAX))
            if not isinstance(properties, list):
                raise DecodeError("the properties are not a list")
            return [*properties, *[None] * (len(PROPERTY_NAMES) - len(properties))]
        if section.code > s.PROPERTIES:
            break
    return _NO_PROPERTIES


def expiry_ms_of(properties: Sequence[Any]) -> int | None:
    """Return the absolute-expiry-time in milliseconds since 1970."""
    expiry = properties[EXPIRY_FIELD]
    return int(expiry) if isinstance(expiry, int) and expiry > 0 else None


def creation_ms_of(properties: Sequence[Any]) -> int | None:
    """Return the creation-time in milliseconds since 1970, by the sender's clock."""
    created = properties[_CREATION_TIME]
    return int(created) if isinstance(created, int) and created > 0 else None


def address_of(properties: Sequence[Any]) -> str | None:
    """Return `to`, the address of messages on an anonymous relay."""
    to = properties[_TO]
    return str(to) if isinstance(to, str) else None


def group_of(bare_message: bytes) -> str | None:
    """Return the group-id of a message; None if it is absent or the message is invalid."""
    try:
        group = properties_of(bare_message)[GROUP_FIELD]
    except DecodeError:
        return None
    return str(group) if isinstance(group, str) else None


def flags_of(bare_message: bytes, *, settled: bool) -> int:
    """Return QoS and RETAIN of a run, from the settlement and two annotations."""
    flags = 0 if settled else 1
    if bare_message[:3] == b"\x00\x53\x72" and b"x-opt-" in bare_message:
        annotations, _ = decode(bare_message, 3, Allowance(HEADER_VALUES_MAX))
        if isinstance(annotations, dict):
            qos = annotations.get(QOS_ANNOTATION)
            if qos == 2 and not settled:
                flags = 2
            if annotations.get(RETAIN_ANNOTATION) is True:
                flags |= RETAIN
    return flags


# --- to AMQP ----------------------------------------------------------------------------------------------------


def amqp_messages(run: Run, *, now_ns: int = 0, attempts: int = 0) -> list[bytes]:
    """Encode the messages of a run for an AMQP link. `now_ns` (UTC) reduces the time to live, `attempts` is the
    delivery-count of the header."""
    elapsed_ms = max(0, (now_ns - run.received_at) // _NS_IN_MS) if now_ns and run.received_at else 0
    if run.flags & AMQP:
        header = _outgoing_header(run, elapsed_ms, attempts)
        return [header + body for body in run.bodies] if header else run.bodies
    properties = _mqtt_properties(run)
    prefix = _amqp_prefix(run, properties, elapsed_ms, attempts)
    if properties.payload_format_indicator == 1:
        return [prefix + _text_section(body) for body in run.bodies]
    return [prefix + _data_section(body) for body in run.bodies]


def amqp_from_run(run: Run, i: int, *, now_ns: int = 0) -> bytes:
    """Encode message `i` of a run; see `amqp_messages`."""
    return amqp_messages(run.part(i, i + 1), now_ns=now_ns)[0]


def without_ttl(header: bytes) -> bytes:
    """Return a header section without ttl, first-acquirer and delivery-count."""
    found = _header_fields(header)
    if found is None or len(found) < 3:
        return header
    return _section(s.HEADER, [found[0] is True, Ubyte(found[1]) if type(found[1]) is int else None])


def with_ttl(header: bytes, ttl_ms: int) -> bytes:
    """Return a header section (or an empty one) with a time to live of at most `ttl_ms`."""
    fields = [*(_header_fields(header) or ()), None, None, None][:3]
    own = fields[2] if type(fields[2]) is int else ttl_ms
    priority = Ubyte(fields[1]) if type(fields[1]) is int else None
    return _section(s.HEADER, [fields[0] is True, priority, Uint(min(own, ttl_ms, _UINT32_MAX))])


def _header_fields(header: bytes) -> list[Any] | None:
    if not header:
        return None
    try:
        fields, _ = decode(header, s.section_at(header, 0).value, Allowance(HEADER_VALUES_MAX))
    except DecodeError:
        return None
    return fields if isinstance(fields, list) else None


def _outgoing_header(run: Run, elapsed_ms: int, attempts: int) -> bytes:
    """Return the stored header with the remaining ttl; the broker sets first-acquirer and delivery-count."""
    if attempts:
        durable, priority, ttl = [*(_header_fields(run.properties) or ()), None, None, None][:3]
        left = Uint(max(0, ttl - elapsed_ms)) if type(ttl) is int else None
        kept = Ubyte(priority) if type(priority) is int else None
        return _section(s.HEADER, [durable is True, kept, left, False, Uint(attempts)])
    header = run.properties
    if not header:
        return b""
    lasting = lasting_header(header)
    if lasting is not None:
        return lasting
    durable, priority, ttl = (_header_fields(header) or [None, None, 0])[:3]
    kept = Ubyte(priority) if type(priority) is int else None
    return _section(s.HEADER, [durable is True, kept, Uint(max(0, ttl - elapsed_ms))])


def lasting_header(header: bytes) -> bytes | None:
    """Return a header section as it is always sent; None if it has a time to live, which decreases."""
    return _usual_lasting_header(header) if len(header) <= HEADER_USUAL_BYTES_MAX else _lasting_header(header)


def _lasting_header(header: bytes) -> bytes | None:
    fields = _header_fields(header)
    if fields is None or len(fields) < 3:
        return header
    return None if type(fields[2]) is int else without_ttl(header)


_usual_lasting_header = lru_cache(maxsize=HEADERS_USUAL_MAX)(_lasting_header)


def _amqp_prefix(run: Run, mqtt: Properties, elapsed_ms: int, attempts: int) -> bytes:
    """Encode the sections before the body, which are equal for all messages of an MQTT run."""
    users = dict(mqtt.user_property)
    header: list[Any] = [bool(run.flags & DURABLE) or run.qos > 0, _priority_of(users.get(PRIORITY))]
    if mqtt.message_expiry_interval_s is not None:
        left_ms = max(0, mqtt.message_expiry_interval_s * _MS - elapsed_ms)
        header.append(Uint(min(left_ms, _UINT32_MAX)))
    if attempts:
        header += [None] * (3 - len(header)) + [False, Uint(attempts)]
    elif header[-1] is None:
        header.pop()
    annotations: dict[Symbol, Any] = {QOS_ANNOTATION: Ubyte(run.qos)}
    if run.flags & RETAIN:
        annotations[RETAIN_ANNOTATION] = True
    repeated = list_repeated(mqtt.user_property)
    if repeated is not None:
        annotations[Symbol(USERS_ANNOTATION)] = repeated
    properties: list[Any] = [None] * len(PROPERTY_NAMES)
    properties[_TO], properties[_REPLY_TO] = run.address, mqtt.response_topic
    properties[_CORRELATION_ID] = identifier(mqtt.correlation_data)
    if mqtt.content_type is not None and mqtt.content_type.isascii():
        properties[_CONTENT_TYPE] = Symbol(mqtt.content_type)
    if run.received_at:  # MQTT has no creation time: use the time of receipt
        properties[_CREATION_TIME] = Timestamp(run.received_at // _NS_IN_MS)
    for name in users.keys() & _FIELDS.keys():
        properties[_FIELDS[name]] = _field_of(name, users[name])
    while properties[-1] is None:
        properties.pop()
    prefix = _section(s.HEADER, header) + _section(s.MESSAGE_ANNOTATIONS, annotations)
    prefix += _section(s.PROPERTIES, properties)
    if users:
        prefix += _section(s.APPLICATION_PROPERTIES, users)
    return prefix


def _priority_of(text: str | None) -> Ubyte | None:
    return Ubyte(text) if text is not None and len(text) == 1 and "0" <= text <= str(_PRIORITY_MAX) else None


def _field_of(name: str, text: str) -> Any:
    """Convert a user property to the field of its name."""
    if name == "message-id":
        return identifier(text.encode())
    if name == "content-encoding":
        return Symbol(text) if text.isascii() else None
    return text


def _mqtt_properties(run: Run) -> Properties:
    try:
        return decode_run(run.properties)
    except MqttError:  # checked on receipt; an error now must not lose the message
        return NO_PROPERTIES


def _section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)


def _data_section(payload: bytes) -> bytes:
    size = len(payload)
    if size < 256:
        return b"\x00\x53\x75\xa0" + bytes((size,)) + payload
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + payload


def _text_section(payload: bytes) -> bytes:
    try:
        return _section(s.VALUE, payload.decode("utf-8"))
    except UnicodeDecodeError:  # the indicator is wrong: send bytes
        return _data_section(payload)


# --- to MQTT ----------------------------------------------------------------------------------------------------


def mqtt_runs(run: Run) -> list[Run]:
    """Translate an AMQP run to MQTT runs of consecutive messages with equal properties, in order."""
    runs: list[Run] = []
    header = read_header(run.properties)
    for body in run.bodies:
        properties, payload = to_mqtt(body, header)
        if runs and runs[-1].properties == properties:
            runs[-1].bodies.append(payload)
        else:
            runs.append(Run(run.address, run.device, run.flags & ~AMQP, properties, [payload], run.received_at))
    return runs


def to_mqtt(body: bytes, header: Header) -> tuple[bytes, bytes]:
    """Return encoded MQTT properties and payload of a message.

    An invalid message is sent as its bytes. So is one that is too large to be translated, with a content type for it.
    """
    expiry_s = None if header.ttl_ms is None else min(-(-header.ttl_ms // _MS), _UINT32_MAX)
    plain = s.plain_data(body)
    if plain is not None and expiry_s is None and header.priority == _PRIORITY_USUAL:
        return b"", plain
    try:
        found = parse_message(body)
    except TooLarge:
        return encode_run(Properties(message_expiry_interval_s=expiry_s, content_type=AMQP_MESSAGE)), body
    except DecodeError:
        return encode_run(Properties(message_expiry_interval_s=expiry_s)), body
    fields = [*found.properties, *[None] * len(PROPERTY_NAMES)]
    correlation = fields[_CORRELATION_ID]
    if correlation is None and fields[_REPLY_TO] is not None:
        correlation = fields[_MESSAGE_ID]  # what an answer refers to where the request has nothing else
    properties = Properties(
        payload_format_indicator=1 if found.is_text else None,
        message_expiry_interval_s=expiry_s,
        content_type=_mqtt_text(fields[_CONTENT_TYPE]),
        response_topic=_topic_name(_mqtt_text(fields[_REPLY_TO])),
        correlation_data=correlation_data(correlation),
        user_property=_user_properties(found, header.priority),
    )
    return encode_run(properties), found.body


def _user_properties(found: ParsedMessage, priority: int) -> tuple[tuple[str, str], ...]:
    """Return application properties, with repeats that came from MQTT, then what MQTT has no place of its own for."""
    application = {_text_of(key): _text_of(value) for key, value in found.application.items()}
    pairs = _repeated(found.annotations.get(USERS_ANNOTATION), application)
    names = {name for name, _ in pairs}
    pairs += [pair for pair in application.items() if pair[0] not in names]
    names.update(application)
    fields = [*found.properties, *[None] * len(PROPERTY_NAMES)]
    others = [(name, _identifier_text(fields[place])) for name, place in _FIELDS.items() if fields[place] is not None]
    if priority != _PRIORITY_USUAL:
        others.append((PRIORITY, str(priority)))
    others += [(str(key), _text_of(value)) for key, value in found.annotations.items() if _is_of_dead_letter(key)]
    pairs += [pair for pair in others if pair[0] not in names]
    return tuple((name, text) for name, text in pairs if _fits_mqtt(name) and _fits_mqtt(text))


def _repeated(listed: Any, application: dict[str, str]) -> list[tuple[str, str]]:
    """Return the user properties that `USERS_ANNOTATION` lists, without those that have changed since."""
    if not isinstance(listed, list) or len(listed) % 2 or not all(type(text) is str for text in listed):
        return []
    pairs = list(zip(listed[::2], listed[1::2], strict=True))
    last = dict(pairs)
    return [(name, text) for name, text in pairs if application.get(name) == last[name]]


def _is_of_dead_letter(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(DEAD_PREFIX)


def _identifier_text(value: Any) -> str:
    """Return a field as text, and an identifier in the form that an answer may use (`amqp_identifiers`)."""
    return as_text(value) if isinstance(value, UUID | int) else _text_of(value)


def _text_of(value: Any) -> str:
    """Return a value as text: a text of JSON without quotes, other values as JSON."""
    plain = plain_value(value)
    return plain if isinstance(plain, str) else _encoder.encode(plain).decode()


def _fits_mqtt(text: str) -> bool:
    return _mqtt_text(text) is not None


def _mqtt_text(value: Any) -> str | None:
    """Return a string that MQTT can carry (MQTT 5 section 1.5.4): short, without U+0000 and surrogates; or None."""
    if not isinstance(value, str) or "\0" in value:
        return None
    return str(value) if len(value.encode("utf-8", "replace")) <= STRING_BYTES_MAX else None


def _topic_name(value: str | None) -> str | None:
    return value if value and "+" not in value and "#" not in value else None


# --- values -----------------------------------------------------------------------------------------------------


def _body_bytes(value: Any) -> tuple[bytes, bool]:
    if isinstance(value, bytes) and not isinstance(value, DecimalBits):
        return value, False
    if isinstance(value, str):
        return value.encode("utf-8", "replace"), True
    return _json(value), False


def _json(value: Any) -> bytes:
    return _encoder.encode(plain_value(value))


_encoder: Final = msgspec.json.Encoder(decimal_format="number")
"""Encoder that writes every digit of a decimal."""


def plain_value(value: Any) -> Any:
    """Return an AMQP value in terms of JSON, by the table in this folder's README."""
    if isinstance(value, DescribedValue):
        value = value.value
    if isinstance(value, dict):
        return {str(plain_value(key)): plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return _plain_scalar(value)


def _finite(value: float | DecimalBits) -> float | Decimal | None:
    if isinstance(value, DecimalBits):
        return value.number()
    return value if isfinite(value) else None


def _plain_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float | DecimalBits):
        return _finite(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value.hex()
    return str(value)
