"""Body of a request: a JSON array, one JSON document per line, or a batch of CloudEvents 1.0.

A payload that is a JSON object, array or number is included as JSON, other text as a string, anything else in Base64.
Each message has its name, so that a receiver can drop duplicates, whichever request they are in.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from bridge.connectors.messages import ConnectorMessage
from bridge.connectors.settings import Format
from bridge.hidden import hides
from bridge.limits import JSON_BYTES_MAX

_JSON_STARTS: Final = frozenset(b"{[-0123456789")
_NS: Final = 1_000_000_000


CONTENT_TYPES: Final = {
    Format.JSON: "application/json",
    Format.NDJSON: "application/x-ndjson",
    Format.CLOUDEVENTS: "application/cloudevents-batch+json; charset=utf-8",
}


@hides("body", "base64", "properties")
class _JsonItem(msgspec.Struct, omit_defaults=True, rename="camel"):
    """One message of `JSON` and `NDJSON`; the first three members are those of Waypost's HTTP API."""

    address: str
    body: msgspec.Raw | str | msgspec.UnsetType = msgspec.UNSET
    base64: str | None = None
    content_type: str | None = None
    gateway: str = ""
    epoch: str = ""
    source: str = ""
    """Address at the gateway, when it is another one."""
    sequence: int = -1
    device: str = ""
    received_at: str = ""
    hops: tuple[str, ...] = ()
    """Gateways it has passed, if there are others than this one."""
    properties: dict[str, str] | None = None


@hides("data", "data_base64")
class _Event(msgspec.Struct, omit_defaults=True):
    """One CloudEvent; source and id together name it (section 3.1)."""

    id: str
    source: str
    subject: str
    time: str
    datacontenttype: str | None = None
    data: msgspec.Raw | str | msgspec.UnsetType = msgspec.UNSET
    data_base64: str | None = None
    device: str = ""
    sequence: str = ""
    """Attribute of the CloudEvents extension of this name."""
    hops: str = ""
    specversion: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET


def encode(messages: Sequence[ConnectorMessage], form: Format) -> bytes:
    """Encode the body of a request with these messages."""
    if form is Format.NDJSON:
        return msgspec.json.Encoder().encode_lines([_item(message) for message in messages])
    if form is Format.CLOUDEVENTS:
        return msgspec.json.encode([_event(message) for message in messages])
    return msgspec.json.encode([_item(message) for message in messages])


def _item(message: ConnectorMessage) -> _JsonItem:
    content = _content(message.payload)
    (gateway, epoch), address, sequence = message.name
    return _JsonItem(
        address=message.target,
        body=msgspec.UNSET if isinstance(content, bytes) else content,
        base64=base64.b64encode(content).decode() if isinstance(content, bytes) else None,
        content_type=message.properties.content_type,
        gateway=gateway,
        epoch=epoch,
        source=address if address != message.target else "",
        sequence=sequence,
        device=message.device,
        received_at=_time(message.received_at),
        hops=message.hops if len(message.hops) > 1 else (),
        properties=dict(message.properties.users) or None,
    )


def _event(message: ConnectorMessage) -> _Event:
    content = _content(message.payload)
    (gateway, epoch), address, sequence = message.name
    kind = message.properties.content_type
    if kind is None and isinstance(content, msgspec.Raw):
        kind = "application/json"
    return _Event(
        id=str(sequence),
        source=f"/waypost/{quote(gateway, safe='')}/{epoch}/{quote(address)}",
        subject=message.target,
        time=_time(message.received_at),
        datacontenttype=kind,
        data=msgspec.UNSET if isinstance(content, bytes) else content,
        data_base64=base64.b64encode(content).decode() if isinstance(content, bytes) else None,
        device=message.device,
        sequence=str(sequence),
        hops=" ".join(message.hops) if len(message.hops) > 1 else "",
        specversion="1.0",
        type="io.waypost.message",
    )


def _content(payload: bytes) -> msgspec.Raw | str | bytes:
    """Return the payload as JSON, as text, or as bytes."""
    short = len(payload) <= JSON_BYTES_MAX
    if payload and short and payload[0] in _JSON_STARTS and (found := _json(payload)) is not None:
        return msgspec.Raw(found)
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


def _json(payload: bytes) -> bytes | None:
    """Return the payload on one line if it is JSON; otherwise None."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return msgspec.json.format(payload, indent=-1) if b"\n" in payload or b"\r" in payload else payload


def _time(ns: int) -> str:
    """Format a time by RFC 3339, to the microsecond."""
    moment = datetime.datetime.fromtimestamp(ns // _NS, datetime.UTC).replace(microsecond=ns % _NS // 1000)
    return moment.isoformat().replace("+00:00", "Z")
