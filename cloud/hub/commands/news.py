"""News of commands (receipts and responses), read from the batches of gateways. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgspec

from bridge.amqp_values import DecodeError
from bridge.batch import Batch
from bridge.command import HONO_RESPONSES, HUB, RECEIPTS, RESPONSES, ReceiptDocument
from bridge.message import AMQP, Run, Stored
from cloud.hub.commands.limits import RESPONSE_BYTES_MAX
from cloud.hub.registry.command_moves import split_sending
from cloud.hub.registry.commands import CommandNews, CommandState
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run
from edge.broker.message.translation import parse_message
from edge.output.text import line

log = logging.getLogger(__name__)

STATUS = "status"
"""Application property or user property of a response: a status as of HTTP."""
_ADDRESSES = (f"{RECEIPTS}/", f"{RESPONSES}/", f"{HONO_RESPONSES}/")
_CORRELATION, _CONTENT_TYPE = 5, 6


def has_news(batch: Batch) -> bool:
    """Return whether a batch may contain news of commands."""
    return any(piece.address.startswith(_ADDRESSES) for piece in batch.ranges)


def read_news(tenant: str, gateway: str, batch: Batch, now_us: int) -> list[CommandNews]:
    """Read the news of commands in a batch. Invalid messages are ignored here, but land too."""
    found: list[CommandNews] = []
    for stored in batch.stored():
        if stored.run.address.startswith(_ADDRESSES):
            found += [each._replace(tenant=tenant, gateway=gateway, at=now_us) for each in _read(stored)]
    return found


def _read(stored: Stored) -> Iterator[CommandNews]:
    run = stored.run
    kind, _, device = run.address.partition("/")
    for i in range(len(run.bodies)):
        try:
            news = _receipt(device, run.bodies[i]) if kind == RECEIPTS else _response(kind, device, run, i)
        except (DecodeError, MqttError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.info("message at %s is not about a command: %s", run.address, error)
            continue
        # Identifiers of commands are printable; others are invalid, and a database may refuse them.
        if news is not None and news.id.isprintable():
            yield news


def _receipt(device: str, body: bytes) -> CommandNews:
    document = msgspec.json.decode(body, type=ReceiptDocument)
    identifier, moves = split_sending(document.command)
    state = CommandState(document.receipt.value)
    return CommandNews(identifier, "", "", device, 0, state, document.reason, returned=document.returned, moves=moves)


def _response(kind: str, device: str, run: Run, i: int) -> CommandNews | None:
    """Read a response; None if it does not name its command."""
    if kind == HONO_RESPONSES:
        if device.rpartition("/")[2] != HUB:
            return None
        device = run.device
    correlation, status, content_type, body = _amqp(run, i) if run.flags & AMQP else _mqtt(run, i)
    if not correlation:
        return None
    kept, (identifier, _) = body[:RESPONSE_BYTES_MAX], split_sending(correlation)
    return CommandNews(identifier, "", "", device, 0, status=status, content_type=content_type, response=kept)


def _amqp(run: Run, i: int) -> tuple[str, int | None, str | None, bytes]:
    found = parse_message(run.bodies[i])
    fields = [*found.properties, *[None] * (_CONTENT_TYPE + 1)]
    content_type = line(fields[_CONTENT_TYPE])[:255] if fields[_CONTENT_TYPE] else None
    return _text(fields[_CORRELATION]), _status(found.application.get(STATUS)), content_type, found.body


def _mqtt(run: Run, i: int) -> tuple[str, int | None, str | None, bytes]:
    own = decode_run(run.properties)
    found = [value for name, value in own.user_property if name == STATUS]
    content_type = line(own.content_type)[:255] if own.content_type is not None else None
    return _text(own.correlation_data), _status(found[-1] if found else None), content_type, run.bodies[i]


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value) if value is not None else ""


def _status(value: Any) -> int | None:
    """Return a valid status, or None."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:9])
    whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if whole and 0 <= value < 1_000 else None
