"""Read stored messages of a running gateway, in memory or on disk, without consuming them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from bridge.amqp_values import DecodeError
from bridge.message import AMQP, QOS_MASK, RETAIN, Run, Stored
from bridge.publisher import client_of, device_of
from edge.appliance.messages.documents import MessageDocument
from edge.broker.delivery.dead_letters import dead_letter_marks
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run
from edge.broker.message.translation import payload_of
from edge.broker.store.contract import MessageLogs

PROPERTIES_SHOWN_MAX: Final = 50
PROPERTY_CHARACTERS_MAX: Final = 500


async def read_runs(logs: MessageLogs, log: int, position: int, bytes_max: int) -> Sequence[Stored]:
    """Return committed runs of a log from `position` on; empty at its end."""
    found: asyncio.Future[Sequence[Stored]] = asyncio.get_running_loop().create_future()

    def done(runs: Sequence[Stored]) -> None:
        if not found.done():
            found.set_result(runs)

    logs.read(log, position, bytes_max, done)
    return await found


def message_document(stored: Stored, place: int, bytes_shown: int, *, dead: bool = False) -> MessageDocument:
    """Return the document of one message of a run, with the begin of its body. `dead`: with reason and origin."""
    run = stored.run
    content_type, properties, payload = _content(run, run.bodies[place])
    body, form, shown = _shown(payload, bytes_shown)
    device, client = device_of(run.device), client_of(run.device)
    marks = dead_letter_marks(run, run.bodies[place]) if dead else None
    return MessageDocument(
        position=stored.position + place,
        sequence=stored.sequence + place,
        address=run.address,
        received_at=run.received_at / 1e9,
        device=device,
        client=client if client != device else "",
        protocol="AMQP" if run.flags & AMQP else "MQTT",
        qos=run.flags & QOS_MASK,
        retain=bool(run.flags & RETAIN),
        content_type=content_type,
        properties=[(name[:PROPERTY_CHARACTERS_MAX], text[:PROPERTY_CHARACTERS_MAX]) for name, text in properties],
        size=len(payload),
        body=body,
        form=form,
        shown=shown,
        reason=marks.reason if marks else "",
        origin=marks.origin if marks else "",
    )


def _content(run: Run, body: bytes) -> tuple[str | None, list[tuple[str, str]], bytes]:
    """Return content type, properties and payload of a message."""
    try:
        if run.flags & AMQP:
            content_type, properties, payload = payload_of(body)
            found = properties.pop("application-properties", {}) | properties.pop("message-annotations", {})
            pairs = [(str(name), str(value)) for name, value in (properties | found).items()]
            return content_type, pairs[:PROPERTIES_SHOWN_MAX], payload
        decoded = decode_run(run.properties)
        return decoded.content_type, list(decoded.user_property[:PROPERTIES_SHOWN_MAX]), body
    except (DecodeError, MqttError):
        return None, [], body


def _shown(payload: bytes, bytes_shown: int) -> tuple[str, str, int]:
    """Return the begin of a body as text or hexadecimal digits, the form, and the number of its bytes."""
    part = payload[:bytes_shown]
    cut = len(payload) > bytes_shown
    for less in range(4 if cut else 1):  # the cut may split a character of up to 4 bytes
        try:
            text = part[: len(part) - less].decode()
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, "text", len(part) - less
    return part.hex(), "hex", len(part)
