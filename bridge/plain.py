"""Plain AMQP messages, one per delivery, for peers without batches (AMQP 1.0 section 3.2).

Each message carries its own name in message annotations ``x-opt-waypost-…``; a batch has it once for many. A message
that arrived over AMQP leaves with its bare message unchanged (section 3.2 forbids changes). One that arrived over MQTT
becomes properties, application properties and a data section. Sans-I/O; knows no links.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from bridge import sections as s
from bridge.amqp_values import Allowance, DecodeError, Symbol, Ubyte, Uint, Ulong, decode, encode
from bridge.limits import ANNOTATIONS_MAX, BATCH_ENDS_MAX, HEADER_VALUES_MAX
from bridge.message import AMQP, DURABLE, Run
from bridge.publish_properties import USERS_ANNOTATION, PublishProperties, list_repeated, read
from bridge.publisher import client_of, device_of, publisher_name

PREFIX: Final = "x-opt-waypost-"
GATEWAY, EPOCH, ADDRESS, SEQUENCE, DEVICE, CLIENT, RECEIVED_AT, HOPS = (
    Symbol(PREFIX + name)
    for name in ("gateway", "epoch", "address", "sequence", "device", "client", "received-at", "hops")
)

ENDS: Final = Symbol(PREFIX + "ends")
"""Annotation of a message with a batch: a list of log, end, log, end, ..."""

MESSAGE_ID_LENGTH_MAX: Final = 128
"""Limit of Azure Service Bus, which detects duplicates by message-id."""
HOPS_MAX: Final = 32
"""Gateways and hubs that one message may have passed; more is a loop."""
PARTITION_KEY: Final = Symbol("x-opt-partition-key")
"""Annotation of Azure Service Bus and Event Hubs: messages with the same key keep their order."""
PARTITION_KEY_LENGTH_MAX: Final = 128
"""Limit of Azure."""
HOPS_PROPERTY: Final = "x-opt-waypost-hops"
"""User property with the hops of a message in MQTT encoding, separated by spaces."""
ORIGIN_NAMES: Final = frozenset((GATEWAY, EPOCH, ADDRESS, SEQUENCE, DEVICE, CLIENT, RECEIVED_AT))
"""Annotations, or user properties, that name the origin of a message."""
_NAMES: Final = ORIGIN_NAMES | {HOPS_PROPERTY}
"""User properties that name a message and its hops."""

_MAP8, _MAP32, _BINARY8 = 0xC1, 0xD1, 0xA0
_ANNOTATIONS_BEGIN: Final = b"\x00\x53\x72"
_MAP32_CODE: Final = bytes((_MAP32,))
_PROPERTIES_BEGIN: Final = b"\x00\x53\x73\xd0"
"""Start of a properties section with a list32: size and count have four bytes."""
_ULONG: Final = b"\x80"
"""Code of a ulong with eight bytes, also for small values: all sequences of a run have the same length."""
_ULONG_VALUE: Final = re.compile(rb"\x80(.{8})|\x53(.)|\x44", re.DOTALL)
_USUAL_ENDS: Final = re.compile(
    rb"\x00\x53\x72\xc1(.)\x02" + re.escape(encode(ENDS)) + rb"\xc0(.)(.)((?:\x80.{8}|\x53.|\x44)+)", re.DOTALL
)
"""Message annotations with only our key `ENDS` and one-byte sizes."""
_UINT_MAX: Final = 0xFFFF_FFFF
_DESCRIPTIVE: Final = frozenset((s.HEADER, s.DELIVERY_ANNOTATIONS, s.MESSAGE_ANNOTATIONS, s.PROPERTIES))
"""Sections before the application's own: they describe a message and its origin."""


class MessageError(Exception):
    """The bytes are not an AMQP message."""

    condition = "amqp:decode-error"


class Hop(NamedTuple):
    """The parts of a message's name that all messages of one gateway share."""

    gateway: str
    epoch: str


class Arrival(NamedTuple):
    """A plain message as received; `gateway`, `epoch` and `sequence` are None when it has no Waypost name.

    `run` is one message in AMQP encoding: ``properties`` is the header section, ``bodies[0]`` the rest without delivery
    annotations. Its address is that of the annotation, else the ``to`` property, else empty.
    """

    gateway: str | None
    epoch: str | None
    sequence: int | None
    hops: tuple[str, ...]
    run: Run
    destinations: tuple[str, ...] = ()
    """Addresses that it names: the annotation, `to`, and `subject`, where it has them."""
    name: bytes = b""
    """Identity that a repeated message shares: the Waypost name, or the message-id with a digest of the bare message,
    as some senders use one id for many messages; empty when it has neither."""


class Heading(NamedTuple):
    """A forwarder's overrides of message headers; None: the message's own value."""

    to: str | None = None
    priority: int | None = None
    ttl_ms: int | None = None
    """Time to live from now on; the message's own ttl counts where it is shorter."""
    elapsed_ms: int = 0
    """Time since the messages arrived, which is subtracted from their own ttl."""
    durable: bool = False
    """The peer has to keep the messages over its restart, also those that are not durable (section 3.2.1)."""
    partition_key: str | None = None
    """Key of messages that the peer keeps in order; a long key is sent as its digest."""


AS_THEY_SAY: Final = Heading()
KEPT: Final = Heading(durable=True)


def data_section(body: bytes) -> bytes:
    """Return a message of a single data section (section 3.2.6)."""
    return b"\x00\x53\x75" + encode(body)


def batch_message(batch: bytes, ends: Mapping[int, int]) -> bytes:
    """Return a message with a batch. `ends`: end of its messages, by log of the gateway's store; a hub that does not
    know this annotation takes the batch without it."""
    if not ends:
        return data_section(batch)
    pairs = [Ulong(number) for pair in ends.items() for number in pair]
    return section(s.MESSAGE_ANNOTATIONS, {ENDS: pairs}) + data_section(batch)


def batch_in(message: bytes) -> tuple[bytes, dict[int, int]]:
    """Return the batch in a message, and its `ends`. Raises `MessageError` when it has no batch."""
    found = _usual_batch(message)
    return found if found is not None else (body_of(message), ends_of(message))


def _usual_batch(message: bytes) -> tuple[bytes, dict[int, int]] | None:
    """Fast path of `batch_in` for messages that `batch_message` writes with few ends; None for all others."""
    annotated = _USUAL_ENDS.match(message)
    if annotated is None:
        batch = s.plain_data(message)
        return None if batch is None else (batch, {})
    map_size, list_size, count, encoded = annotated.groups()
    numbers = [int.from_bytes(wide or small) for wide, small in _ULONG_VALUE.findall(encoded)]
    sizes = (map_size[0], list_size[0], count[0])
    batch = s.plain_data(message[annotated.end() :])
    if batch is None or len(numbers) % 2 or sizes != (annotated.end() - 5, len(encoded) + 1, len(numbers)):
        return None
    return batch, dict(zip(numbers[::2], numbers[1::2], strict=True))


def ends_of(message: bytes) -> dict[int, int]:
    """Return the `ends` of a message with a batch; empty when it has none. Raises `MessageError`."""
    wanted = (s.MESSAGE_ANNOTATIONS,)
    try:
        found = [content for _, content in contents(message, wanted, Allowance(2 * BATCH_ENDS_MAX + 2))]
    except DecodeError as error:
        raise MessageError(str(error)) from None
    pairs = found[0].get(ENDS) if found and isinstance(found[0], dict) else None
    if not isinstance(pairs, list) or len(pairs) % 2 or not all(isinstance(number, int) for number in pairs):
        return {}
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


# --- out ----------------------------------------------------------------------------------------------------------


def messages(hop: Hop, sequence: int, run: Run, heading: Heading = AS_THEY_SAY) -> list[bytes]:
    """Encode the messages of a run, named by `hop` and their sequences."""
    ours = _Annotations(hop, run, heading.partition_key)
    if run.flags & AMQP:
        header = run.properties if heading == AS_THEY_SAY else _header_of(run.properties, heading)
        return [_annotated(ours, sequence + i, header, body) for i, body in enumerate(run.bodies)]
    mqtt = read(run.properties)
    header, properties, application = _translated(run, mqtt, heading)
    repeated = list_repeated(_users_of(mqtt))
    more = b"" if repeated is None else encode(Symbol(USERS_ANNOTATION)) + encode(repeated)
    values = ours.values + (2 if more else 0)
    hops, count = ours.hops(_mqtt_hops(mqtt)), 1 + len(properties)
    others = b"".join(map(encode, properties))
    return [
        b"".join(
            (
                header,
                _map_section(more + ours.named(sequence + i, hops), values),
                _list_section(encode(message_id(hop, sequence + i, run.address)) + others, count),
                application,
                data_section(body),
            )
        )
        for i, body in enumerate(run.bodies)
    ]


def hops_of(run: Run) -> Sequence[str]:
    """Return the gateways that the messages of a run have passed; in AMQP encoding those of its first message."""
    if not run.flags & AMQP:
        return _mqtt_hops(read(run.properties)) if run.properties else ()
    body = run.bodies[0]
    if body[:3] != _ANNOTATIONS_BEGIN or HOPS.encode() not in body:
        return ()
    try:
        return _their_annotations(body)[1]
    except DecodeError:
        return ()


class _Annotations:
    """Encoder of our message annotations for a run: values that its messages share are encoded once."""

    def __init__(self, hop: Hop, run: Run, partition_key: str | None) -> None:
        partition = () if partition_key is None else (PARTITION_KEY, _partition_key(partition_key))
        before = (*partition, GATEWAY, hop.gateway, EPOCH, hop.epoch, ADDRESS, run.address, SEQUENCE)
        device, client = device_of(run.device), client_of(run.device)
        named = (DEVICE, device) if client == device else (DEVICE, device, CLIENT, client)
        after = (*named, RECEIVED_AT, run.received_at, HOPS)
        self.values = len(before) + 1 + len(after) + 1
        """Number of keys and values."""
        self.replaced = partition[:1]
        """The message's own annotations that ours replace, in addition to earlier Waypost ones."""
        self._before = b"".join(map(encode, before)) + _ULONG
        self._after = b"".join(map(encode, after))
        self._gateway = hop.gateway
        self._first_hop = encode([hop.gateway])

    def hops(self, before: Sequence[str]) -> bytes:
        """Encode the gateways that a message has passed, this one last."""
        return encode([*before, self._gateway]) if before else self._first_hop

    def named(self, sequence: int, hops: bytes) -> bytes:
        """Encode all our annotations for one message."""
        return b"".join((self._before, sequence.to_bytes(8), self._after, hops))


def _partition_key(key: str) -> str:
    return key if len(key) <= PARTITION_KEY_LENGTH_MAX else blake2b(key.encode(), digest_size=16).hexdigest()


def message_id(hop: Hop, sequence: int, address: str) -> str:
    """Return the message's name as one string; a long address is replaced by its digest."""
    name = f"{hop.epoch}/{sequence}/{address}"
    if len(name) <= MESSAGE_ID_LENGTH_MAX:
        return name
    return f"{hop.epoch}/{sequence}/{blake2b(address.encode(), digest_size=16).hexdigest()}"


def _header_of(header: bytes, heading: Heading) -> bytes:
    """Return the header section with a forwarder's durability, priority and time to live."""
    fields: list[Any] = []
    if header:
        try:
            value, _ = decode(header, s.section_at(header, 0).value, Allowance(HEADER_VALUES_MAX))
            fields = value if isinstance(value, list) else []
        except DecodeError:
            return header  # a header that cannot be decoded is passed on unchanged
    durable, priority, ttl_ms = [*fields, None, None, None][:3]
    durable = heading.durable or durable is True
    priority = heading.priority if heading.priority is not None else priority
    left = [max(0, ttl_ms - heading.elapsed_ms)] if isinstance(ttl_ms, int) else []
    if heading.ttl_ms is not None:
        left.append(max(0, heading.ttl_ms))
    if not left and priority is None and not durable:
        return b"" if not header else section(s.HEADER, [])
    ttl = [Uint(min(*left, _UINT_MAX))] if left else []
    return section(s.HEADER, [durable, Ubyte(priority) if isinstance(priority, int) else None, *ttl])


def _annotated(ours: _Annotations, sequence: int, header: bytes, body: bytes) -> bytes:
    """Return an AMQP message with our annotations added to its own; every other byte is unchanged."""
    try:
        others, hops, rest = _their_annotations(body, ours.replaced)
    except DecodeError:
        others, hops, rest = [], [], 0  # passed on unchanged; the peer may understand more of it
    content = b"".join((*others, ours.named(sequence, ours.hops(hops))))
    return header + _map_section(content, 2 * len(others) + ours.values) + body[rest:]


def _their_annotations(body: bytes, replaced: Container[Symbol] = ()) -> tuple[list[bytes], list[str], int]:
    """Return the message's own annotations, encoded; its hops so far; and the start of its next section."""
    first = s.section_at(body, 0) if body else None
    if first is None or first.code != s.MESSAGE_ANNOTATIONS:
        return [], [], 0
    code = body[first.value]
    if code not in (_MAP8, _MAP32):
        raise DecodeError("message annotations are not a map")
    others: list[bytes] = []
    hops: list[str] = []
    start = first.value + (3 if code == _MAP8 else 9)
    while start < first.end:
        if len(others) >= ANNOTATIONS_MAX:
            raise DecodeError("more message annotations than are decoded")
        key, at = decode(body, start)
        value, end = decode(body, at)
        if key == HOPS and isinstance(value, list):
            hops = [str(hop) for hop in value[-HOPS_MAX:]]
        if not str(key).startswith(PREFIX) and key not in replaced:
            others.append(body[start:end])
        start = end
    return others, hops, first.end


def section(code: int, value: Any) -> bytes:
    """Encode one section of a message."""
    return b"\x00\x53" + bytes((code,)) + encode(value)


def _map_section(content: bytes, count: int) -> bytes:
    """Return message annotations from `count` encoded keys and values."""
    return _ANNOTATIONS_BEGIN + _MAP32_CODE + (len(content) + 4).to_bytes(4) + count.to_bytes(4) + content


def _list_section(content: bytes, count: int) -> bytes:
    """Return a properties section from `count` encoded fields."""
    return _PROPERTIES_BEGIN + (len(content) + 4).to_bytes(4) + count.to_bytes(4) + content


# --- MQTT to AMQP -------------------------------------------------------------------------------------------------


def _translated(run: Run, mqtt: PublishProperties, heading: Heading) -> tuple[bytes, list[Any], bytes]:
    """Translate a run in MQTT encoding: return header section, properties after message-id, and application properties
    section."""
    own = [bool(run.flags & DURABLE) or run.qos > 0]
    ttl = [None, Uint(min(mqtt.expiry_s * 1000, _UINT_MAX))] if mqtt.expiry_s is not None else []
    header = _header_of(section(s.HEADER, [*own, *ttl]), heading)
    content_type = mqtt.content_type
    properties = [
        None,  # user-id
        run.address if heading.to is None else heading.to,
        None,  # subject
        mqtt.response_topic,
        mqtt.correlation_data,
        Symbol(content_type) if content_type is not None and content_type.isascii() else None,
    ]
    while properties[-1] is None:
        properties.pop()
    users = dict(_users_of(mqtt))
    application = section(s.APPLICATION_PROPERTIES, users) if users else b""
    return header, properties, application


def without_names(users: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return user properties without the hops and names of an earlier gateway: ours replace them."""
    return [pair for pair in users if pair[0] not in _NAMES]


def _users_of(mqtt: PublishProperties) -> list[tuple[str, str]]:
    return without_names(mqtt.users)


def _mqtt_hops(mqtt: PublishProperties) -> list[str]:
    found = [value for name, value in mqtt.users if name == HOPS_PROPERTY]
    return found[-1].split(" ")[-HOPS_MAX:] if found and found[-1] else []


# --- in -----------------------------------------------------------------------------------------------------------


def contents(
    message: bytes, wanted: Container[int], allowance: Allowance | None = None
) -> Iterator[tuple[s.MessageSection, Any]]:
    """Yield the sections of an encoded message with these codes, and their values, in order; others are not decoded.

    `allowance`: for the values of all sections together. Raises `DecodeError` at the first byte that is not valid.
    """
    allowance = allowance or Allowance()
    for section in s.sections(message):
        if section.code not in wanted:
            continue
        content, end = decode(message, section.value, allowance)
        if end != section.end:
            raise DecodeError(f"section at byte {section.start} does not end where its value does")
        yield section, content


def parse(message: bytes) -> Arrival:
    """Decode a received message without its body. Raises `MessageError` when it is not one."""
    if not message:
        raise MessageError("an empty message")
    try:
        every = list(contents(message, _DESCRIPTIVE))
    except DecodeError as error:
        raise MessageError(str(error)) from None
    found = {section.code: section for section, _ in reversed(every)}
    values = {section.code: content for section, content in reversed(every)}
    header = found.get(s.HEADER)
    bare = max((found[code].end for code in (s.HEADER, s.DELIVERY_ANNOTATIONS) if code in found), default=0)
    annotations, properties = values.get(s.MESSAGE_ANNOTATIONS), values.get(s.PROPERTIES)
    annotations = annotations if isinstance(annotations, dict) else {}
    to = _field(properties, 2)
    destinations = (_text(annotations.get(ADDRESS)), _text(to), _text(_field(properties, 3)))
    durable = isinstance(values.get(s.HEADER), list) and values[s.HEADER][:1] == [True]
    received_at = annotations.get(RECEIVED_AT)
    run = Run(
        _text(annotations.get(ADDRESS)) or _text(to) or "",
        _publisher(annotations),
        AMQP | 1 | (DURABLE if durable else 0),
        message[header.start : header.end] if header is not None else b"",
        [message[bare:]],
        received_at if isinstance(received_at, int) and received_at >= 0 else 0,
    )
    sequence, hops = annotations.get(SEQUENCE), annotations.get(HOPS)
    return Arrival(
        _text(annotations.get(GATEWAY)),
        _text(annotations.get(EPOCH)),
        sequence if isinstance(sequence, int) and sequence >= 0 else None,
        tuple(str(hop) for hop in hops[:HOPS_MAX]) if isinstance(hops, list) else (),
        run,
        tuple(address for address in destinations if address),
        _name(
            annotations, _field(properties, 0), message[found[s.PROPERTIES].start :] if s.PROPERTIES in found else b""
        ),
    )


def _name(annotations: dict[Any, Any], identifier: Any, bare: bytes) -> bytes:
    epoch, sequence, address = (annotations.get(key) for key in (EPOCH, SEQUENCE, ADDRESS))
    if isinstance(epoch, str) and isinstance(sequence, int) and isinstance(address, str):
        return f"{epoch}/{sequence}/{address}".encode()
    if identifier is None:
        return b""
    return (
        f"{type(identifier).__name__} {identifier}/".encode("utf-8", "replace") + blake2b(bare, digest_size=16).digest()
    )


def _field(fields: Any, place: int) -> Any:
    return fields[place] if isinstance(fields, list) and len(fields) > place else None


def body_of(message: bytes) -> bytes:
    """Return the bytes of a message's data sections, joined. Raises `MessageError` when it has none."""
    try:
        parts = [content for _, content in contents(message, (s.DATA,))]
    except DecodeError as error:
        raise MessageError(str(error)) from None
    if not parts or not all(isinstance(part, bytes) for part in parts):
        raise MessageError("no data section")
    return b"".join(parts)


def body_start(message: bytes, length: int = 64) -> bytes:
    """Return the first bytes of a message's first data section; empty when it has none or cannot be decoded."""
    try:
        for section in s.sections(message):
            if section.code == s.DATA:
                start = section.value + (2 if message[section.value] == _BINARY8 else 5)
                return message[start : start + length]
    except DecodeError:
        pass
    return b""


def _publisher(annotations: dict[Any, Any]) -> str:
    """Return the publisher that a message names; empty when it names none."""
    device = _text(annotations.get(DEVICE)) or ""
    return publisher_name(device, _text(annotations.get(CLIENT)) or device) if device else ""


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None
