"""Server side of one MQTT connection, without I/O: MQTT 3.1, 3.1.1 and 5. `phase` has the table of its states.

The session answers a `ConnectEvent` with `accept`, `refuse` or `challenge`. Packets behind the CONNECT wait until then.
`DisconnectedEvent` is always the last event and is emitted once, for every kind of end. The machine keeps no
subscription, message or clock; `SessionState` holds what outlives the connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from bridge.message import Run
from bridge.transport.peer_protocol import foreign_protocol
from edge.broker.limits import TOPIC_LEVELS_MAX, Limits
from edge.broker.message.mqtt_errors import LocalError, MalformedPacket, ProtocolError, RemoteError
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import PacketType, read_fixed_header
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.mqtt import events, packets
from edge.broker.mqtt.acknowledgements import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    read_packet_ids,
)
from edge.broker.mqtt.authentication import NO_METHOD, start_exchange
from edge.broker.mqtt.connect import (
    connack,
    decode_connect,
    encode_disconnect,
    encode_refusal,
    encode_violation,
    expiry_of_disconnect,
    reason_string,
)
from edge.broker.mqtt.events import Event
from edge.broker.mqtt.inbound import PublishReceiver
from edge.broker.mqtt.limits import CONNECT_BYTES_MAX, EARLY_BYTES_MAX, EVENTS_AT_ONCE, KEEP_ALIVE_GRACE
from edge.broker.mqtt.names import check_subscription, check_topic_filter
from edge.broker.mqtt.outbound import PublishSender, first_window
from edge.broker.mqtt.phase import (
    BEFORE_OPEN,
    ENDED,
    OPENED,
    READING,
    ConnectionPhase,
    ConnectionStep,
    after_packet,
    after_step,
    check_first_byte,
)
from edge.broker.mqtt.state import InFlight, SessionState
from edge.broker.mqtt.unread import NOTHING, UNREADY

_OPEN: Final = ConnectionPhase.OPEN
"""A module constant, as reading an attribute of an enumeration takes four times as long on the hot path."""
_DECIDING: Final = ConnectionPhase.DECIDING
_ACKNOWLEDGEMENTS: Final = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP})


class MqttConnection:
    """State machine of one client's connection (`bridge.transport.connection.ConnectionMachine`)."""

    has_output = True
    __slots__ = (
        "_authentication", "_client_id", "_connect", "_connect_bytes", "_connect_deadline", "_end_reason", "_inbound",
        "_keep_alive_s", "_lost", "_now", "_out", "_outbound", "_phase", "_publisher", "_reported", "_state", "_unread",
        "_violation", "limits", "more", "spoken", "version",
    )  # fmt: skip

    def __init__(self, limits: Limits, now: float) -> None:
        """`limits`: packet_bytes_max, inflight_max, receive_maximum and handshake_s are used."""
        self.limits = limits
        self._phase, self._now, self._connect_deadline = ConnectionPhase.CONNECTING, now, now + limits.handshake_s
        self.version = 4
        """Protocol level of the client, from CONNECT on: 3 (MQTT 3.1), 4 (3.1.1) or 5."""
        self._connect: events.ConnectEvent  # from CONNECT on
        self._authentication = NO_METHOD
        self._reported = False  # True once `DisconnectedEvent` was returned
        self._out: list[bytes] | None = None  # None while idle: an empty list takes 64 bytes
        self._unread = NOTHING
        self.more, self._lost, self._connect_bytes, self._keep_alive_s = False, False, 0, 0
        self._violation = False  # True after a violation of the protocol
        self.spoken, self._client_id, self._publisher, self._end_reason = "", "", "", "closed by the gateway"
        self._state: SessionState  # from `accept` on
        self._outbound: PublishSender | None = None
        self._inbound: PublishReceiver | None = None
        """Sender and receiver are created for the first message, as many clients only receive or only send."""

    # --- bridge.transport.connection.ConnectionMachine ----------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True when the socket must be closed once `data_to_send` has been written."""
        return self._phase in ENDED

    @property
    def deadline(self) -> float | None:
        """Time limit for CONNECT and CONNACK; after that the end of the keep alive period."""
        if self._phase is _OPEN:
            received_at_s = self._now if self._inbound is None else max(self._now, self._inbound.received_at_s)
            return received_at_s + self._keep_alive_s * KEEP_ALIVE_GRACE if self._keep_alive_s else None
        return self._connect_deadline + BEFORE_OPEN[self._phase] if self._phase in BEFORE_OPEN else None

    @property
    def missing_bytes(self) -> int:
        """See `UnreadPackets.missing`, for an open connection with nothing left to process; else `UNREADY`."""
        return UNREADY if self._phase is not _OPEN or self.more else self._unread.missing

    @property
    def pending(self) -> bytes:
        """Return the bytes that are not parsed yet, such as the first bytes of an incomplete packet."""
        return self._unread.content

    @property
    def held_bytes(self) -> int:
        """Memory in use for unparsed bytes, CONNECT, and topic names and properties that are cached for PUBLISH."""
        held = self._unread.held_bytes + self._connect_bytes
        return held if self._inbound is None else held + self._inbound.held_bytes

    def shed(self) -> Sequence[Event]:
        """Close the connection for lack of memory, with Quota exceeded for MQTT 5 clients."""
        self.disconnect(ReasonCode.QUOTA_EXCEEDED)
        return self._last(publish_will=True)

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        """Process bytes of the client and return the events. Never raises for what the client sent."""
        if self._phase in ENDED:
            return ()
        self._now = now
        unread = self._unread
        if not unread.size and self._phase is not _DECIDING:
            return self._take(data)
        unread = self._unread = unread.add(data)
        if self._phase is _DECIDING:
            return self._check_early_bytes()
        return self._take(unread.take()) if unread.whole else ()

    def receive_eof(self, now: float) -> Sequence[Event]:
        """Process the end of the socket. Idempotent."""
        if self._phase not in ENDED:
            self._end("the network connection was closed", lost=True)
        return self._last(publish_will=True)

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Event]:
        """End the connection after `deadline`. Without `listening` (nothing was read) keep alive starts again."""
        if self._phase is _OPEN and not listening:
            self._now = now
        deadline = self.deadline
        if deadline is None or now < deadline:
            return ()
        if self._phase is _OPEN:
            self._lost = True
            self._send_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, "keep alive timeout")
        else:
            self._end("no CONNECT within the time limit")
        return self._last(publish_will=True)

    def data_to_send(self) -> bytes:
        """Return all bytes to write, and clear them."""
        out = self._out
        if not out:
            return b""
        data = b"".join(out)
        out.clear()
        self._out = None if self._outbound is None and self._inbound is None else out
        return data

    # --- answers to CONNECT -------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Drop the credentials of an authenticated client, before `accept`. Idempotent."""
        if self._phase not in ENDED:
            self._client_id = self._connect.client_id or self._client_id
            self._connect = self._connect.accepted()
            self._connect_bytes = len(self._client_id) + self._connect.kept_bytes

    def accept(
        self,
        state: SessionState,
        session_present: bool,
        *,
        publisher: str = "",
        assigned_client_id: str | None = None,
        session_expiry_s: int | None = None,
        server_keep_alive_s: int | None = None,
        response_information: str | None = None,
        authentication_data: bytes | None = None,
        now: float | None = None,
    ) -> Sequence[Event]:
        """Send CONNACK and the messages that `state` has in flight. Return the events of packets behind CONNECT.

        `publisher` names the client in its messages (empty: its identifier). The properties tell MQTT 5 clients what
        differs from their request. `now` restarts the keep alive. Raises LocalError.
        """
        if self._phase in ENDED:
            return ()
        self._now = self._now if now is None else now
        phase = after_step(self._phase, ConnectionStep.ACCEPT)
        self.admit()
        connect, client_id = self._connect, self._client_id or assigned_client_id
        if not client_id:
            raise LocalError("no client identifier assigned")
        if connect.will is not None:
            connect.will.run.device = publisher or client_id
        self._keep_alive_s = connect.keep_alive_s
        if connect.version == 5 and server_keep_alive_s is not None:
            self._keep_alive_s = server_keep_alive_s
        announced = Properties(
            session_expiry_interval_s=session_expiry_s,
            assigned_client_identifier=assigned_client_id,
            server_keep_alive_s=server_keep_alive_s,
            response_information=response_information,
            authentication_data=authentication_data,
        )
        self._authentication.end()
        answer = connack(connect, self.limits, session_present, announced).encode(connect.version)
        if len(answer) > connect.maximum_packet_size:  # the first packet must be CONNACK [MQTT-3.14.0-1]
            self._refuse(ReasonCode.PACKET_TOO_LARGE, "CONNACK exceeds the client's maximum packet size")
            return self._last(publish_will=False)
        self._phase = phase
        self._output.append(answer)
        self._state, self._client_id, self._connect_deadline = state, client_id, 0.0
        self._publisher = publisher or client_id
        state.connection = self
        dropped = self._sender.resume() if state.in_flight else []
        found: list[Event] = [events.AcknowledgedEvent(dropped, DeliveryOutcome.TOO_LARGE)] if dropped else []
        found.extend(self._take(self._unread.take()))
        return found or self._last(publish_will=True)

    def refuse(self, reason: ReasonCode, text: str = "") -> None:
        """Answer CONNECT with an error and close; MQTT 5 clients get `text`. Raises LocalError without a CONNECT."""
        if self._phase not in ENDED:
            self._refuse(reason, f"refused: {text or reason.words}", text)

    def challenge(self, data: bytes) -> Sequence[Event]:
        """Send AUTH to continue the authentication, before CONNACK or later. Return events of packets that waited."""
        if self._phase in ENDED:
            return ()
        opened = self._phase is _OPEN
        if not opened:
            self._phase = after_step(self._phase, ConnectionStep.CHALLENGE)
        self._append(self._authentication.challenge(data), "AUTH")
        return () if opened else self._take(self._unread.take())

    # --- calls of the session on an open connection -------------------------------------------------------------

    def authenticated(self, data: bytes) -> None:
        """Send the AUTH of a successful re-authentication."""
        if self._phase is _OPEN:
            self._append(self._authentication.succeed(data), "AUTH")

    @property
    def window(self) -> int:
        """Number of QoS 1 and 2 messages that may be delivered now; 0 unless the connection is open."""
        if self._phase is not _OPEN:
            return 0
        return self._outbound.window if self._outbound else first_window(self._connect, self._state, self.limits)

    def deliver(self, delivery: events.MqttDelivery) -> Sequence[int]:
        """Send one PUBLISH for each message. Return the indexes of messages above the client's Maximum Packet Size.

        QoS 1 and 2 messages stay in the session's state until acknowledged. On a closed connection they only enter the
        state, to be sent when the session resumes. Raises LocalError beyond `window`, and before `accept`."""
        if self._phase is not _OPEN:
            self._must_have_opened()
        return (self._outbound or self._sender).deliver(delivery, send=self._phase is _OPEN)

    def deliver_all(self, runs: Sequence[Run], alike: events.MqttDelivery, ids: int) -> bool:
        """See `PublishSender.deliver_all`; also False on a closed connection."""
        return self._phase is _OPEN and self._sender.deliver_all(runs, alike, ids)

    def send_committed(self, packet_ids: Sequence[int]) -> None:
        """Send the PUBLISH or PUBREL of these packet identifiers, which are on disk now."""
        if self._phase is _OPEN:
            self._sender.send_committed(packet_ids)

    def fits(self, delivery: events.MqttDelivery, index: int) -> bool:
        """Return True if this message of QoS 1 or 2 is within the client's maximum packet size."""
        self._must_have_opened()
        return self._sender.fits(delivery, index)

    def send_again(self, packet_id: int) -> None:
        """Send a message again that an earlier connection of the session sent."""
        if self._phase is _OPEN:
            self._sender.send_again(packet_id)

    def acknowledge(
        self, qos: int, packet_ids: Sequence[int], reason: ReasonCode = ReasonCode.SUCCESS, text: str = ""
    ) -> None:
        """Send PUBACK (QoS 1) or PUBREC (QoS 2) for stored or refused messages, in order, with `text` as Reason String.

        Before MQTT 5 nothing is sent for a refusal, and a QoS 2 packet identifier is free again. If this connection has
        closed, QoS 2 messages are answered over the new connection of the session."""
        self._must_have_opened()
        if qos == 2 and packet_ids:
            self._state.pending.difference_update(packet_ids)
            if reason.refuses(self.version):
                self._state.incoming.difference_update(packet_ids)
            connection = self._state.connection
            if connection is not None:
                connection.confirm(packet_ids, reason, text)
        elif self._phase is _OPEN and packet_ids:
            self.receiver.puback(packet_ids, reason, text)

    def puback(self, packet_ids: Sequence[int]) -> None:
        """Acknowledge stored messages of QoS 1 that came over this connection. See `acknowledge`."""
        if self._phase is _OPEN:
            self.receiver.puback_success(packet_ids)

    def confirm(self, packet_ids: Sequence[int], reason: ReasonCode, text: str = "") -> None:
        """Send PUBREC for those of these QoS 2 messages that came over this connection."""
        if self._phase is _OPEN:
            self.receiver.pubrec(packet_ids, reason, text)

    def complete(self, packet_ids: Iterable[int]) -> None:
        """Send PUBCOMP for these released messages, now on disk, if their PUBREL came over this connection."""
        if self._phase is _OPEN:
            self.receiver.complete(packet_ids)

    def subscribed(self, packet_id: int, codes: Sequence[int], text: str = "") -> None:
        """Send SUBACK with a code for each filter; `text` explains failures."""
        self._must_have_opened()
        explanation = reason_string(self._connect, text, 2 + len(codes))
        self._reply(packets.SubAck(packet_id, _suback_codes(codes, self.version), explanation))

    def unsubscribed(self, packet_id: int, codes: Sequence[int]) -> None:
        """Send UNSUBACK. The codes, one for each filter, are sent to MQTT 5 clients only."""
        self._must_have_opened()
        self._reply(packets.UnsubAck(packet_id, tuple(codes) if self.version == 5 else ()))

    def disconnect(self, reason: ReasonCode) -> None:
        """Close, with a DISCONNECT for MQTT 5 clients. Idempotent. `receive_eof` returns the `DisconnectedEvent`."""
        if self._phase is ConnectionPhase.CONNECTING:
            self._end(f"disconnected: {reason.words}")
        elif self._phase not in ENDED:
            self._close(reason, f"disconnected: {reason.words}")

    # --- parsing ------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> Sequence[Event]:
        """Process the complete packets in `data` and keep the rest."""
        found: list[Event] = []
        try:
            self._split(data, found)
        except RemoteError as error:
            self._violated(error, data)
        if self._phase is _DECIDING:
            found.extend(self._check_early_bytes())
        elif self._phase in ENDED:
            found.extend(self._last(publish_will=True))
        return found

    def _split(self, data: bytes, found: list[Any]) -> None:
        """Parse packets up to `EVENTS_AT_ONCE` events, or one part of a packet that is processed in parts."""
        unread = self._unread
        if unread.parts:
            self._unread = unread.next_part(found, data)
            self.more = self._unread.waits
            return
        pos, end, packet_bytes = 0, len(data), 0
        self.more = False
        for _ in range(EVENTS_AT_ONCE):
            if pos == end or self._phase not in READING or self._unread.parts:
                break
            if self._inbound is not None:
                pos = self._inbound.read_known(data, pos, found)
                if pos == end or len(found) >= EVENTS_AT_ONCE:
                    continue
            header = _fixed_header(data, pos, self._phase, self.version, self.limits)
            if header is None:
                break
            body, stop = header
            if stop > end:
                packet_bytes = stop - pos
                break
            first = data[pos]
            if self._phase is ConnectionPhase.CONNECTING:
                self._connected(data[body:stop], first & 15, found)
                pos = stop
            elif first >> 4 == PacketType.PUBLISH:
                pos = (self._inbound or self.receiver).publish(data, pos, body, stop, found)
            elif first in _ACKNOWLEDGEMENTS and stop - pos == 4:
                packet_ids: list[int] = []
                pos = read_packet_ids(data, pos, packet_ids)
                self._acknowledged(first, packet_ids, found)
            else:
                self._handle(packets.decode(first, data[body:stop], self.version), found)
                pos = stop
        else:
            self.more = pos < end and self._phase in READING
        self.more = self.more or bool(self._unread.parts)
        self._unread = self._unread.keep(data[pos:], packet_bytes)

    def _check_early_bytes(self) -> Sequence[Event]:
        if self._unread.size <= EARLY_BYTES_MAX:
            return ()
        self._refuse(ReasonCode.QUOTA_EXCEEDED, f"more than {EARLY_BYTES_MAX} bytes before CONNACK")
        return self._last(publish_will=False)

    # --- packets ------------------------------------------------------------------------------------------------

    def _connected(self, body: bytes, flags: int, found: list[Any]) -> None:
        self._connect = connect = decode_connect(body, flags)
        self._connect_bytes = len(body)
        self._phase = after_packet(self._phase, PacketType.CONNECT, connect.version)
        self.version = connect.version
        self._authentication = start_exchange(connect.authentication_method)
        found.append(connect)

    @property
    def _output(self) -> list[bytes]:
        if self._out is None:
            self._out = []
        return self._out

    @property
    def _sender(self) -> PublishSender:
        if self._outbound is None:
            self._outbound = PublishSender(self._connect, self._state, self._output, self.limits)
        return self._outbound

    @property
    def receiver(self) -> PublishReceiver:
        """Receiver of PUBLISH packets; only while the connection is open."""
        if self._inbound is None:
            self._inbound = PublishReceiver(self._connect, self._publisher, self._state, self._output, self.limits)
        return self._inbound

    def _acknowledged(self, first: int, packet_ids: list[int], found: list[Any]) -> None:
        """Process a row of four byte acknowledgements of one type."""
        done: list[InFlight] = []
        received: list[int] = []
        zero = 0 in packet_ids
        if zero:
            del packet_ids[packet_ids.index(0) :]
        try:
            if first == PUBACK:
                self._sender.puback(packet_ids, done)
            elif first == PUBREC:
                self._sender.pubrec(packet_ids, received)
            elif first == PUBREL:
                self.receiver.pubrel(packet_ids, found)
            else:
                self._sender.pubcomp(packet_ids, done)
        finally:
            if done:
                found.append(events.AcknowledgedEvent(done))
            if received:
                found.append(events.PubRecEvent(received))
        if zero:
            raise ProtocolError("packet identifier 0")

    def _handle(self, packet: packets.Packet, found: list[Any]) -> None:
        """Process a packet that is not on the hot path, if the table of phases allows it."""
        phase = after_packet(self._phase, packet.kind, self.version)
        match packet:
            case packets.PubAck(packet_id, reason) | packets.PubRec(packet_id, reason) if reason.failed:
                done: list[InFlight] = []
                if isinstance(packet, packets.PubAck):
                    self._sender.puback([packet_id], done)
                else:
                    self._sender.pubrec_refused(packet_id, done)
                if done:
                    found.append(events.AcknowledgedEvent(done, DeliveryOutcome.REJECTED))
            case packets.PubAck() | packets.PubRec() | packets.PubRel() | packets.PubComp():
                self._acknowledged(packet.kind << 4 | packet.low_bits, [packet.packet_id], found)
            case packets.Subscribe():
                self._unread = self._unread.take_parts(_subscribe_parts(packet), found)
            case packets.Unsubscribe():
                self._unread = self._unread.take_parts(_unsubscribe_parts(packet), found)
            case packets.PingReq():
                self._reply(packets.PingResp())
            case packets.Disconnect():
                self._disconnected(packet, found)
            case packets.Auth():
                found.append(self._authentication.take(packet))
                self._phase = phase
            case _:
                raise TypeError(f"{packet.kind.name} has no handler")

    def _disconnected(self, packet: packets.Disconnect, found: list[Any]) -> None:
        expiry_s = expiry_of_disconnect(packet, self._connect)
        self._end(f"DISCONNECT: {packet.reason.words}" if packet.reason else "DISCONNECT", lost=bool(packet.reason))
        found.extend(self._last(publish_will=self._lost, session_expiry_s=expiry_s))

    # --- ends ---------------------------------------------------------------------------------------------------

    def _reply(self, packet: packets.Packet) -> None:
        """Send a required packet. Close if it exceeds the client's maximum packet size."""
        if self._phase is _OPEN:
            self._append(packet.encode(self.version), packet.kind.name)

    def _append(self, encoded: bytes, name: str) -> None:
        if len(encoded) <= self._connect.maximum_packet_size:  # [MQTT-3.1.2-24]
            self._output.append(encoded)
        else:
            self._close(ReasonCode.PACKET_TOO_LARGE, f"{name} exceeds the client's maximum packet size")

    def _must_have_opened(self) -> None:
        if self._phase not in OPENED:
            raise LocalError(f"called while {self._phase.value}")

    def _violated(self, error: RemoteError, data: bytes) -> None:
        """Close after a protocol violation (section 4.13), with the answer of the client's version."""
        self._lost = self._violation = True
        if self._phase is ConnectionPhase.CONNECTING:
            self._output.append(encode_violation(error, data))
            self.spoken = foreign_protocol(data, "MQTT")
            self._end(str(error))
        else:
            self._close(error.reason, str(error))

    def _close(self, reason: ReasonCode, text: str) -> None:
        (self._send_disconnect if self._phase is _OPEN else self._refuse)(reason, text)  # [MQTT-4.12.0-4]

    def _refuse(self, reason: ReasonCode, text: str, explanation: str = "") -> None:
        self._end(text, ConnectionStep.REFUSE)
        self._output.append(encode_refusal(reason, self.version, explanation, self._connect.maximum_packet_size))

    def _send_disconnect(self, reason: ReasonCode, text: str) -> None:
        """Close an open connection, with a DISCONNECT in MQTT 5."""
        if self.version == 5:
            self._output.append(encode_disconnect(reason, text, self._connect))
        self._end(text)

    def _end(self, text: str, step: ConnectionStep = ConnectionStep.CLOSE, *, lost: bool = False) -> None:
        self._phase = after_step(self._phase, step)
        self._end_reason, self._unread, self.more, self._lost = text, NOTHING, False, self._lost or lost
        if self._inbound is not None:
            self._inbound.close()
        if self._phase is ConnectionPhase.CLOSED and self._state.connection is self:
            self._state.connection = None

    def _last(self, *, publish_will: bool, session_expiry_s: int | None = None) -> Sequence[Event]:
        if self._phase not in ENDED or self._reported:
            return ()
        self._reported = True
        will = publish_will and self._phase is ConnectionPhase.CLOSED and self._connect.will is not None
        return (events.DisconnectedEvent(will, self._end_reason, session_expiry_s, self._lost, self._violation),)


def _suback_codes(codes: Sequence[int], version: int) -> tuple[int, ...]:
    """Return the codes for this version: failures are 0x80 in 3.1.1, and QoS 0 in 3.1 (section 3.8)."""
    failure = {3: 0, 4: 0x80}.get(version)
    return tuple(codes) if failure is None else tuple(code if code < 0x80 else failure for code in codes)


def _subscribe_parts(packet: packets.Subscribe) -> Iterator[events.SubscribeEvent]:
    """Split a SUBSCRIBE into events. Raises RemoteError for an invalid filter."""
    for request in packet.requests:
        check_subscription(request.filter, TOPIC_LEVELS_MAX, no_local=request.no_local)
    identifiers = packet.properties.subscription_identifier or (0,)
    return events.subscribe_parts(packet.packet_id, packet.requests, identifiers[0])


def _unsubscribe_parts(packet: packets.Unsubscribe) -> Iterator[events.UnsubscribeEvent]:
    """Split an UNSUBSCRIBE into events. Raises RemoteError for an invalid filter."""
    for topic_filter in packet.filters:
        check_topic_filter(topic_filter, TOPIC_LEVELS_MAX)
    return events.unsubscribe_parts(packet.packet_id, packet.filters)


def _fixed_header(
    data: bytes, pos: int, phase: ConnectionPhase, version: int, limits: Limits
) -> tuple[int, int] | None:
    """Return where fixed header and packet end; None while the remaining length is incomplete."""
    early = phase is not _OPEN
    if early:
        check_first_byte(phase, data[pos])
    header = read_fixed_header(data, pos)
    if header is None:
        return None
    body, length, shortest = header
    if not shortest and version == 5:
        raise MalformedPacket("remaining length is not in its shortest form")
    if body + length - pos > (CONNECT_BYTES_MAX if early else limits.packet_bytes_max):
        raise ProtocolError(f"packet of {body + length - pos} bytes", ReasonCode.PACKET_TOO_LARGE)
    return body, body + length
