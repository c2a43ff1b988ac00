"""Add the properties that Hono's applications expect to messages, without I/O: device, adapter, content type.

An MQTT message gets them as user properties, which become application properties over AMQP. So a run of telemetry is
translated as a whole, not message by message. A message with a number (`ttd`, `status`) or an annotation is converted
to AMQP at once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from bridge import sections as s
from bridge.amqp_values import Int, Symbol, Timestamp, Uint, Ulong, encode
from bridge.message import AMQP, DURABLE, Run
from edge.broker.hono.errors import bad_request
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.translation import parse_message

DEVICE: Final = "device_id"
TENANT: Final = "tenant_id"
ADAPTER: Final = "orig_adapter"
ADDRESS: Final = "orig_address"
TTD: Final = "ttd"
STATUS: Final = "status"
_RESERVED: Final = frozenset((DEVICE, TENANT, ADAPTER, ADDRESS, TTD))
"""Application properties that a device cannot set."""

MQTT_ADAPTER: Final = "hono-mqtt"
HTTP_ADAPTER: Final = "hono-http"
AMQP_ADAPTER: Final = "hono-amqp"

OPAQUE: Final = "application/octet-stream"
EMPTY_NOTIFICATION: Final = "application/vnd.eclipse-hono-empty-notification"
FAILURE_NOTIFICATION: Final = "application/vnd.eclipse-hono-delivery-failure-notification+json"
RETAIN_ANNOTATION: Final = Symbol("x-opt-retain")
UNTIL_FURTHER_NOTICE: Final = -1
GONE: Final = 0

_NS_IN_MS: Final = 1_000_000
_MS: Final = 1000
_UINT32_MAX: Final = 0xFFFF_FFFF
_FIELDS: Final = 13
_MESSAGE_ID, _TO, _CORRELATION, _CONTENT_TYPE, _CREATION_TIME = 0, 2, 5, 6, 9
_BODY: Final = (s.DATA, s.SEQUENCE, s.VALUE)
_KINDS: Final[dict[int, Any]] = {6: Symbol, 7: Symbol, 8: Timestamp, 9: Timestamp, 11: Uint}
"""AMQP types of fields of the properties section that decoding does not preserve (section 3.2.4)."""


class MessageSource(NamedTuple):
    """Origin of a message: device, adapter and address."""

    device: str
    adapter: str
    address: str
    """Topic, path or address that the device used."""


def mqtt_properties(raw: bytes, source: MessageSource, content_type: str | None, ttl_s: int | None) -> bytes:
    """Return `Run.properties` of a device's MQTT message with Hono's properties; `raw` are the received ones.

    Content type and time to live of the property bag take precedence over those of MQTT 5. Raises `MqttError`.
    """
    own = decode_run(raw)
    users = tuple(pair for pair in own.user_property if pair[0] not in _RESERVED)
    users += ((DEVICE, source.device), (ADAPTER, source.adapter), (ADDRESS, source.address))
    found = msgspec.structs.replace(
        own,
        content_type=content_type or own.content_type or OPAQUE,
        message_expiry_interval_s=own.message_expiry_interval_s if ttl_s is None else ttl_s,
        response_topic=None,
        user_property=users,
    )
    return encode_run(found)


def decode_properties(raw: bytes) -> Properties:
    """Decode `Run.properties` that `mqtt_properties` has made."""
    return decode_run(raw)


def content_type_in(raw: bytes) -> str | None:
    """Return the content type in `Run.properties` of an MQTT run, or None. Raises `MqttError`."""
    return decode_run(raw).content_type


def check_payload(content_type: str | None, body: bytes) -> None:
    """Raise DeviceError for an unexpected payload, or a missing one."""
    if body and content_type == EMPTY_NOTIFICATION:
        raise bad_request("an empty notification must not have a payload")
    if not body and not content_type:
        raise bad_request("a message without a payload needs a content-type")


def header(*, durable: bool, ttl_s: int | None = None) -> bytes:
    """Encode a header section (AMQP 1.0 section 3.2.1)."""
    fields: list[Any] = [durable]
    if ttl_s is not None:
        fields += [None, Uint(min(ttl_s * _MS, _UINT32_MAX))]
    return _section(s.HEADER, fields)


def encode_bare_message(
    *,
    to: str,
    body: bytes,
    now_ns: int,
    application: dict[str, Any],
    content_type: str | None = None,
    correlation: Any = None,
    retain: bool = False,
) -> bytes:
    """Encode a bare message with Hono's properties and one data section."""
    properties: list[Any] = [None, None, to, None, None, message_id(correlation)]
    properties += [None if content_type is None else Symbol(content_type), None, None, Timestamp(now_ns // _NS_IN_MS)]
    parts = [_section(s.MESSAGE_ANNOTATIONS, {RETAIN_ANNOTATION: True})] if retain else []
    parts += [_section(s.PROPERTIES, properties), _section(s.APPLICATION_PROPERTIES, application), data_section(body)]
    return b"".join(parts)


def upload_properties(source: MessageSource, ttd: int | None = None) -> dict[str, Any]:
    """Return the application properties of a device's message."""
    found: dict[str, Any] = {DEVICE: source.device, ADAPTER: source.adapter, ADDRESS: source.address}
    if ttd is not None:
        found[TTD] = Int(ttd)
    return found


def empty_notification(address: str, source: MessageSource, ttd: int, now_ns: int) -> Run:
    """Return the event that announces how many seconds a device accepts commands.

    `ttd` may also be `UNTIL_FURTHER_NOTICE` or `GONE`.
    """
    application = upload_properties(source, ttd)
    body = encode_bare_message(
        to=address, body=b"", now_ns=now_ns, application=application, content_type=EMPTY_NOTIFICATION
    )
    return Run(address, source.device, AMQP | DURABLE | 1, header(durable=True), [body])


def response(
    address: str, tenant: str, device: str, *, status: int, correlation: Any, content_type: str | None, body: bytes,
    now_ns: int,
) -> bytes:  # fmt: skip
    """Encode the bare message of a response to a command."""
    application: dict[str, Any] = {DEVICE: device, TENANT: tenant, STATUS: Int(status)}
    if content_type is None and body:
        content_type = OPAQUE
    return encode_bare_message(
        to=address, body=body, now_ns=now_ns, application=application, content_type=content_type,
        correlation=correlation,
    )  # fmt: skip


def complete_message(message: bytes, address: str, source: MessageSource, now_ns: int) -> bytes:
    """Return a device's AMQP message with the properties that applications expect.

    Annotations and a body of one data section keep their encoding. Any other body becomes a data section, as the
    Telemetry API requires. Raises `bridge.amqp_values.DecodeError`, and DeviceError like `check_payload`.
    """
    found = parse_message(message)
    fields = [*found.properties, *[None] * _FIELDS][:_FIELDS]
    content_type = fields[_CONTENT_TYPE] if isinstance(fields[_CONTENT_TYPE], str) else None
    check_payload(content_type, found.body)
    fields[_CONTENT_TYPE] = Symbol(content_type or OPAQUE)
    fields[_TO] = address
    fields[_CREATION_TIME] = fields[_CREATION_TIME] or Timestamp(now_ns // _NS_IN_MS)
    application = {key: value for key, value in found.application.items() if key not in _RESERVED}
    application.update(upload_properties(source))
    return rebuild_message(message, fields, application, body=found.body)


def rebuild_message(
    message: bytes, properties: list[Any], application: dict[Any, Any], *, body: bytes | None = None
) -> bytes:
    """Return `message` with other properties and application properties; other sections keep their encoding.

    If `body` is given, it replaces a body that is not a single data section.
    """
    fields = [
        _KINDS[place](value) if place in _KINDS and value is not None else value
        for place, value in enumerate(properties)
    ]
    for place in (_MESSAGE_ID, _CORRELATION):
        fields[place] = message_id(fields[place])
    while fields and fields[-1] is None:
        fields.pop()
    sections = list(s.sections(message))
    bodies = [section.code for section in sections if section.code in _BODY]
    keeps_body = body is None or bodies == [s.DATA]
    before, after = [], [] if keeps_body or body is None else [data_section(body)]
    for section in sections:
        if section.code < s.PROPERTIES:
            before.append(message[section.start : section.end])
        elif section.code > s.APPLICATION_PROPERTIES and (keeps_body or section.code not in _BODY):
            after.append(message[section.start : section.end])
    middle = [_section(s.PROPERTIES, fields), _section(s.APPLICATION_PROPERTIES, application)]
    return b"".join([*before, *(middle if application else middle[:1]), *after])


def message_id(value: Any) -> Any:
    """Return a message or correlation identifier in its AMQP type (sections 3.2.11 to 3.2.14)."""
    return Ulong(value) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else value


def plain_properties(content_type: str | None, expiry_s: int | None, users: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return `Run.properties` of an MQTT message of the broker itself."""
    return encode_run(Properties(content_type=content_type, message_expiry_interval_s=expiry_s, user_property=users))


def _section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)


def data_section(body: bytes) -> bytes:
    """Encode a data section (AMQP 1.0 section 3.2.6)."""
    return _section(s.DATA, body)
