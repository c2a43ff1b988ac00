"""Exactly once through SIGKILL of the gateway: QoS 2 in both directions (MQTT 5 section 4.3.3, DESIGN section 6).

The tests have a small client of their own, because it must be cut off at a chosen packet. It keeps the session state of
the standard: as a receiver, the packet identifiers it has seen and not released; as a sender, those not released.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_wire import PacketType, read_fixed_header
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.processes import Waypost, edge

WAIT_S = 20.0
KEPT = Properties(session_expiry_interval_s=3600)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with edge(tmp_path, "gw") as running:
        yield running


class Wire:
    """One connection, packet by packet."""

    def __init__(self, gateway: Waypost, client_id: str, version: int = 5, *, lasting: bool = True) -> None:
        """Connect. With `lasting`, the session outlives the connection and is resumed; otherwise it is new."""
        self.version = version
        self._data = b""
        self._socket = socket.create_connection(("127.0.0.1", gateway.port("mqtt")), WAIT_S)
        connect = p.Connect(client_id, version, clean_start=not lasting)
        if version == 5 and lasting:
            connect = p.Connect(client_id, version, clean_start=False, properties=KEPT)
        self.send(connect)
        connack = self.next()
        assert isinstance(connack, p.ConnAck)
        self.session_present = connack.session_present

    def send(self, *packets: p.Packet) -> None:
        self._socket.sendall(b"".join(packet.encode(self.version) for packet in packets))

    def next(self) -> p.Packet:
        while True:
            header = read_fixed_header(self._data, 0)
            if header is not None and header[0] + header[1] <= len(self._data):
                stop = header[0] + header[1]
                first, body, self._data = self._data[0], self._data[header[0] : stop], self._data[stop:]
                version = 4 if first >> 4 == PacketType.CONNACK and len(body) == 2 else self.version
                return p.decode(first, body, version)
            more = self._socket.recv(65_536)
            assert more, "the gateway closed"
            self._data += more

    def close(self) -> None:
        self._socket.close()


class Receiver:
    """QoS 2 receiver that processes a message when PUBLISH arrives, the eager of the two ways in section 4.3.3."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.bodies: list[bytes] = []

    def run(self, wire: Wire, *, until: int, stop_at: type | None = None, after: int = 0) -> None:
        """Process packets until `until` bodies are there and nothing is open, or until a stop.

        The stop is packet `after` + 1 of type `stop_at`, which is processed and not answered.
        """
        met = 0
        while len(self.bodies) < until or self.seen or stop_at is not None:
            packet = wire.next()
            stopping = stop_at is not None and isinstance(packet, stop_at) and met == after
            met += stop_at is not None and isinstance(packet, stop_at)
            if isinstance(packet, p.Publish):
                if packet.packet_id not in self.seen:
                    self.bodies.append(packet.payload)
                    self.seen.add(packet.packet_id)
                if not stopping:
                    wire.send(p.PubRec(packet.packet_id))
            elif isinstance(packet, p.PubRel):
                self.seen.discard(packet.packet_id)
                if not stopping:
                    wire.send(p.PubComp(packet.packet_id))
            if stopping:
                return


def subscribe(gateway: Waypost, version: int, pattern: str = "topic/once/#") -> None:
    wire = Wire(gateway, "receiver", version)
    wire.send(p.Subscribe(1, (SubscriptionRequest(pattern, 2),)))
    assert isinstance(wire.next(), p.SubAck)
    wire.close()


def publish(gateway: Waypost, bodies: list[bytes], version: int, topic: str = "topic/once/a") -> None:
    wire = Wire(gateway, "sender", version)
    for packet_id, body in enumerate(bodies, 1):
        wire.send(p.Publish(topic, body, 2, packet_id=packet_id))
        assert isinstance(wire.next(), p.PubRec)
        wire.send(p.PubRel(packet_id))
        assert isinstance(wire.next(), p.PubComp)
    wire.close()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("stop_at", [p.Publish, p.PubRel])
@pytest.mark.parametrize("after", [0, 7])
def test_a_subscriber_gets_each_message_once(gateway: Waypost, version: int, stop_at: type, after: int) -> None:
    """A subscriber gets each message once, across kills before its PUBREC and after its PUBREL."""
    subscribe(gateway, version)
    bodies = [b"%d" % i for i in range(20)]
    publish(gateway, bodies, version)
    receiver = Receiver()
    for round_ in range(3):
        wire = Wire(gateway, "receiver", version)
        assert wire.session_present
        if round_ < 2 and (len(receiver.bodies) < 20 or receiver.seen):
            receiver.run(wire, until=20, stop_at=stop_at, after=after)
            gateway.kill()
            wire.close()
            gateway.start()
        else:
            receiver.run(wire, until=20)
            wire.close()
    publish(gateway, [b"last"], version)
    wire = Wire(gateway, "receiver", version)
    receiver.run(wire, until=21)
    wire.close()
    assert receiver.bodies == [*bodies, b"last"], "each once, in order, and none after the last"


@pytest.mark.parametrize("pattern", ["$share/group/topic/once/#", "queue/once"])
@pytest.mark.parametrize("stop_at", [p.Publish, p.PubRel])
def test_one_of_several_gets_each_message_once(gateway: Waypost, pattern: str, stop_at: type) -> None:
    """One of several consumers gets each message once, from a queue or a shared subscription.

    After a restart its packet identifiers must not be given to other messages, which it would mistake for known ones.
    """
    topic = "queue/once" if pattern == "queue/once" else "topic/once/a"
    subscribe(gateway, 5, pattern)
    bodies = [b"%d" % i for i in range(20)]
    publish(gateway, bodies, 5, topic)
    receiver = Receiver()
    wire = Wire(gateway, "receiver")
    receiver.run(wire, until=20, stop_at=stop_at, after=7)
    gateway.kill()
    wire.close()
    gateway.start()
    publish(gateway, [b"20", b"21"], 5, topic)
    wire = Wire(gateway, "receiver")
    assert wire.session_present
    receiver.run(wire, until=22)
    wire.close()
    assert sorted(receiver.bodies) == sorted([*bodies, b"20", b"21"])


def test_what_another_of_the_group_got_instead_leaves_nothing_behind(gateway: Waypost) -> None:
    subscribe(gateway, 5, "$share/group/topic/once/#")
    publish(gateway, [b"%d" % i for i in range(5)], 5)
    receiver, other = Receiver(), Receiver()
    wire = Wire(gateway, "receiver")
    receiver.run(wire, until=5, stop_at=p.Publish, after=4)
    gateway.kill()
    wire.close()
    gateway.start()
    wire = Wire(gateway, "other")
    wire.send(p.Subscribe(1, (SubscriptionRequest("$share/group/topic/once/#", 2),)))
    assert isinstance(wire.next(), p.SubAck)
    other.run(wire, until=1)
    wire.close()
    for number in range(2):
        gateway.kill()
        gateway.start()
        publish(gateway, [b"x%d" % number, b"y%d" % number], 5)
        wire = Wire(gateway, "receiver")
        receiver.run(wire, until=len(receiver.bodies) + 2)
        wire.close()
    assert not receiver.seen
    found = {*receiver.bodies, *other.bodies}
    assert found == {b"0", b"1", b"2", b"3", b"4", b"x0", b"y0", b"x1", b"y1"}


@pytest.mark.parametrize("version", [4, 5])
def test_a_publisher_that_sends_again_is_heard_once(gateway: Waypost, version: int) -> None:
    """A publisher that repeats a PUBLISH after a kill, with the same identifier, publishes once."""
    subscribe(gateway, version)
    expected = [b"%d" % i for i in range(6)]
    for body, released in zip(expected, itertools.cycle((False, True)), strict=False):
        wire = Wire(gateway, "sender", version)
        wire.send(p.Publish("topic/once/a", body, 2, packet_id=7))
        assert isinstance(wire.next(), p.PubRec)
        gateway.kill()
        wire.close()
        gateway.start()
        wire = Wire(gateway, "sender", version)
        assert wire.session_present
        if not released:
            wire.send(p.Publish("topic/once/a", body, 2, dup=True, packet_id=7))
            assert isinstance(wire.next(), p.PubRec)
        wire.send(p.PubRel(7))
        assert isinstance(wire.next(), p.PubComp)
        wire.close()
    receiver = Receiver()
    wire = Wire(gateway, "receiver", version)
    receiver.run(wire, until=6)
    wire.close()
    assert receiver.bodies == expected


@pytest.mark.parametrize("version", [4, 5])
def test_an_identifier_is_free_when_it_is_said_to_be(gateway: Waypost, version: int) -> None:
    """An identifier is free after PUBCOMP, also across a kill.

    The sender uses it for its next message, and repeats that with DUP, without an answer. The gateway must not mistake
    it for the former message.
    """
    subscribe(gateway, version)
    expected = [b"%d" % i for i in range(6)]
    for number, body in enumerate(expected):
        wire = Wire(gateway, "sender", version)
        wire.send(p.Publish("topic/once/a", body, 2, dup=number > 0, packet_id=7))
        assert isinstance(wire.next(), p.PubRec)
        wire.send(p.PubRel(7))
        assert isinstance(wire.next(), p.PubComp)
        gateway.kill()
        wire.close()
        gateway.start()
    receiver = Receiver()
    wire = Wire(gateway, "receiver", version)
    receiver.run(wire, until=6)
    wire.close()
    assert receiver.bodies == expected


def asked(gateway: Waypost) -> tuple[Wire, Wire, p.Publish]:
    """Return a consumer, a sender, and a QoS 2 message that the consumer has not answered."""
    consumer = Wire(gateway, "consumer")
    consumer.send(p.Subscribe(1, (SubscriptionRequest("anycast/once", 1),)))
    assert isinstance(consumer.next(), p.SubAck)
    sender = Wire(gateway, "asking")
    sender.send(p.Publish("anycast/once", b"ask", 2, packet_id=7))
    question = consumer.next()
    assert isinstance(question, p.Publish)
    return consumer, sender, question


def test_a_message_no_consumer_has_answered_for_is_not_taken(gateway: Waypost) -> None:
    """An anycast message is not accepted before its consumer answers.

    Anycast stores nothing: after a kill before the answer, the sender's message is delivered again.
    """
    consumer, sender, _ = asked(gateway)
    sender.send(p.Publish("queue/else", b"commits", 2, packet_id=8))
    subscribe(gateway, 5)
    publish(gateway, [b"commits too"], 5)
    gateway.kill()
    consumer.close()
    sender.close()
    gateway.start()
    consumer, sender = Wire(gateway, "consumer"), Wire(gateway, "asking")
    sender.send(p.Publish("anycast/once", b"ask", 2, dup=True, packet_id=7))
    again = consumer.next()
    assert isinstance(again, p.Publish)
    assert again.payload == b"ask"
    consumer.send(p.PubAck(again.packet_id))
    assert sender.next() == p.PubRec(7)
    consumer.close()
    sender.close()


def test_an_answer_goes_over_the_connection_the_sender_has_now(gateway: Waypost) -> None:
    consumer, sender, question = asked(gateway)
    sender.close()
    sender = Wire(gateway, "asking")
    sender.send(p.Publish("anycast/once", b"ask", 2, dup=True, packet_id=7), p.PingReq())
    assert sender.next() == p.PingResp(), "and nothing before it"
    consumer.send(p.PubAck(question.packet_id))
    assert sender.next() == p.PubRec(7)
    consumer.close()
    sender.close()
