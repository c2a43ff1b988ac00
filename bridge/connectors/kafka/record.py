"""Translate messages to Kafka records and back: topic, key, and headers with the message's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from bridge.connectors.limits import KAFKA_HEADER_BYTES_MAX
from bridge.connectors.messages import ConnectorMessage
from bridge.connectors.settings import PartitionKey
from bridge.forwarders.inbox import Incoming
from bridge.hidden import hides
from bridge.message import Run
from bridge.plain import HOPS_PROPERTY, PREFIX, RECEIVED_AT
from bridge.publish_properties import PublishProperties, write

TOPIC_CHARACTERS_MAX: Final = 249
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._-]")
_HEADER: Final = "waypost-"
_ORIGIN: Final = ("gateway", "epoch", "address", "sequence", "device", "client")
"""Headers that name the origin of a message."""
_CONTENT_TYPE: Final = "content-type"
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that MQTT does not allow in strings (section 1.5.4)."""


SchemaHeaders = Mapping[str, tuple[str, bytes]]
"""Name and value of the header that names the schema of a payload, by topic."""
NO_SCHEMAS: Final[SchemaHeaders] = {}


@hides("value", "headers")
class KafkaRecord(NamedTuple):
    """Record for the producer."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def topic_of(address: str) -> str:
    """Return the topic for a remote address: levels are joined by dots, and illegal characters become ``_``.

    Raises `ValueError` when nothing is left, or it is too long.
    """
    topic = _ILLEGAL.sub("_", address.replace("/", "."))
    if not topic.strip(".") or len(topic) > TOPIC_CHARACTERS_MAX:
        raise ValueError("the address cannot be translated to a Kafka topic")
    return topic


def record(message: ConnectorMessage, key: PartitionKey, schemas: SchemaHeaders = NO_SCHEMAS) -> KafkaRecord:
    """Return a message as a record, with the header of its topic's schema. Raises `ValueError` when its address cannot
    be a topic."""
    topic = topic_of(message.target)
    schema = schemas.get(topic)
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
        headers.append((_CONTENT_TYPE, properties.content_type.encode()))
    headers.append((f"{_HEADER}hops", " ".join(message.hops).encode()))
    headers += [
        (name, value.encode()) for name, value in properties.users if schema is None or name != schema[0]
    ]  # readers use the last header of a name, which must not be a device's
    if schema is not None:
        headers.append(schema)
    return KafkaRecord(
        topic,
        (message.device if key is PartitionKey.DEVICE else address).encode(),
        message.payload,
        headers,
        message.received_at // 1_000_000,
    )


class FetchedRecord(Protocol):
    """Record from the library (`aiokafka.structs.ConsumerRecord`)."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970; -1 when it has none."""
        ...

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


def arrival(token: int, fetched: FetchedRecord) -> Incoming:
    """Return a record as a message.

    A record that a Waypost gateway wrote gets its original name, address, device and hops. Any other is named by its
    place in the topic and a digest, as a topic that was deleted and created again has the same places. Headers that are
    not valid MQTT strings, or exceed `KAFKA_HEADER_BYTES_MAX`, are dropped.
    """
    own: dict[str, str] = {}
    users: list[tuple[str, str]] = []
    room = KAFKA_HEADER_BYTES_MAX
    for name, raw in fetched.headers:
        text = _text(raw)
        room -= len(name) + len(raw or b"")
        if text is None or room < 0 or _UNFIT.search(name):
            continue
        if name == _CONTENT_TYPE or name.startswith(_HEADER):
            own.setdefault(name.removeprefix(_HEADER), text)
        else:
            users.append((name, text))
    hops = tuple(own.get("hops", "").split())
    address, epoch, sequence = own.get("address"), own.get("epoch"), own.get("sequence", "")
    ours = address is not None and epoch is not None and sequence.isdecimal()
    if ours:
        users += [(PREFIX + name, own[name]) for name in _ORIGIN if name in own]
        users.append((RECEIVED_AT, str(max(0, fetched.timestamp) * 1_000_000)))
    if hops:
        users.append((HOPS_PROPERTY, " ".join(hops)))
    properties = write(PublishProperties(content_type=own.get(_CONTENT_TYPE), users=tuple(users)))
    body = fetched.value or b""
    named = f"{epoch}/{int(sequence)}/{address}".encode() if ours else _place(fetched, body)
    addresses = tuple(each for each in (address, fetched.topic, fetched.topic.replace(".", "/")) if each)
    received_at = fetched.timestamp * 1_000_000 if ours and fetched.timestamp >= 0 else 0
    run = Run(addresses[0], own.get("device", ""), 1, properties, [body], received_at)
    return Incoming(token, addresses, named, hops, run, unique=True)


def _place(fetched: FetchedRecord, body: bytes) -> bytes:
    place = f"{fetched.topic}/{fetched.partition}/{fetched.offset}/{fetched.timestamp}/".encode()
    return place + blake2b(fetched.key or b"", digest_size=8).digest() + blake2b(body, digest_size=16).digest()


def _text(raw: bytes | None) -> str | None:
    try:
        text = (raw or b"").decode()
    except UnicodeDecodeError:
        return None
    return None if _UNFIT.search(text) else text
