"""JSON documents of commands, the same over HTTP and on the command line."""

from __future__ import annotations

import base64
import binascii
import time
from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec

from bridge.command import fault
from cloud.hub.commands.limits import (
    CORRELATION_CHARACTERS_MAX,
    KEY_CHARACTERS_MAX,
    ONLINE_TTL_S_DEFAULT,
    ONLINE_TTL_S_MAX,
    TTL_S_DEFAULT,
)
from cloud.hub.commands.service import Draft
from cloud.hub.peers import gateway_fault, tenant_fault
from cloud.hub.registry.commands import CommandOutlook, CommandRecord
from cloud.hub.spaces import REPLIES
from edge.broker.model.authorization import is_temporary

JSON: Final = "application/json"
STORED: Final = "stored"
ONLINE: Final = "online"
Delivery = Literal["stored", "online"]
"""`stored`: the command waits for its gateway and its device. `online`: the device takes it now, or never gets it."""


class InvalidCommand(ValueError):
    """The command is invalid; the message says what is wrong."""


class CommandDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Command as a user writes it."""

    device: str
    name: str
    gateway: str = ""
    selector: str = ""
    """Labels of gateways, instead of `gateway`: one command for each."""
    payload: Any = ""
    """Payload; a text is sent unchanged, another value as JSON."""
    payload_base64: str | None = None
    """Payload of any bytes, instead of `payload`."""
    content_type: str | None = None
    delivery: Delivery = "stored"
    """`online`: only if the device takes it now."""
    ttl_s: float | None = None
    """Time to live in seconds: one hour unless given, 10 s for an online command."""
    response: bool = False
    """True if the device should respond."""
    correlation_id: str | None = None
    """Identifier of the application, returned with the outcome."""
    reply_to: str | None = None
    """Address in the tenant's space that gets the outcome."""


class CommandPayload(TypedDict):
    """Payload: a text, or other bytes as Base64."""

    payload: NotRequired[str]
    payload_base64: NotRequired[str]


class CommandResponse(CommandPayload):
    """Response of a device to a command."""

    status: int | None
    content_type: str | None
    at: str


class CommandRow(TypedDict):
    """A command without its payload. Times are UTC, in RFC 3339."""

    id: str
    tenant: str
    gateway: str
    sent_to: str | None
    """Gateway that the sender named, if the command has moved to another one with its device."""
    device: str
    name: str
    delivery: Delivery
    state: str
    reason: str | None
    reason_code: str | None
    """Why an online command was not taken. `outcome-unknown` also for one that was sent before a restore of the hub."""
    correlation_id: str | None
    sent_by: str | None
    created_at: str
    expires_at: str
    changed_at: str
    wants_response: bool
    response: CommandResponse | None


class CommandPage(TypedDict):
    """Page of commands, the newest first."""

    commands: list[CommandRow]
    next: int | None


class RefusedGateway(TypedDict):
    """Gateway that gets no command."""

    gateway: str
    why: str


class SelectedCommands(TypedDict):
    """Commands to the gateways of a selector."""

    total: int
    """Gateways that the selector chooses."""
    commands: list[CommandRow]
    refused: list[RefusedGateway]


class OutlookRow(TypedDict):
    """Prediction for a command to one gateway."""

    gateway: str
    when: str
    """`now`, `when it connects` or `never`."""
    why: str | None
    last_seen: str | None


class CommandRehearsal(TypedDict):
    """Prediction for a command: the gateways that would get it."""

    total: int
    now: int
    later: int
    never: int
    shown: int
    gateways: list[OutlookRow]


def check_command(
    document: CommandDocument,
    tenant: str,
    sent_by: str,
    body: bytes | None = None,
    key: str | None = None,
    replies: str | None = None,
) -> Draft:
    """Check a command. `body`: payload if the document has none; `key`: idempotency key; `replies`: begin of allowed
    reply addresses, if not those of the tenant's space. Raises `InvalidCommand`."""
    payload, content_type = _payload(document) if body is None else (body, document.content_type)
    ttl_s, online = time_to_live(document), document.delivery == ONLINE
    why = (
        tenant_fault(tenant)
        or gateway_fault(document.gateway)
        or fault(document.device, document.name, payload, content_type, ttl_s)
    )
    if online and ttl_s > ONLINE_TTL_S_MAX:
        why = why or f"the time to live of an online command must be at most {ONLINE_TTL_S_MAX:g} s"
    if document.reply_to is not None and not _may_reply(document.reply_to, replies):
        dynamic = "be a dynamic node of the connection, or " if replies is None else ""
        why = why or f"reply_to must {dynamic}begin with {REPLIES if replies is None else replies}"
    for value in (document.correlation_id, document.reply_to):
        if value is not None and not 0 < len(value) <= CORRELATION_CHARACTERS_MAX:
            why = why or f"correlation_id and reply_to must have 1 to {CORRELATION_CHARACTERS_MAX} characters"
    if key is not None and not 0 < len(key) <= KEY_CHARACTERS_MAX:
        why = why or f"an idempotency key must have 1 to {KEY_CHARACTERS_MAX} characters"
    if why:
        raise InvalidCommand(why)
    return Draft(
        tenant,
        document.gateway,
        document.device,
        document.name,
        payload,
        content_type,
        ttl_s,
        document.response,
        document.correlation_id,
        document.reply_to,
        sent_by,
        key,
        online,
    )


def time_to_live(document: CommandDocument) -> float:
    """Return the time to live of a command in seconds."""
    if document.ttl_s is not None:
        return document.ttl_s
    return ONLINE_TTL_S_DEFAULT if document.delivery == ONLINE else TTL_S_DEFAULT


def outlook_for(document: CommandDocument, outlook: CommandOutlook) -> CommandOutlook:
    """Return an outlook for this command: an online one does not wait for its gateway."""
    if document.delivery != ONLINE or outlook.connected or outlook.why_not:
        return outlook
    return outlook._replace(why_not="it is not connected, and an online command does not wait")


def _may_reply(address: str, replies: str | None) -> bool:
    if replies is not None:
        return address.startswith(replies)
    return is_temporary(address) or address.startswith(REPLIES)


def outlook_document(outlook: CommandOutlook) -> OutlookRow:
    """Make the document of what would happen to a command."""
    when = "never" if outlook.why_not else "now" if outlook.connected else "when it connects"
    seen = format_time(outlook.last_seen) if outlook.last_seen is not None else None
    return {"gateway": outlook.gateway, "when": when, "why": outlook.why_not or None, "last_seen": seen}


def command_document(command: CommandRecord) -> CommandRow:
    """Make the document of a command, without its payload."""
    response: CommandResponse | None = None
    if command.responded_at is not None:
        response = {
            "status": command.response_status,
            "content_type": command.response_type,
            **payload_document(command.response or b""),
            "at": format_time(command.responded_at),
        }
    return {
        "id": command.id,
        "tenant": command.tenant,
        "gateway": command.gateway,
        "sent_to": command.sent_to,
        "device": command.device,
        "name": command.name,
        "delivery": "online" if command.online else "stored",
        "state": command.state,
        "reason": command.reason or None,
        "reason_code": command.reason_code,
        "correlation_id": command.correlation_id,
        "sent_by": command.sent_by or None,
        "created_at": format_time(command.created_at),
        "expires_at": format_time(command.expires_at),
        "changed_at": format_time(command.changed_at),
        "wants_response": command.wants_response,
        "response": response,
    }


def payload_document(payload: bytes) -> CommandPayload:
    """Return the payload as text if it is UTF-8, else as base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def format_time(us: int) -> str:
    """Format UTC microseconds as RFC 3339 with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us / 1e6)) + f".{us // 1_000 % 1_000:03d}Z"


def _payload(document: CommandDocument) -> tuple[bytes, str | None]:
    if document.payload_base64 is not None:
        if document.payload != "":
            raise InvalidCommand("set payload or payload_base64, not both")
        try:
            return base64.b64decode(document.payload_base64, validate=True), document.content_type
        except (binascii.Error, ValueError):
            raise InvalidCommand("payload_base64 is not base64 (RFC 4648)") from None
    if isinstance(document.payload, str):
        return document.payload.encode("utf-8", "replace"), document.content_type
    return msgspec.json.encode(document.payload), document.content_type or JSON
