"""Targets for compiled loops that receive from several connections at once: sockets of a whole broker in memory.

Each connection has sent enough to have a lane (`edge.broker.amqp.arrivals`, `edge.broker.mqtt.arrivals`) before an
input begins. An input consists of pieces. Two bytes before each piece give its connection, its length, and whether
another piece is sent before the broker reads. The fuzzer thus changes, cuts and joins bytes, and mixes the input of a
turn.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bridge.engine import Engine
from bridge.sasl import SaslClient
from bridge.transport.driver import ConnectionDriver, Diverted
from bridge.transport.tcp import TcpTransport
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.property.fuzz.target import Protocol, Target
from tests.unit.amqp.wire import NOW, message

CONNECTIONS: Final = 3
GLUED: Final = 0x80
"""Flag in the first byte of a piece: another piece is sent before the broker reads."""
PIECE_BYTES_MAX: Final = 255


class Piece(NamedTuple):
    connection: int
    glued: bool
    data: bytes

    @property
    def encoded(self) -> bytes:
        return bytes([self.connection | (GLUED if self.glued else 0), len(self.data)]) + self.data


def pieces(data: bytes) -> Iterator[Piece]:
    """Split an input into pieces; the last one may be shorter than its length."""
    at = 0
    while at + 2 <= len(data):
        head, size = data[at], data[at + 1]
        yield Piece((head & ~GLUED) % CONNECTIONS, bool(head & GLUED), data[at + 2 : at + 2 + size])
        at += 2 + size


def encoded(stream: Sequence[tuple[int, bytes]]) -> bytes:
    """Return an input in which these connections send these bytes, all before the broker reads."""
    return b"".join(
        Piece(connection, True, data[start : start + PIECE_BYTES_MAX]).encoded
        for connection, data in stream
        for start in range(0, len(data), PIECE_BYTES_MAX)
    )


class Peer:
    """Client with its end of the socket, and its output."""

    def __init__(self, socket_: socket.socket, driver: ConnectionDriver) -> None:
        self.socket = socket_
        self.driver = driver

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(data)

    def heard(self) -> bytes:
        """Return the broker's output."""
        found = b""
        with contextlib.suppress(OSError):
            while data := self.socket.recv(1 << 16):
                found += data
        return found


class LaneTarget(Target):
    """Feeds inputs to connections of one protocol that have lanes."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__()
        self.protocol: Protocol = protocol

    def take(self, data: bytes) -> int:
        """Process an input; return the number of connections that had lanes.

        Raise AssertionError when an invariant fails.
        """
        self._begin_anew()
        peers = [self._joined() for _ in range(CONNECTIONS)]
        for number, peer in enumerate(peers):
            self._teach(peer, number)
        lanes = sum(self._has_lane(peer) for peer in peers)
        for piece in pieces(data):
            peers[piece.connection].send(piece.data)
            if not piece.glued:
                self._turn()
        self._turn()
        for peer in peers:
            peer.heard()
            peer.socket.close()
        for _ in range(3):
            self._turn()
        assert all(peer.driver.connection.closed for peer in peers)
        assert not any(map(self._has_lane, peers))
        self._other_session_feels_nothing()
        return lanes

    def _has_lane(self, peer: Peer) -> bool:
        transport: Any = peer.driver.transport
        return transport is not None and isinstance(transport.get_protocol(), Diverted)

    def _joined(self) -> Peer:
        async def make() -> Peer:
            here, there = socket.socketpair()
            here.setblocking(False)
            there.setblocking(False)
            driver = self._broker.listeners.by_name[self.protocol]._accept()
            assert isinstance(driver, ConnectionDriver)
            driver.connection_made(TcpTransport(self._loop, here, ("127.0.0.1", 1), driver))
            return Peer(there, driver)

        return self._loop.run_until_complete(make())

    def _teach(self, peer: Peer, number: int) -> None:
        if self.protocol == "mqtt":
            peer.send(b"".join(mqtt_opening(number)))
            self._turn()
            for sent in mqtt_messages():
                peer.send(sent)
                self._turn()
        else:
            for sent in AMQP_OPENING:
                peer.send(sent)
                self._turn()
        peer.heard()


def mqtt_opening(number: int) -> list[bytes]:
    steps: list[packets.Packet] = [
        packets.Connect(f"lane-{number}", 4, clean_start=True, keep_alive_s=60),
        packets.Subscribe(1, (SubscriptionRequest("topic/#", 1),)),
    ]
    return [step.encode(4) for step in steps]


def mqtt_messages() -> list[bytes]:
    """Return messages that a lane takes, and an acknowledgement of a delivery."""
    sent: list[packets.Packet] = [
        packets.Publish("topic/a", b"x"),
        packets.Publish("queue/a", b"one", qos=1, packet_id=1),
        packets.Publish("topic/a", b"two", qos=1, packet_id=2),
        packets.PubAck(1),
    ]
    return [each.encode(4) for each in sent]


def amqp_conversation(count: int) -> list[bytes]:
    """Return a client's part of a conversation: opening, two messages, then `count` messages one by one.

    The broker grants credit.
    """
    client = Engine(container_id="lane", server=False, sasl=SaslClient(), now=NOW)
    server = Engine(container_id="broker", server=True, now=NOW)
    client.open()
    sent: list[bytes] = []

    def turn() -> None:
        while data := client.data_to_send():
            sent.append(data)
            for event in server.receive_data(data, NOW):
                _answer(server, event)
            client.receive_data(server.data_to_send(), NOW)

    turn()
    link = client.attach_sender("to", "queue/a")
    turn()
    for number in range(2 + count):
        client.send_all(link, number, [message(b"one" * number, durable=True)], settled=False)
        turn()
    return sent


def _answer(server: Engine, event: Any) -> None:
    match type(event).__name__:
        case "PeerOpened":
            server.open()
        case "Attached":
            server.accept(event.link)
            server.grant(event.link, 100)


MORE: Final = 4
_CONVERSATION: Final = amqp_conversation(MORE)
AMQP_OPENING: Final = _CONVERSATION[:-MORE]
AMQP_MESSAGES: Final = _CONVERSATION[-MORE:]


def lane_seeds(protocol: Protocol) -> list[bytes]:
    """Return seeds that lanes take: one message of each connection per turn, and many joined ones."""
    sent = AMQP_MESSAGES if protocol == "amqp" else mqtt_messages()
    by_turns = b"".join(
        Piece(number, number < CONNECTIONS - 1, data).encoded for data in sent for number in range(CONNECTIONS)
    )
    glued = encoded([(number, b"".join(sent)) for number in range(CONNECTIONS)])
    cut = b"".join(Piece(0, False, bytes([each])).encoded for each in sent[0])
    return [by_turns, glued, cut]
