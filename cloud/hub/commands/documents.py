"""A command as people and programs write it, and as they see it: JSON, the same over HTTP and on the command line."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bridge.command import fault
from cloud.hub.commands.limits import CORRELATION_CHARACTERS_MAX, KEY_CHARACTERS_MAX, TTL_S_DEFAULT
from cloud.hub.commands.service import Draft
from cloud.hub.peers import gateway_fault, tenant_fault
from cloud.hub.registry.commands import CommandRecord
from cloud.hub.spaces import REPLIES
from edge.broker.model.authorization import is_temporary

JSON: Final = "application/json"


class NoCommand(ValueError):
    """This is no command; the message says what is wrong."""


class CommandDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command as it is sent."""

    gateway: str
    device: str
    name: str
    payload: Any = ""
    """A text is sent as it is, anything else as JSON."""
    payload_base64: str | None = None
    """In its place, of any bytes."""
    content_type: str | None = None
    ttl_s: float = TTL_S_DEFAULT
    response: bool = False
    """The device is asked for a response."""
    correlation_id: str | None = None
    """The application's own, which comes back with what became of it."""
    reply_to: str | None = None
    """Address of the tenant's space, to hear there what becomes of it."""


def draft(
    document: CommandDocument, tenant: str, sent_by: str, body: bytes | None = None, key: str | None = None
) -> Draft:
    """`body`: the payload where the document has none; `key`: the sender's idempotency key. Raises `NoCommand`."""
    payload, content_type = _payload(document) if body is None else (body, document.content_type)
    why = (
        tenant_fault(tenant)
        or gateway_fault(document.gateway)
        or fault(document.device, document.name, payload, content_type, document.ttl_s)
    )
    if document.reply_to is not None and not (is_temporary(document.reply_to) or document.reply_to.startswith(REPLIES)):
        why = why or f"reply_to is a dynamic node of yours, or begins with {REPLIES}"
    for said in (document.correlation_id, document.reply_to):
        if said is not None and not 0 < len(said) <= CORRELATION_CHARACTERS_MAX:
            why = why or f"correlation_id and reply_to have 1 to {CORRELATION_CHARACTERS_MAX} characters"
    if key is not None and not 0 < len(key) <= KEY_CHARACTERS_MAX:
        why = why or f"an idempotency key has 1 to {KEY_CHARACTERS_MAX} characters"
    if why:
        raise NoCommand(why)
    return Draft(
        tenant,
        document.gateway,
        document.device,
        document.name,
        payload,
        content_type,
        document.ttl_s,
        document.response,
        document.correlation_id,
        document.reply_to,
        sent_by,
        key,
    )


def shown(command: CommandRecord) -> dict[str, Any]:
    """A command as it is seen, without its payload."""
    response = None
    if command.responded_at is not None:
        response = {
            "status": command.response_status,
            "content_type": command.response_type,
            **shown_payload(command.response or b""),
            "at": moment(command.responded_at),
        }
    return {
        "id": command.id,
        "tenant": command.tenant,
        "gateway": command.gateway,
        "device": command.device,
        "name": command.name,
        "state": command.state,
        "reason": command.reason or None,
        "correlation_id": command.correlation_id,
        "sent_by": command.sent_by or None,
        "created_at": moment(command.created_at),
        "expires_at": moment(command.expires_at),
        "changed_at": moment(command.changed_at),
        "wants_response": command.wants_response,
        "response": response,
    }


def shown_payload(payload: bytes) -> Mapping[str, Any]:
    """As text where it is text."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def moment(us: int) -> str:
    """UTC microseconds as people read them (RFC 3339), in milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us / 1e6)) + f".{us // 1_000 % 1_000:03d}Z"


def _payload(document: CommandDocument) -> tuple[bytes, str | None]:
    if document.payload_base64 is not None:
        if document.payload != "":
            raise NoCommand("give payload or payload_base64, not both")
        try:
            return base64.b64decode(document.payload_base64, validate=True), document.content_type
        except (binascii.Error, ValueError):
            raise NoCommand("payload_base64 is not base64 (RFC 4648)") from None
    if isinstance(document.payload, str):
        return document.payload.encode("utf-8", "replace"), document.content_type
    return msgspec.json.encode(document.payload), document.content_type or JSON
