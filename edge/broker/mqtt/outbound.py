"""Sending hot path: turns runs into PUBLISH packets and processes the acknowledgements of the client.

A delivery is encoded in pieces (head, packet identifier, payload), which are joined once when the driver writes. The
head is encoded again only if the length of the payload changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from struct import Struct

from bridge.message import Run
from bridge.native import functions as native
from edge.broker.limits import Limits
from edge.broker.message.mqtt_errors import LocalError, ProtocolError
from edge.broker.message.mqtt_properties import subscription_identifiers
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import encode_string, encode_variable_byte_integer
from edge.broker.mqtt.acknowledgements import PUBREL, encode_acknowledgements, encode_packet_ids, encode_reasons
from edge.broker.mqtt.aliases import TopicAliases
from edge.broker.mqtt.events import ConnectEvent, MqttDelivery
from edge.broker.mqtt.limits import ALIAS_TOPIC_BYTES_MIN, INFLIGHT_BYTES_MAX, USUAL_TOPIC_CHARACTERS_MAX
from edge.broker.mqtt.state import InFlight, SessionState

_RETAIN_BIT, _DUP_BIT = 0x01, 0x08
_HEAD_1, _HEAD_2 = Struct(">BBH").pack, Struct(">BBBH").pack
"""Encode first byte, remaining length of one or two bytes, and length of the topic name."""
SHORT_LENGTH_MAX = 16_383
"""Largest remaining length of two bytes."""
ALIAS_ROOM_BYTES = 4
"""Bytes that a topic alias adds to a packet with a topic name: the property, and a byte of the properties' length."""


def write_publishes(
    out: list[bytes], first: int, topic: bytes, *, middles: Iterable[bytes], between: int, bodies: Iterable[bytes]
) -> None:
    """Append one PUBLISH for each body to `out`: first byte, remaining length, `topic`, middle, body.

    A middle consists of packet identifier and properties and has `between` bytes.
    """
    fixed = len(topic) + between
    size = -1
    head = b""
    for middle, body in zip(middles, bodies, strict=False):
        if len(body) != size:
            size = len(body)
            head = bytes((first,)) + encode_variable_byte_integer(fixed + size) + topic
        out += (head, middle, body)


def first_window(connect: ConnectEvent, state: SessionState, limits: Limits) -> int:
    """Return how many QoS 1 and 2 messages may be sent before the first one; `limits`: inflight_max is used."""
    return max(0, min(connect.receive_maximum, limits.inflight_max, state.free_packet_ids) - state.in_flight)


def _alias_property(alias: int) -> bytes:
    return b"\x23" + alias.to_bytes(2, "big")


class PublishSender:
    """Sends PUBLISH packets to one client: window, packet identifiers, acknowledgements and resending."""

    __slots__ = (
        "_aliases", "_behind", "_inflight_max", "_inflight_most", "_largest", "_last_kept", "_out", "_packet_bytes_max",
        "_state", "_unsent", "_version",
    )  # fmt: skip

    def __init__(self, connect: ConnectEvent, state: SessionState, out: list[bytes], limits: Limits) -> None:
        """`limits`: inflight_max is used."""
        self._aliases = TopicAliases(connect.topic_alias_maximum) if connect.topic_alias_maximum else None
        self._version = connect.version
        self._state = state
        self._out = out
        self._inflight_max = self._inflight_most = min(connect.receive_maximum, limits.inflight_max)
        self._largest = 0
        """Size of the largest message that narrows the window, since no message was in flight."""
        self._packet_bytes_max = connect.maximum_packet_size
        self._unsent: list[int] | None = None
        """Packet identifiers to send again when the client has room, last one first."""
        self._last_kept = 0
        """Packet identifier of the last kept message delivered over this connection."""
        self._behind: deque[tuple[int, Sequence[int]]] | None = None
        """Messages that must not overtake a kept one: the identifier of the kept message, and theirs."""

    @property
    def window(self) -> int:
        """Number of QoS 1 and 2 messages that may be sent now."""
        state = self._state
        if self._largest and not state.outgoing:
            self._largest, self._inflight_max = 0, self._inflight_most
        return max(0, min(self._inflight_max, state.free_packet_ids) - state.in_flight)

    def _narrow(self, largest: int) -> None:
        """Narrow the window for a message of this size, so that a full window has at most `INFLIGHT_BYTES_MAX`."""
        if largest > self._largest and largest * self._inflight_most > INFLIGHT_BYTES_MAX:
            self._largest = largest
            self._inflight_max = min(self._inflight_most, max(INFLIGHT_BYTES_MAX // largest, 1))

    def deliver(self, delivery: MqttDelivery, *, send: bool) -> Sequence[int]:
        """Send one new PUBLISH for each message. Return the indexes of messages that are too large for the client.

        Without `send` the messages only enter the session, to be sent when it resumes.
        """
        bodies: Sequence[bytes] = delivery.run.bodies
        if send and len(bodies) == 1 and self._deliver_one(delivery, bodies[0]):
            return ()
        first, topic, block = self._head(delivery)
        between = len(block) + (2 if delivery.qos else 0)
        indexes: Sequence[int] = range(len(bodies))
        skipped: Sequence[int] = ()
        room = self._room(len(topic) + between)
        largest = max(map(len, bodies), default=0)
        if send and largest > room:
            skipped = [i for i in indexes if len(bodies[i]) > room]
            indexes = [i for i in indexes if len(bodies[i]) <= room]
            bodies = [bodies[i] for i in indexes]
        if not delivery.qos:
            if send and self._aliases is not None and bodies:
                bodies, topic, block = self._aliased(first, topic, (b"",), block, delivery, bodies)
                between = len(block)
            if send:
                write_publishes(self._out, first, topic, middles=repeat(block), between=between, bodies=bodies)
            return skipped
        send = send and not delivery.kept
        if send and len(indexes) > self.window:
            raise LocalError(f"{len(indexes)} messages exceed the window of {self.window}")
        ids = self._state.reserve(len(indexes))
        self._narrow(largest)
        self._state.outgoing.update(zip(ids, zip(repeat(delivery), indexes, strict=False), strict=False))
        if delivery.kept:
            self._state.awaiting_commit.update(dict.fromkeys(ids))
            self._last_kept = ids[-1] if ids else self._last_kept
        elif send and self._last_kept and self._waits(self._last_kept):
            if self._behind is None:
                self._behind = deque()
            self._behind.append((self._last_kept, ids))
        elif send:
            middles = encode_packet_ids(ids)
            if self._aliases is not None and bodies:
                count = len(bodies)
                bodies, topic, block = self._aliased(first, topic, middles, block, delivery, bodies)
                middles, between = middles[count - len(bodies) :], len(block) + 2
            if block:
                middles = [middle + block for middle in middles]
            write_publishes(self._out, first, topic, middles=middles, between=between, bodies=bodies)
        return skipped

    def deliver_all(self, runs: Sequence[Run], alike: MqttDelivery, ids: int) -> bool:
        """Send one new PUBLISH for each message of these runs with one call of C; `ids` of them are above QoS 0.

        `alike` is their delivery with the highest QoS; only the run differs. Return False and send nothing if one
        message has properties, is retained, of QoS 2, in AMQP's encoding, or too long.
        """
        if self._aliases is not None or self._last_kept:
            return False
        block = b""
        if self._version == 5:
            raw = subscription_identifiers(alike.identifiers)
            block = encode_variable_byte_integer(len(raw)) + raw
        packets = native.mqtt_encode_publishes(
            runs,
            alike.qos,
            block,
            list(self._state.reserve(ids)) if ids else [],
            self._state.outgoing,
            MqttDelivery,
            alike.token,
            alike.identifiers,
            min(SHORT_LENGTH_MAX, self._packet_bytes_max - 3),
            USUAL_TOPIC_CHARACTERS_MAX,
        )
        if packets is None:
            return False
        self._out.append(packets)
        return True

    def _deliver_one(self, delivery: MqttDelivery, body: bytes) -> bool:
        """Send a run of one message; return False if it needs the full path of `deliver`."""
        address = delivery.run.address
        if self._aliases is not None or self._last_kept or delivery.kept or "\0" in address:
            return False
        topic = address.encode()
        block = b"" if self._version < 5 else self._block(delivery)
        size = 2 + len(topic) + len(block) + len(body) + (2 if delivery.qos else 0)
        if size > SHORT_LENGTH_MAX or size + 3 > self._packet_bytes_max:
            return False
        first = 0x30 | delivery.qos << 1 | (_RETAIN_BIT if delivery.retain else 0)
        if size < 128:
            head = _HEAD_1(first, size, len(topic)) + topic
        else:
            head = _HEAD_2(first, size & 127 | 128, size >> 7, len(topic)) + topic
        if delivery.qos:
            if not self.window:
                raise LocalError("a message exceeds the window of 0")
            packet_id = self._state.reserve_one()
            self._state.outgoing[packet_id] = (delivery, 0)
            self._out += (head, packet_id.to_bytes(2, "big") + block, body)
        else:
            self._out += (head, block, body)
        return True

    def resume(self) -> list[InFlight]:
        """Send again what the session has in flight, in order, with PUBREL first [MQTT-4.4.0-1].

        Return the messages that are too large for the client now; they are not sent [MQTT-3.1.2-24].
        """
        state = self._state
        if state.released:
            released = [packet_id for packet_id in state.released if packet_id not in state.awaiting_commit]
            self._out.append(encode_acknowledgements(PUBREL, released))
        dropped: list[InFlight] = []
        for packet_id, (delivery, index) in list(state.outgoing.items()):
            if not self.fits(delivery, index):
                dropped.append(state.outgoing.pop(packet_id))
                state.awaiting_commit.pop(packet_id, None)
        unsent = [packet_id for packet_id in reversed(state.outgoing) if packet_id not in state.awaiting_commit]
        if unsent:
            self._unsent = unsent
            self._send_again(unsent)
        return dropped

    def send_committed(self, packet_ids: Sequence[int]) -> None:
        """Send PUBLISH or PUBREL of these committed packet identifiers, and the messages that wait behind them."""
        state, behind = self._state, self._behind
        released: list[int] = []
        for packet_id in packet_ids:
            if packet_id not in state.awaiting_commit:
                continue
            del state.awaiting_commit[packet_id]
            if packet_id in state.released:
                released.append(packet_id)
            else:
                self._send_one(packet_id, 0)
            while behind and behind[0][0] == packet_id:
                for waiting in behind.popleft()[1]:
                    self._send_one(waiting, 0)
        if released:
            self._out.append(encode_acknowledgements(PUBREL, released))

    def fits(self, delivery: MqttDelivery, index: int) -> bool:
        """Return True if the message is not too large for the client, with packet identifier and full topic name."""
        _, topic, block = self._head(delivery)
        return len(delivery.run.bodies[index]) <= self._room(len(topic) + len(block) + 2)

    def send_again(self, packet_id: int) -> None:
        """Send a message of the session again, with DUP."""
        self._send_one(packet_id, _DUP_BIT)

    # --- answers of the client ----------------------------------------------------------------------------------

    def puback(self, packet_ids: Sequence[int], done: list[InFlight]) -> None:
        """Process PUBACK for these packet identifiers; append their messages to `done`."""
        outgoing = self._state.outgoing
        for packet_id in packet_ids:
            entry = outgoing.get(packet_id)
            if entry is not None and entry[0].qos == 1:
                del outgoing[packet_id]
                done.append(entry)
            elif entry is not None or packet_id in self._state.released:
                raise ProtocolError("PUBACK for a message of QoS 2")
            # else it was acknowledged before
        if self._unsent:
            self._send_again(self._unsent)

    def pubrec(self, packet_ids: Sequence[int], received: list[int]) -> None:
        """Process PUBREC without an error: answer PUBREL. Append messages that are kept on disk to `received`; their
        PUBREL follows after the commit."""
        state = self._state
        known: list[int] = []
        unknown: list[int] = []
        violation: ProtocolError | None = None
        for packet_id in packet_ids:
            entry = state.outgoing.get(packet_id)
            if entry is not None:
                if entry[0].qos != 2:
                    violation = ProtocolError("PUBREC for a message of QoS 1")
                    break
                state.released[packet_id] = state.outgoing.pop(packet_id)
                if entry[0].kept:
                    state.awaiting_commit[packet_id] = None
                    received.append(packet_id)
            if packet_id in state.awaiting_commit:
                continue  # PUBREL follows after the commit
            if packet_id in state.released or self._version < 5:
                known.append(packet_id)
            else:
                unknown.append(packet_id)
        self._out.append(encode_acknowledgements(PUBREL, known))
        if unknown:
            self._out.append(encode_reasons(PUBREL, unknown, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        if violation is not None:
            raise violation

    def pubrec_refused(self, packet_id: int, done: list[InFlight]) -> None:
        """Process PUBREC with an error, which ends the exchange (MQTT 5 section 4.3.3)."""
        entry = self._state.outgoing.pop(packet_id, None)
        if entry is not None:
            self._state.awaiting_commit.pop(packet_id, None)
            done.append(entry)
        if self._unsent:
            self._send_again(self._unsent)

    def pubcomp(self, packet_ids: Sequence[int], done: list[InFlight]) -> None:
        """Process PUBCOMP for these packet identifiers; append their messages to `done`."""
        released = self._state.released
        for packet_id in packet_ids:
            entry = released.pop(packet_id, None)
            if entry is not None:
                if entry[0].kept:
                    self._state.awaiting_commit.pop(packet_id, None)
                done.append(entry)
            elif packet_id in self._state.outgoing:
                raise ProtocolError("PUBCOMP without PUBREC")
        if self._unsent:
            self._send_again(self._unsent)

    # --- inside -------------------------------------------------------------------------------------------------

    def _head(self, delivery: MqttDelivery) -> tuple[int, bytes, bytes]:
        """Return first byte, topic name with its length, and properties with their length."""
        run = delivery.run
        first = 0x30 | delivery.qos << 1 | (_RETAIN_BIT if delivery.retain else 0)
        topic = encode_string(run.address)
        return first, topic, b"" if self._version < 5 else self._block(delivery)

    def _block(self, delivery: MqttDelivery) -> bytes:
        """Return the properties with their length (MQTT 5)."""
        properties = delivery.run.properties
        if not delivery.identifiers and not properties:
            return b"\0"
        raw = subscription_identifiers(delivery.identifiers) + properties
        return encode_variable_byte_integer(len(raw)) + raw

    def _aliased(
        self,
        first: int,
        topic: bytes,
        ids: Sequence[bytes],
        block: bytes,
        delivery: MqttDelivery,
        bodies: Sequence[bytes],
    ) -> tuple[Sequence[bytes], bytes, bytes]:
        """Return bodies, topic name and properties to send, with the alias of the topic if it has one.

        The first message with a new alias is sent here, with both topic name and alias, unless it would be too large
        for the client.
        """
        aliases = self._aliases
        if aliases is None or len(topic) < ALIAS_TOPIC_BYTES_MIN + 2:
            return bodies, topic, block
        if len(bodies[0]) > self._room(len(topic) + len(block) + len(ids[0])) - ALIAS_ROOM_BYTES:
            return bodies, topic, block
        alias, new = aliases.find(delivery.run.address, len(bodies))
        if not alias:
            return bodies, topic, block
        raw = _alias_property(alias) + subscription_identifiers(delivery.identifiers) + delivery.run.properties
        block = encode_variable_byte_integer(len(raw)) + raw
        if new:
            middle = ids[0] + block
            write_publishes(self._out, first, topic, middles=(middle,), between=len(middle), bodies=bodies[:1])
            bodies = bodies[1:]
        return bodies, b"\0\0", block

    def _room(self, fixed: int) -> int:
        """Return the largest payload of a packet with a variable header of `fixed` bytes."""
        limit = self._packet_bytes_max
        for length_bytes, length_max in ((1, 127), (2, 16_383), (3, 2_097_151), (4, 268_435_455)):
            if limit - 1 - length_bytes <= length_max:
                return limit - 1 - length_bytes - fixed
        return 268_435_455 - fixed

    def _waits(self, packet_id: int) -> bool:
        """Return True while its PUBLISH waits for the commit."""
        return packet_id in self._state.awaiting_commit and packet_id in self._state.outgoing

    def _send_again(self, unsent: list[int]) -> None:
        state = self._state
        sent = state.in_flight - len(unsent)
        while unsent and sent < self._inflight_max:
            packet_id = unsent.pop()
            if packet_id in state.outgoing:
                self._send_one(packet_id, _DUP_BIT)
                sent += 1

    def _send_one(self, packet_id: int, dup: int) -> None:
        """Send the PUBLISH of one message in flight, with its full topic name."""
        entry = self._state.outgoing.get(packet_id)
        if entry is None:
            return
        delivery, index = entry
        first, topic, block = self._head(delivery)
        middle = packet_id.to_bytes(2, "big") + block
        body = delivery.run.bodies[index]
        write_publishes(self._out, first | dup, topic, middles=(middle,), between=len(middle), bodies=(body,))
