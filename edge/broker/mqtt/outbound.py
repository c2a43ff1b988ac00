"""The hot path out: runs to PUBLISH packets, packet identifiers to acknowledgements, and what the client acknowledges.

A delivery is encoded piece by piece (head, packet identifier, payload) and joined once when the driver asks; the head
is made anew only when the length of the payload changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from edge.broker.mqtt.acknowledgements import PUBREL, encode_acknowledgements, encode_packet_ids, encode_reasons
from edge.broker.mqtt.errors import LocalError, ProtocolError
from edge.broker.mqtt.events import Delivery
from edge.broker.mqtt.properties import subscription_identifiers
from edge.broker.mqtt.reason_codes import ReasonCode
from edge.broker.mqtt.state import InFlight, SessionState
from edge.broker.mqtt.wire import encode_string, encode_variable_byte_integer

_RETAIN_BIT, _DUP_BIT = 0x01, 0x08


def write_publishes(
    out: list[bytes], first: int, topic: bytes, *, middles: Iterable[bytes], between: int, bodies: Iterable[bytes]
) -> None:
    """Append one PUBLISH a body to `out`: first byte, remaining length, `topic`, its middle, the body.

    A middle is what stands between topic name and payload: packet identifier and properties, `between` bytes in all.
    """
    fixed = len(topic) + between
    size = -1
    head = b""
    for middle, body in zip(middles, bodies, strict=False):
        if len(body) != size:
            size = len(body)
            head = bytes((first,)) + encode_variable_byte_integer(fixed + size) + topic
        out += (head, middle, body)


class Outbound:
    """PUBLISH packets to one client: window, packet identifiers, acknowledgements, sending again."""

    def __init__(
        self, version: int, state: SessionState, out: list[bytes], inflight_max: int, packet_bytes_max: int
    ) -> None:
        """`inflight_max`: the smaller of the client's Receive Maximum and our own bound; `packet_bytes_max`: the
        client's Maximum Packet Size."""
        self._version = version
        self._state = state
        self._out = out
        self._inflight_max = inflight_max
        self._packet_bytes_max = packet_bytes_max
        self._unsent: list[int] = []
        """Packet identifiers of the session to send again when the client has room, last one first."""

    @property
    def window(self) -> int:
        """Messages of QoS 1 and 2 that may be sent now."""
        return max(0, self._inflight_max - self._state.in_flight)

    def deliver(self, delivery: Delivery, *, send: bool) -> Sequence[int]:
        """Send one PUBLISH a message, as new ones; returns the indexes of those larger than the client takes.

        With `send` false the messages only enter the session, to be sent when it is resumed.
        """
        bodies: Sequence[bytes] = delivery.run.bodies
        first, topic, block = self._head(delivery)
        between = len(block) + (2 if delivery.qos else 0)
        indexes: Sequence[int] = range(len(bodies))
        skipped: Sequence[int] = ()
        room = self._room(len(topic) + between)
        if send and max(map(len, bodies), default=0) > room:
            skipped = [i for i in indexes if len(bodies[i]) > room]
            indexes = [i for i in indexes if len(bodies[i]) <= room]
            bodies = [bodies[i] for i in indexes]
        if not delivery.qos:
            if send:
                write_publishes(self._out, first, topic, middles=repeat(block), between=between, bodies=bodies)
            return skipped
        if send and len(indexes) > self.window:
            raise LocalError(f"{len(indexes)} messages delivered into a window of {self.window}")
        ids = self._state.reserve(len(indexes))
        self._state.outgoing.update(zip(ids, zip(repeat(delivery), indexes, strict=False), strict=False))
        if send:
            middles = encode_packet_ids(ids)
            if block:
                middles = [middle + block for middle in middles]
            write_publishes(self._out, first, topic, middles=middles, between=between, bodies=bodies)
        return skipped

    def resume(self) -> list[InFlight]:
        """Send again what the session has in flight, PUBREL first, both in their order [MQTT-4.4.0-1].

        Returns the messages that are larger than the client takes now: they count as delivered [MQTT-3.1.2-25].
        """
        state = self._state
        if state.released:
            self._out.append(encode_acknowledgements(PUBREL, list(state.released)))
        dropped: list[InFlight] = []
        for packet_id, (delivery, index) in list(state.outgoing.items()):
            _, topic, block = self._head(delivery)
            if len(delivery.run.bodies[index]) > self._room(len(topic) + len(block) + 2):
                dropped.append(state.outgoing.pop(packet_id))
        self._unsent = list(reversed(state.outgoing))
        self._send_again()
        return dropped

    # --- what the client answers ------------------------------------------------------------------------------

    def puback(self, packet_ids: Sequence[int], done: list[InFlight]) -> None:
        """PUBACK for these; what they stand for is appended to `done`."""
        outgoing = self._state.outgoing
        for packet_id in packet_ids:
            entry = outgoing.get(packet_id)
            if entry is not None:  # otherwise acknowledged before: nothing to do
                if entry[0].qos != 1:
                    raise ProtocolError("PUBACK for a message of QoS 2")
                del outgoing[packet_id]
                done.append(entry)
        if self._unsent:
            self._send_again()

    def pubrec(self, packet_ids: Sequence[int]) -> None:
        """PUBREC without an error for these: answer PUBREL."""
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
        """PUBREC with an error: the client is done with the message (MQTT 5 section 4.3.3)."""
        entry = self._state.outgoing.pop(packet_id, None)
        if entry is not None:
            done.append(entry)
        if self._unsent:
            self._send_again()

    def pubcomp(self, packet_ids: Sequence[int], done: list[InFlight]) -> None:
        """PUBCOMP for these."""
        released = self._state.released
        for packet_id in packet_ids:
            entry = released.pop(packet_id, None)
            if entry is not None:
                done.append(entry)
            elif packet_id in self._state.outgoing:
                raise ProtocolError("PUBCOMP without PUBREC")
        if self._unsent:
            self._send_again()

    # --- inside -----------------------------------------------------------------------------------------------

    def _head(self, delivery: Delivery) -> tuple[int, bytes, bytes]:
        """First byte, topic name with its length, properties with their length."""
        run = delivery.run
        first = 0x30 | delivery.qos << 1 | (_RETAIN_BIT if delivery.retain else 0)
        topic = encode_string(run.address)
        if self._version < 5:
            return first, topic, b""
        if not delivery.identifiers and not run.properties:
            return first, topic, b"\0"
        raw = subscription_identifiers(delivery.identifiers) + run.properties
        return first, topic, encode_variable_byte_integer(len(raw)) + raw

    def _room(self, fixed: int) -> int:
        """Largest payload of a packet whose variable header takes `fixed` bytes."""
        limit = self._packet_bytes_max
        for length_bytes, length_max in ((1, 127), (2, 16_383), (3, 2_097_151), (4, 268_435_455)):
            if limit - 1 - length_bytes <= length_max:
                return limit - 1 - length_bytes - fixed
        return 268_435_455 - fixed

    def _send_again(self) -> None:
        state, unsent = self._state, self._unsent
        sent = state.in_flight - len(unsent)
        while unsent and sent < self._inflight_max:
            packet_id = unsent.pop()
            entry = state.outgoing.get(packet_id)
            if entry is not None:
                delivery, index = entry
                first, topic, block = self._head(delivery)
                middle = packet_id.to_bytes(2, "big") + block
                body = delivery.run.bodies[index]
                write_publishes(
                    self._out, first | _DUP_BIT, topic, middles=(middle,), between=len(middle), bodies=(body,)
                )
                sent += 1
