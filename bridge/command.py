"""Commands to devices: from a hub to a gateway, with receipts and responses in return. Sans-I/O.

A hub sends a command as one AMQP message (`bridge.downlink`). *Receipts* and *responses* are messages of the gateway's
own addresses: they are stored, sent and landed like all other messages.

An *online* command is for a device that takes it now. Its message has an absolute-expiry-time (AMQP 1.0 section 3.2.4),
and goes only to a gateway that has given its link the property `ONLINE_COMMANDS`.
"""

from __future__ import annotations

import enum
import secrets
from typing import Any, Final

import msgspec

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import DecodeError, Symbol, Timestamp, Uint
from bridge.hidden import hides
from bridge.limits import (
    COMMAND_NAME_CHARACTERS_MAX,
    COMMAND_PAYLOAD_BYTES_MAX,
    COMMAND_TTL_S_MAX,
    DEVICE_CHARACTERS_MAX,
)
from bridge.message import AMQP, DURABLE, Run
from bridge.plain import MessageError

RECEIPTS: Final = "command-receipt"
"""First level of the addresses of receipts; the second is the device."""
RESPONSES: Final = "command-response"
"""First level of the addresses of responses; the second is the device."""
HONO_RESPONSES: Final = "command_response"
"""First level of the addresses of responses over Hono's device API; tenant and `HUB` follow."""
HUB: Final = "hub"
"""Reply identifier of the hub in an address of `HONO_RESPONSES`."""
COMMAND: Final = Symbol(plain.PREFIX + "command")
"""Annotation of a command in its device's queue: the command's identifier."""
ONLINE: Final = Symbol(plain.PREFIX + "online")
"""Annotation of an online command in its device's queue: the `PROCESS` that took it. The message has no
absolute-expiry-time, as clients of AMQP drop messages by it, silently and by their own clocks."""
PROCESS: Final = secrets.token_hex(8)
"""Random name of this process. A machine may start with the same wrong time at every boot, so a message of an earlier
process may be older than it seems."""
ONLINE_COMMANDS: Final = "waypost-online-commands"
"""Property of the link for commands of a gateway that refuses an online command when its device cannot take it now."""
ANNOTATIONS_BYTES: Final = 512
"""Bytes at the begin of a queued command that have its annotations: two, with values of up to 255 bytes."""
UNKNOWN_DEVICE: Final = "unknown device here: "
"""Begin of the reason for which a gateway refuses a command of a device that it does not know; the name follows. It has
never had that command, so it may go elsewhere."""
_MS: Final = 1000
_FIELDS: Final = 9
_MESSAGE_ID, _TO, _SUBJECT, _REPLY_TO, _CORRELATION, _CONTENT_TYPE, _EXPIRES = 0, 2, 3, 4, 5, 6, 8


class Receipt(enum.Enum):
    """Final outcome of a command at its gateway."""

    DELIVERED = "delivered"
    """The device acknowledged it."""
    EXPIRED = "expired"
    """Its time to live ended before a device took it."""
    REJECTED = "rejected"
    """The device or the gateway refused it."""


class OnlineReason(enum.Enum):
    """Reason code of an online command that its device did not take."""

    GATEWAY_NOT_CONNECTED = "gateway-not-connected"
    """The gateway is not connected to a hub. Nothing was stored or sent."""
    GATEWAY_TOO_OLD = "gateway-too-old"
    """The gateway runs a version without online commands. Nothing was sent."""
    GATEWAY_BUSY = "gateway-busy"
    """The gateway could not store the command, or was about to disconnect."""
    ADDRESS_UNSUITABLE = "address-unsuitable"
    """An `Address` resource of the gateway raises the time to live of the device's commands."""
    DEVICE_NOT_CONNECTED = "device-not-connected"
    """No client is connected to the gateway that receives this command of the device."""
    DEVICE_BUSY = "device-busy"
    """The device is connected, and takes no further command now."""
    COMMAND_LATE = "command-late"
    """The command reached the gateway after its time."""
    NOT_SENT = "not-sent"
    """No hub sent the command in its time: the gateway disconnected, or gave no credit."""
    OUTCOME_UNKNOWN = "outcome-unknown"
    """The command was sent, and no outcome arrived in its time. A later receipt replaces this outcome."""


@hides("payload")
class HubCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Command for one device of one gateway."""

    id: str
    """Unique among all commands."""
    device: str
    name: str
    """Action that the device is to perform."""
    payload: bytes
    content_type: str | None
    ttl_ms: int
    """Time to live in milliseconds, counted from now."""
    response: bool
    """True when the device should respond."""
    online_until_ms: int | None = None
    """End of an online command, UTC milliseconds by the hub's clock; None: the command waits for its device."""


class ReceiptDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a receipt: JSON."""

    command: str
    """Identifier of the command."""
    receipt: Receipt
    reason: str = ""
    returned: bool = False
    """The device left the gateway without the command, which has gone out of its queue: it may go elsewhere. Hubs that
    do not know this take it as rejected."""


def fault(device: str, name: str, payload: bytes, content_type: str | None, ttl_s: float) -> str | None:
    """Return why these values cannot be a command; None when they can."""
    if not device or len(device) > DEVICE_CHARACTERS_MAX or not device.isprintable() or set(device) & set("/+#"):
        return f"a device name must have 1 to {DEVICE_CHARACTERS_MAX} printable characters, none of them / + #"
    if not name or len(name) > COMMAND_NAME_CHARACTERS_MAX or not name.isprintable() or set(name) & set("+#"):
        return f"a command name must have 1 to {COMMAND_NAME_CHARACTERS_MAX} printable characters, none of them + or #"
    if len(payload) > COMMAND_PAYLOAD_BYTES_MAX:
        return f"the payload has {len(payload)} bytes; the limit is {COMMAND_PAYLOAD_BYTES_MAX}"
    if content_type is not None and not _is_plain(content_type):
        return "the content type must be printable ASCII, for example application/json"
    if not 0 < ttl_s <= COMMAND_TTL_S_MAX:
        return f"the time to live must be more than 0 s and at most {COMMAND_TTL_S_MAX / 86_400:g} days"
    return None


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) <= DEVICE_CHARACTERS_MAX


def message(command: HubCommand) -> bytes:
    """Encode a command for the link from hub to gateway."""
    fields: list[Any] = [None] * _FIELDS
    fields[_MESSAGE_ID], fields[_TO], fields[_SUBJECT] = command.id, command.device, command.name
    fields[_REPLY_TO] = HUB if command.response else None
    fields[_EXPIRES] = None if command.online_until_ms is None else Timestamp(command.online_until_ms)
    return _header(command.ttl_ms) + _properties(fields, command.content_type) + plain.data_section(command.payload)


def read(arrived: bytes) -> HubCommand:
    """Decode a command from the hub. Raises `MessageError`."""
    try:
        found = dict(reversed([(each.code, value) for each, value in plain.contents(arrived, _READ)]))
        header, fields = found.get(s.HEADER), found.get(s.PROPERTIES)
        ttl_ms = header[2] if isinstance(header, list) and len(header) > 2 else None
        fields = [*(fields if isinstance(fields, list) else ()), *[None] * _FIELDS]
        identifier, device, name = fields[_MESSAGE_ID], fields[_TO], fields[_SUBJECT]
        content_type = str(fields[_CONTENT_TYPE]) if fields[_CONTENT_TYPE] is not None else None
        payload = plain.body_of(arrived)
    except DecodeError as error:
        raise MessageError(str(error)) from None
    if not isinstance(ttl_ms, int) or not all(isinstance(each, str) for each in (identifier, device, name)):
        raise MessageError("a command needs a ttl, a message-id, a device as `to`, and a name as subject")
    if why := fault(device, name, payload, content_type, max(ttl_ms, 1) / _MS):
        raise MessageError(why)
    return HubCommand(
        id=identifier,
        device=device,
        name=name,
        payload=payload,
        content_type=content_type,
        ttl_ms=ttl_ms,
        response=fields[_REPLY_TO] is not None,
        online_until_ms=int(fields[_EXPIRES]) if isinstance(fields[_EXPIRES], Timestamp) else None,
    )


def queued(command: HubCommand, address: str, reply_to: str) -> Run:
    """Return the message that puts a command into its device's queue. The device responds to `reply_to`, with the
    correlation-id of the command."""
    fields: list[Any] = [None] * _FIELDS
    fields[_MESSAGE_ID], fields[_TO], fields[_SUBJECT] = command.id, address, command.name
    if command.response:
        fields[_REPLY_TO], fields[_CORRELATION] = reply_to, command.id
    annotations = {COMMAND: command.id} | ({ONLINE: PROCESS} if command.online_until_ms is not None else {})
    body = b"".join(
        (
            plain.section(s.MESSAGE_ANNOTATIONS, annotations),
            _properties(fields, command.content_type),
            plain.section(s.APPLICATION_PROPERTIES, {"subject": command.name}),
            plain.data_section(command.payload),
        )
    )
    return Run(address, "", AMQP | DURABLE | 1, _header(command.ttl_ms), [body])


def identifier_of(queued_message: bytes) -> str | None:
    """Return the identifier of a hub's command in its device's queue; None for a message of another sender."""
    identifier = _annotations_of(queued_message).get(COMMAND)
    return identifier if isinstance(identifier, str) else None


def is_online(queued_message: bytes) -> bool:
    """Return whether a message in a device's queue is an online command of a hub."""
    return process_of(queued_message) is not None


def process_of(queued_message: bytes) -> str | None:
    """Return the process that took an online command; None for any other message."""
    if ONLINE.encode() not in queued_message[:ANNOTATIONS_BYTES]:  # nearly every message: not decoded
        return None
    process = _annotations_of(queued_message).get(ONLINE)
    return process if isinstance(process, str) else None


def _annotations_of(message: bytes) -> dict[Any, Any]:
    try:
        found = [value for _, value in plain.contents(message, (s.MESSAGE_ANNOTATIONS,))]
    except DecodeError:
        return {}
    return found[0] if found and isinstance(found[0], dict) else {}


def refusal_text(reason: OnlineReason, words: str) -> str:
    """Return the text with which a gateway rejects an online command: the reason code, then words for people."""
    return f"{reason.value}: {words}"


def split_refusal(text: str) -> tuple[OnlineReason | None, str]:
    """Return the reason and the words of a `refusal_text`; (None, `text`) for any other text."""
    code, _, words = text.partition(": ")
    try:
        return OnlineReason(code), words
    except ValueError:
        return None, text


_READ: Final = (s.HEADER, s.PROPERTIES)


def _header(ttl_ms: int) -> bytes:
    return plain.section(s.HEADER, [True, None, Uint(max(1, ttl_ms))])


def _properties(fields: list[Any], content_type: str | None) -> bytes:
    fields[_CONTENT_TYPE] = Symbol(content_type) if content_type is not None else None
    kept = len(fields)
    while fields[kept - 1] is None:
        kept -= 1
    return plain.section(s.PROPERTIES, fields[:kept])


def receipt_body(identifier: str, receipt: Receipt, reason: str, *, returned: bool = False) -> bytes:
    """Encode a receipt."""
    return msgspec.json.encode(ReceiptDocument(command=identifier, receipt=receipt, reason=reason, returned=returned))
