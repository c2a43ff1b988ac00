"""Parse commands of applications, and encode them for a device in its protocol, without I/O."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from bridge.amqp_values import DecodeError
from bridge.hidden import hides
from bridge.message import AMQP, DURABLE, Run
from edge.broker.hono.addresses import HonoAddresses
from edge.broker.hono.errors import bad_request
from edge.broker.hono.limits import COMMAND_CHARACTERS_MAX, CORRELATION_BYTES_MAX
from edge.broker.hono.messages import DEVICE, message_id, plain_properties, rebuild_message
from edge.broker.hono.requests import CommandRequest, CommandRequests
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run
from edge.broker.message.translation import parse_message, read_header

SUBJECT: Final = "subject"
"""User property with the name of a command that an application sends over MQTT."""
_MS: Final = 1000
_MESSAGE_ID, _TO, _SUBJECT, _REPLY_TO, _CORRELATION, _CONTENT_TYPE = 0, 2, 3, 4, 5, 6
_FIELDS: Final = 13


@hides("payload")
class DeviceCommand(NamedTuple):
    """A command in a device's queue."""

    device: str
    name: str
    request: CommandRequest | None
    """None: one-way, without a response."""
    content_type: str | None
    payload: bytes
    ttl_ms: int | None


def find_queue(message: bytes, addresses: HonoAddresses) -> str:
    """Return the queue for a message to ``command/<tenant>``. Raises DeviceError for a malformed command.

    So the application gets the error at once, not when the device connects.
    """
    try:
        found = parse_message(message)
    except DecodeError as error:
        raise bad_request(str(error)) from None
    fields = [*found.properties, *[None] * _FIELDS]
    to = fields[_TO]
    if not isinstance(to, str) or to.rpartition("/")[0] != addresses.command or not to.rpartition("/")[2]:
        raise bad_request(f"'to' must be {addresses.command}/<device>")
    _of_fields(fields, found.body, addresses, to.rpartition("/")[2], None)
    return to


def read_command(run: Run, i: int, addresses: HonoAddresses) -> DeviceCommand:
    """Parse message `i` of a run in a device's queue. Raises DeviceError if it is not a command."""
    device, body = addresses.device(run.address), run.bodies[i]
    if run.flags & AMQP:
        try:
            found = parse_message(body)
        except DecodeError as error:
            raise bad_request(str(error)) from None
        fields = [*found.properties, *[None] * _FIELDS]
        return _of_fields(fields, found.body, addresses, device, read_header(run.properties).ttl_ms)
    try:
        own = decode_run(run.properties)
    except MqttError as error:
        raise bad_request(str(error)) from None
    names = [value for name, value in own.user_property if name == SUBJECT]
    fields = [None] * _FIELDS
    fields[_SUBJECT], fields[_REPLY_TO] = names[0] if names else None, own.response_topic
    fields[_CORRELATION], fields[_CONTENT_TYPE] = own.correlation_data, own.content_type
    expiry_s = own.message_expiry_interval_s
    return _of_fields(fields, body, addresses, device, None if expiry_s is None else expiry_s * _MS)


def _of_fields(
    fields: list[Any], body: bytes, addresses: HonoAddresses, device: str, ttl_ms: int | None
) -> DeviceCommand:
    """Parse a command from the fields of a properties section (AMQP 1.0 section 3.2.4)."""
    name = fields[_SUBJECT]
    if not isinstance(name, str) or not _is_name(name):
        raise bad_request(f"'subject' must be the command: 1 to {COMMAND_CHARACTERS_MAX} characters without + and #")
    request = None
    if fields[_REPLY_TO] is not None:
        reply = addresses.reply(str(fields[_REPLY_TO]))
        if not reply or "+" in reply or "#" in reply or len(reply.encode()) > CORRELATION_BYTES_MAX:
            raise bad_request(f"'reply-to' must be {addresses.response('<reply identifier>')}")
        correlation = fields[_CORRELATION] if fields[_CORRELATION] is not None else fields[_MESSAGE_ID]
        if correlation is None or len(str(correlation)) > CORRELATION_BYTES_MAX:
            raise bad_request(
                f"'reply-to' requires a correlation-id or message-id of up to {CORRELATION_BYTES_MAX} bytes"
            )
        request = CommandRequest(reply, message_id(correlation))
    content_type = fields[_CONTENT_TYPE]
    return DeviceCommand(device, str(name), request, str(content_type) if content_type else None, body, ttl_ms)


def _is_name(name: str) -> bool:
    plain = name.isprintable() and "+" not in name and "#" not in name
    return plain and 0 < len(name) <= COMMAND_CHARACTERS_MAX


def topic_rest(command: DeviceCommand, requests: CommandRequests) -> str:
    """Return the end of the topic for an MQTT device: request identifier (empty: one-way) and name."""
    identifier = requests.identifier(command.device, command.request) if command.request is not None else ""
    return f"{identifier}/{command.name}"


def mqtt_run(command: DeviceCommand, topic: str, received_at: int, flags: int) -> Run:
    """Encode a command for an MQTT device. The sender reduces the time to live."""
    expiry_s = None if command.ttl_ms is None else -(-command.ttl_ms // _MS)
    properties = plain_properties(command.content_type, expiry_s)
    kept = (flags & ~(AMQP | 0b111)) | DURABLE | 1
    return Run(topic, "", kept, properties, [command.payload], received_at)


def amqp_message(
    command: DeviceCommand, original: bytes, reply_to: str | None, identifier: str, *, names_device: bool
) -> bytes:
    """Encode a command for an AMQP device. Raises `DecodeError`.

    `original` is the message of the application. The device answers to `reply_to` with `identifier`. With
    `names_device` the message names the device, because the peer is a gateway.
    """
    fields: list[Any] = [None] * 7
    fields[_SUBJECT], fields[_REPLY_TO], fields[_CORRELATION] = command.name, reply_to, identifier or None
    fields[_CONTENT_TYPE] = command.content_type
    application: dict[Any, Any] = {DEVICE: command.device} if names_device else {}
    kept = {name: value for name, value in parse_message(original).application.items() if name != DEVICE}
    return rebuild_message(original, fields, {**kept, **application})
