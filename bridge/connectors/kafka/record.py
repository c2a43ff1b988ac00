"""A message as a Kafka record: its topic, its key, and headers that bear its name."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bridge.connectors.messages import Message
from bridge.connectors.settings import Key
from bridge.hidden import hides

TOPIC_CHARACTERS_MAX: Final = 249
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._-]")
_HEADER: Final = "waypost-"


@hides("value", "headers")
class Record(NamedTuple):
    """What the producer is given."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def topic_of(address: str) -> str:
    """The topic of a remote address: levels are joined by dots, and what Kafka has no place for becomes ``_``.

    Raises `ValueError` when nothing is left, or it is too long.
    """
    topic = _ILLEGAL.sub("_", address.replace("/", "."))
    if not topic.strip(".") or len(topic) > TOPIC_CHARACTERS_MAX:
        raise ValueError("the address makes no Kafka topic")
    return topic


def record(message: Message, key: Key) -> Record:
    """Raises `ValueError` when its address makes no topic."""
    (gateway, epoch), address, sequence = message.name
    properties = message.properties
    headers = [
        (f"{_HEADER}gateway", gateway.encode()),
        (f"{_HEADER}epoch", epoch.encode()),
        (f"{_HEADER}address", address.encode()),
        (f"{_HEADER}sequence", str(sequence).encode()),
        (f"{_HEADER}device", message.device.encode()),
    ]
    if properties.content_type is not None:
        headers.append(("content-type", properties.content_type.encode()))
    headers.append((f"{_HEADER}hops", " ".join(message.hops).encode()))
    headers += [(name, value.encode()) for name, value in properties.users]
    return Record(
        topic_of(message.target),
        (message.device if key is Key.DEVICE else address).encode(),
        message.payload,
        headers,
        message.received_at // 1_000_000,
    )
