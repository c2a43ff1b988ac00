"""Receiving hot path: turns complete PUBLISH packets into runs.

At 100 000 messages a second a message has 10 µs for its whole way through the gateway, and one Python call costs
0.05 to 0.1 µs. So there are two paths:

- `PublishReceiver.read_known` reads packets with a topic name and properties that were checked before, in one loop. A
  packet that begins like the one before it (same first byte, topic name and property bytes) joins its run without
  a call.
- `PublishReceiver.publish` reads everything else with all checks.

A packet with a remaining length of three or four bytes ends a run: its body is above 16 KiB, so copying it outweighs
the cost of a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from bridge.message import DURABLE, QOS_MASK, RETAIN, Run
from edge.broker.limits import TOPIC_LEVELS_MAX, Limits
from edge.broker.message.mqtt_errors import MalformedPacket, ProtocolError
from edge.broker.message.mqtt_properties import split_publish
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import PacketReader, decode_string, is_text
from edge.broker.mqtt.acknowledgements import PUBACK, PUBCOMP, PUBREC, encode_acknowledgements, encode_reasons
from edge.broker.mqtt.connect import reason_string
from edge.broker.mqtt.events import ConnectEvent, PublishEvent, PubRelEvent, RejectedPublish
from edge.broker.mqtt.limits import (
    EVENTS_AT_ONCE,
    HEAD_BYTES,
    HEAD_BYTES_MAX,
    HEADS_CACHED_MAX,
    PACKET_ID_BYTES,
    TOPIC_ALIAS_MAXIMUM,
    UNANSWERED_MAX,
)
from edge.broker.mqtt.names import check_topic_name
from edge.broker.mqtt.state import SessionState


def read_run(
    data: bytes,
    pos: int,
    body: int,
    stop: int,
    *,
    prefix: bytes,
    block: bytes,
    length_max: int,
    ids: list[int],
    bodies: list[bytes],
) -> int:
    """Read the PUBLISH at `pos` and the following ones that differ only in packet identifier and payload.

    The packet at `pos` is complete: its variable header starts at `body` with `prefix` (topic name with its length)
    and holds `block` (properties with their length, empty before MQTT 5), and it ends at `stop`. Packet identifiers
    (none at QoS 0) and payloads are appended to `ids` and `bodies`. Return the start of the first packet that differs
    or is incomplete.
    """
    end = len(data)
    first = data[pos]
    with_id = first & 0x06
    at_id = len(prefix)
    at_block = at_id + 2 if with_id else at_id
    skip = at_block + len(block)
    startswith, add_body, add_id = data.startswith, bodies.append, ids.append
    while True:
        if with_id:
            at = body + at_id
            add_id(data[at] << 8 | data[at + 1])
        add_body(data[body + skip : stop])
        pos = stop
        if pos + 3 > end or data[pos] != first:
            return pos
        length = data[pos + 1]
        body = pos + 2
        if length > 127:
            high = data[body]
            if not 0 < high < 128:
                return pos
            length += (high - 1) << 7
            body += 1
        stop = body + length
        if stop > end or length < skip or length > length_max or not startswith(prefix, body):
            return pos
        if block and not startswith(block, body + at_block):
            return pos


def _publish_flags(low_bits: int, version: int) -> int:
    """Return the run flags for the low four bits of a PUBLISH's first byte; -1 for an invalid combination."""
    qos = low_bits >> 1 & QOS_MASK
    if qos == 3 or (low_bits & 8 and not qos and version > 3):  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
        return -1
    return qos | (RETAIN if low_bits & 1 else 0) | (DURABLE if qos else 0)


_FLAGS = {version: tuple(_publish_flags(bits, version) for bits in range(16)) for version in (3, 4, 5)}
_KNOWN_FLAGS = {
    version: {0x30 | bits: flags[bits] for bits in range(16) if flags[bits] >= 0 and bits >> 1 & QOS_MASK < 2}
    for version, flags in _FLAGS.items()
}
"""Run flags by first byte of packets that `PublishReceiver.read_known` reads; QoS 2 needs more checks."""

_NO_PROPERTIES, _UNKNOWN_BLOCK = (0, b"", False), (1, b"", False)

KNOWN_LENGTH_MAX = 16_383
"""Largest remaining length of two bytes."""

PUBLISH_BYTES_MIN = 5
"""Smallest PUBLISH: a topic name of one character and no payload, at QoS 0 before MQTT 5."""


class InboundLane(Protocol):
    """Fast path for PUBLISH packets to known topics (`edge.broker.mqtt.arrivals`)."""

    @property
    def received_at_s(self) -> float:
        """Time of its last message."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory of the learned topics."""
        ...

    def close(self) -> None:
        """Close the lane after the end of the connection."""
        ...


class PublishReceiver:
    """Receives the PUBLISH packets of one connection: checks them, detects duplicates, and acknowledges them."""

    __slots__ = (
        "_alias_bytes",
        "_aliases",
        "_block_bytes",
        "_blocks",
        "_completing",
        "_connect",
        "_expected",
        "_flags",
        "_known_flags",
        "_length_max",
        "_state",
        "_topic_bytes",
        "_topics",
        "_version",
        "device",
        "lane",
        "out",
        "outstanding",
        "receive_maximum",
    )  # fmt: skip

    def __init__(
        self, connect: ConnectEvent, device: str, state: SessionState, out: list[bytes], limits: Limits
    ) -> None:
        """`out` collects answers to send. `limits`: packet_bytes_max and receive_maximum are used."""
        self.lane: InboundLane | None = None
        """Reads messages before they get to the state machine, if there is a lane."""
        self.outstanding = 0
        """Unanswered QoS 1 and 2 messages, limited by our Receive Maximum (MQTT 5 section 4.9)."""
        self._connect = connect
        self._version = version = connect.version
        self.device = device
        self._state = state
        self.out = out
        self._length_max = limits.packet_bytes_max - 3  # of the remaining length
        self.receive_maximum = limits.receive_maximum if version == 5 else UNANSWERED_MAX
        self._flags = _FLAGS[version]
        self._known_flags = _KNOWN_FLAGS[version]
        self._completing: set[int] | None = None
        self._expected: set[int] | None = None
        self._topics: dict[bytes, str] = {}
        self._blocks: dict[bytes, tuple[int, bytes, bool]] = {}
        self._aliases: dict[int, str] = {}
        self._topic_bytes = self._block_bytes = self._alias_bytes = 0
        """Memory of the three caches."""

    def attach_lane(self, lane: InboundLane) -> None:
        """Let this lane read messages to known topics from now on."""
        self.lane = lane

    @property
    def received_at_s(self) -> float:
        """Time of the lane's last message; 0 without a lane."""
        return 0.0 if self.lane is None else self.lane.received_at_s

    def close(self) -> None:
        """Close the lane after the end of the connection."""
        if self.lane is not None:
            self.lane.close()
            self.lane = None

    def forget_topics(self) -> None:
        """Clear the cache of topic names."""
        self._topics.clear()
        self._topic_bytes = 0

    @property
    def known_length_max(self) -> int:
        """Longest remaining length of a packet that `read_known` reads."""
        return min(self._length_max, KNOWN_LENGTH_MAX)

    @property
    def held_bytes(self) -> int:
        """Memory of cached topic names and property blocks, and of QoS 2 packet identifiers."""
        held = self._topic_bytes + self._block_bytes + self._alias_bytes
        if self.lane is not None:
            held += self.lane.held_bytes
        return held if self._expected is None else held + PACKET_ID_BYTES * len(self._state.incoming)

    @property
    def expected(self) -> set[int]:
        """QoS 2 packet identifiers that came over this connection and were not answered by PUBREC."""
        if self._expected is None:
            self._expected = set()
        return self._expected

    @property
    def completing(self) -> set[int]:
        """QoS 2 packet identifiers that were released over this connection and not answered by PUBCOMP."""
        if self._completing is None:
            self._completing = set()
        return self._completing

    def read_known(self, data: bytes, pos: int, events: list[Any]) -> int:
        """Read complete PUBLISH packets of QoS 0 and 1 to known topics, starting at `pos`.

        Append one `PublishEvent` for each run of packets with the same beginning, until there are `EVENTS_AT_ONCE`.
        Return the start of the first packet that is of another type, incomplete, or has to be read by `publish`.
        """
        last, room, startswith = len(data), self.receive_maximum - self.outstanding, data.startswith
        length_max = min(self._length_max, KNOWN_LENGTH_MAX)
        run_first, prefix, block, skip = -1, b"", b"", 0  # -1: not a first byte
        ids: list[int] = []
        bodies: list[bytes] = []
        while pos + PUBLISH_BYTES_MIN <= last:
            first, length, body = data[pos], data[pos + 1], pos + 2
            if length > 127:
                length += (data[body] - 1) << 7
                body += 1
            stop = body + length
            if stop > last or length > length_max or data[body - 1] == 0:
                break
            alike = first == run_first and length >= skip and startswith(prefix, body)
            if not alike or (block and not startswith(block, body + skip - len(block))):
                if len(events) >= EVENTS_AT_ONCE:
                    break
                head = self._known_head(first, data, body, stop)
                if head is None:
                    break
                alike, (prefix, block, run) = False, head
                skip = len(prefix) + len(block) + (2 if first & 0x06 else 0)
            if first & 0x06:
                at_id = body + len(prefix)
                packet_id = data[at_id] << 8 | data[at_id + 1]
                if not packet_id or not room:
                    break
                room -= 1
            if not alike:
                run_first, ids, bodies = first, [], run.bodies
                events.append(PublishEvent(run, ids))
            if first & 0x06:
                ids.append(packet_id)
            bodies.append(data[body + skip : stop])
            pos = stop
        self.outstanding = self.receive_maximum - room
        return pos

    def _known_head(self, first: int, data: bytes, body: int, stop: int) -> tuple[bytes, bytes, Run] | None:
        """Return encoded topic name, encoded properties and an empty run for a packet that starts with `first`.

        Return None if topic or properties are not cached, or the properties have an alias or the UTF-8 indicator.
        """
        flags = self._known_flags.get(first)
        prefix = data[body : body + 2 + (data[body] << 8 | data[body + 1])]
        topic = self._topics.get(prefix)
        if flags is None or topic is None:
            return None
        at_block = body + len(prefix) + (2 if flags & QOS_MASK else 0)
        if self._version < 5:
            return (prefix, b"", Run(topic, self.device, flags, b"", [])) if at_block <= stop else None
        length = data[at_block] if at_block < stop else 128
        block = data[at_block : at_block + 1 + length]
        alias, properties, text = self._blocks.get(block, _UNKNOWN_BLOCK) if length else _NO_PROPERTIES
        if length > 127 or at_block + len(block) > stop or alias or text:
            return None
        return prefix, block, Run(topic, self.device, flags, properties, [])

    def publish(self, data: bytes, pos: int, body: int, stop: int, events: list[Any]) -> int:
        """Read a run of PUBLISH packets. The first is ``data[pos:stop]``, with its variable header at `body`.

        Append the events and return the end of the run. Raises MalformedPacket or ProtocolError after appending the
        messages before the invalid packet.
        """
        flags = self._flags[data[pos] & 15]
        if flags < 0:
            raise MalformedPacket("QoS 3, or DUP at QoS 0")
        qos = flags & QOS_MASK
        at_id = body + 2 + int.from_bytes(data[body : body + 2], "big")
        at_block = at_id + 2 if qos else at_id
        if at_block > stop:
            raise MalformedPacket("PUBLISH ends in the middle of its variable header")
        prefix = data[body:at_id]
        topic = self._topics.get(prefix) or self._topic(prefix)
        block, properties, text = b"", b"", False
        if self._version == 5:
            block, properties, topic, text = self._properties(data, at_block, stop, topic)
        ids: list[int] = []
        bodies: list[bytes] = []
        pos = read_run(
            data, pos, body, stop, prefix=prefix, block=block, length_max=self._length_max, ids=ids, bodies=bodies
        )
        violation = self._admit(qos, ids, bodies) if qos else None
        if bodies:
            run = Run(topic, self.device, flags, properties, bodies)
            if text and not all(map(bytes.isascii, bodies)):
                violation = _check_text(run, ids, events) or violation
            elif prefix in self._topics and not text and self._has_no_alias(block):
                events.append(PublishEvent(run, ids, prefix, block))
            else:
                events.append(PublishEvent(run, ids))
        if violation is not None:
            raise violation
        return pos

    def _has_no_alias(self, block: bytes) -> bool:
        """Return True if these properties are cached and contain no topic alias."""
        return len(block) <= 1 or not self._blocks.get(block, _UNKNOWN_BLOCK)[0]

    def puback(self, packet_ids: Sequence[int], reason: ReasonCode, text: str) -> None:
        """Send PUBACK with a reason; before MQTT 5 a refusal is not sent."""
        if not reason:
            self.puback_success(packet_ids)
            return
        self._answered(len(packet_ids))
        self._acknowledge(PUBACK, packet_ids, reason, text)

    def puback_success(self, packet_ids: Sequence[int]) -> None:
        """Send PUBACK without a reason."""
        outstanding = self.outstanding - len(packet_ids)
        self.outstanding = outstanding if outstanding > 0 else 0
        self.out.append(encode_acknowledgements(PUBACK, packet_ids))

    def pubrec(self, packet_ids: Sequence[int], reason: ReasonCode, text: str) -> None:
        """Send PUBREC for those messages that came over this connection."""
        expected = self.expected
        if not expected.issuperset(packet_ids):
            packet_ids = [packet_id for packet_id in packet_ids if packet_id in expected]
        if packet_ids:
            expected.difference_update(packet_ids)
            if reason.refuses(self._version):
                self._answered(len(packet_ids))
            self._acknowledge(PUBREC, packet_ids, reason, text)

    def pubrel(self, packet_ids: list[int], events: list[Any]) -> None:
        """Process PUBREL: append a `PubRelEvent` for known packet identifiers, and answer unknown ones.

        Raises ProtocolError for a message that was not answered by PUBREC, after processing those before it.
        """
        state = self._state
        known: list[int] = []
        unknown: list[int] = []
        violation: ProtocolError | None = None
        for packet_id in packet_ids:
            if packet_id in state.pending:
                violation = ProtocolError("PUBREL before PUBREC")
                break
            if packet_id in state.incoming:
                state.incoming.discard(packet_id)
                known.append(packet_id)
            elif packet_id in state.releasing:
                self.completing.add(packet_id)
            else:
                unknown.append(packet_id)
        if unknown and self._version < 5:
            self.out.append(encode_acknowledgements(PUBCOMP, unknown))
        elif unknown:
            self.out.append(encode_reasons(PUBCOMP, unknown, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        if known:
            state.releasing.update(known)
            self.completing.update(known)
            events.append(PubRelEvent(known))
        if violation is not None:
            raise violation

    def complete(self, packet_ids: Iterable[int]) -> None:
        """Send PUBCOMP for those messages that were released over this connection."""
        ids = [packet_id for packet_id in packet_ids if packet_id in self.completing]
        if ids:
            self.completing.difference_update(ids)
            self.out.append(encode_acknowledgements(PUBCOMP, ids))
            self._answered(len(ids))

    def _answered(self, count: int) -> None:
        """Allow the client this many further messages."""
        self.outstanding = max(0, self.outstanding - count)

    def _acknowledge(self, first: int, packet_ids: Sequence[int], reason: ReasonCode, text: str) -> None:
        if reason and self._version == 5:
            self.out.append(encode_reasons(first, packet_ids, reason, reason_string(self._connect, text, 3)))
        elif not reason:
            self.out.append(encode_acknowledgements(first, packet_ids))

    # --- once for each run --------------------------------------------------------------------------------------

    def _topic(self, prefix: bytes) -> str:
        topic = decode_string(prefix[2:])
        if topic or self._version < 5:  # an MQTT 5 client may send an alias instead: see `_properties`
            check_topic_name(topic, TOPIC_LEVELS_MAX)
            if len(prefix) <= HEAD_BYTES_MAX:
                if len(self._topics) >= HEADS_CACHED_MAX:
                    self.forget_topics()
                self._topics[prefix] = topic
                self._topic_bytes += 2 * len(prefix) + HEAD_BYTES
        return topic

    def _properties(self, data: bytes, start: int, stop: int, topic: str) -> tuple[bytes, bytes, str, bool]:
        """Return the encoded properties, the part to forward, the topic (also of an alias), and True if the payload is
        marked as UTF-8."""
        if data[start : start + 1] == b"\0":
            if not topic:
                raise ProtocolError("neither topic name nor topic alias", ReasonCode.PROTOCOL_ERROR)
            return b"\0", b"", topic, False
        reader = PacketReader(data, start, stop)
        length = reader.variable_byte_integer()
        block = data[start : reader.pos] + reader.take(length)
        alias, properties, text = self._blocks.get(block) or self._split(block)
        if alias:
            topic = self._alias(alias, topic)
        elif not topic:
            raise ProtocolError("neither topic name nor topic alias", ReasonCode.PROTOCOL_ERROR)
        return block, properties, topic, text

    def _split(self, block: bytes) -> tuple[int, bytes, bool]:
        found = split_publish(PacketReader(block))
        if len(block) <= HEAD_BYTES_MAX:
            if len(self._blocks) >= HEADS_CACHED_MAX:
                self._blocks.clear()
                self._block_bytes = 0
            self._blocks[block] = found
            self._block_bytes += 2 * len(block) + HEAD_BYTES
        return found

    def _alias(self, alias: int, topic: str) -> str:
        if alias > TOPIC_ALIAS_MAXIMUM:  # [MQTT-3.3.2-9]
            raise ProtocolError(f"topic alias {alias} above the maximum", ReasonCode.TOPIC_ALIAS_INVALID)
        if topic:
            self._alias_bytes += len(topic) - len(self._aliases.get(alias, ""))
            self._aliases[alias] = topic
            return topic
        try:
            return self._aliases[alias]
        except KeyError:
            raise ProtocolError(f"topic alias {alias} was never set") from None

    def _admit(self, qos: int, ids: list[int], bodies: list[bytes]) -> ProtocolError | None:
        """Remove duplicates (QoS 2) and messages beyond limits from a run. Return an error to end the connection."""
        violation: ProtocolError | None = None
        if 0 in ids:
            violation = ProtocolError("packet identifier 0")
            _cut(ids, bodies, ids.index(0))
        if qos == 2 and not (self._state.incoming.isdisjoint(ids) and len(set(ids)) == len(ids)):
            self._drop_received(ids, bodies)
        if self.outstanding + len(ids) > self.receive_maximum:
            what = "Receive Maximum" if self._version == 5 else f"{UNANSWERED_MAX} unanswered messages"
            violation = ProtocolError(f"more than {what}", ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
            _cut(ids, bodies, max(0, self.receive_maximum - self.outstanding))
        self.outstanding += len(ids)
        if qos == 2:
            self._state.incoming.update(ids)
            self._state.pending.update(ids)
            self.expected.update(ids)
        return violation

    def _drop_received(self, ids: list[int], bodies: list[bytes]) -> None:
        """Remove duplicates: an unreleased QoS 2 packet identifier names the same message [MQTT-4.3.3-10]."""
        state = self._state
        fresh: dict[int, bytes] = {}
        for packet_id, body in zip(ids, bodies, strict=True):
            if packet_id not in state.incoming:
                fresh.setdefault(packet_id, body)
            elif packet_id in state.pending:
                self.expected.add(packet_id)  # PUBREC follows when the message is stored
            else:
                self.out.append(b"\x50\x02" + packet_id.to_bytes(2, "big"))
        ids[:] = fresh.keys()
        bodies[:] = fresh.values()


def _check_text(run: Run, ids: list[int], events: list[Any]) -> ProtocolError | None:
    """Append the events of a run with payloads that are marked as UTF-8 (section 3.3.2.3.2), in order.

    Payloads that are not UTF-8 become `RejectedPublish` at QoS 1 and 2. At QoS 0 they end the connection: return the
    error.
    """
    start = 0
    verdicts = [is_text(body) for body in run.bodies]
    for i in range(1, len(verdicts) + 1):
        if i < len(verdicts) and verdicts[i] is verdicts[start]:
            continue
        part = run.part(start, i)
        if verdicts[start]:
            events.append(PublishEvent(part, ids[start:i]))
        elif ids:
            events.append(RejectedPublish(part, ids[start:i], ReasonCode.PAYLOAD_FORMAT_INVALID))
        else:
            return ProtocolError("the payload is marked as UTF-8 and is not", ReasonCode.PAYLOAD_FORMAT_INVALID)
        start = i
    return None


def _cut(ids: list[int], bodies: list[bytes], count: int) -> None:
    del ids[count:], bodies[count:]
