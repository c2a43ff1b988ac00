"""Exactly once through SIGKILL of the gateway: QoS 2 in both directions (MQTT 5 section 4.3.3, DESIGN section 6).

The client is cut off at a chosen packet. It keeps the session state of the standard: as a receiver, the packet
identifiers it has seen and not released; as a sender, those not released.
"""

from __future__ import annotations

import itertools

import pytest

from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.processes import Waypost
from tests.support.session_client import SessionClient


class Receiver:
    """QoS 2 receiver that processes a message when PUBLISH arrives, the eager of the two ways in section 4.3.3."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.bodies: list[bytes] = []

    def run(self, client: SessionClient, *, until: int, stop_at: type | None = None, after: int = 0) -> None:
        """Process packets until `until` bodies are there and nothing is open, or until a stop.

        The stop is packet `after` + 1 of type `stop_at`, which is processed and not answered.
        """
        met = 0
        while len(self.bodies) < until or self.seen or stop_at is not None:
            packet = client.next()
            stopping = stop_at is not None and isinstance(packet, stop_at) and met == after
            met += stop_at is not None and isinstance(packet, stop_at)
            if isinstance(packet, p.Publish):
                if packet.packet_id not in self.seen:
                    self.bodies.append(packet.payload)
                    self.seen.add(packet.packet_id)
                if not stopping:
                    client.send(p.PubRec(packet.packet_id))
            elif isinstance(packet, p.PubRel):
                self.seen.discard(packet.packet_id)
                if not stopping:
                    client.send(p.PubComp(packet.packet_id))
            if stopping:
                return


def subscribe(gateway: Waypost, version: int, pattern: str = "topic/once/#") -> None:
    client = SessionClient(gateway, "receiver", version)
    client.send(p.Subscribe(1, (SubscriptionRequest(pattern, 2),)))
    assert isinstance(client.next(), p.SubAck)
    client.close()


def publish(gateway: Waypost, bodies: list[bytes], version: int, topic: str = "topic/once/a") -> None:
    client = SessionClient(gateway, "sender", version)
    for packet_id, body in enumerate(bodies, 1):
        client.send(p.Publish(topic, body, 2, packet_id=packet_id))
        assert isinstance(client.next(), p.PubRec)
        client.send(p.PubRel(packet_id))
        assert isinstance(client.next(), p.PubComp)
    client.close()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("stop_at", [p.Publish, p.PubRel])
@pytest.mark.parametrize("after", [0, 7])
def test_subscriber_gets_each_message_once_across_kills(
    gateway: Waypost, version: int, stop_at: type, after: int
) -> None:
    """A subscriber gets each message once, across kills before its PUBREC and after its PUBREL."""
    subscribe(gateway, version)
    bodies = [b"%d" % i for i in range(20)]
    publish(gateway, bodies, version)
    receiver = Receiver()
    for round_ in range(3):
        client = SessionClient(gateway, "receiver", version)
        assert client.session_present
        if round_ < 2 and (len(receiver.bodies) < 20 or receiver.seen):
            receiver.run(client, until=20, stop_at=stop_at, after=after)
            gateway.kill()
            client.close()
            gateway.start()
        else:
            receiver.run(client, until=20)
            client.close()
    publish(gateway, [b"last"], version)
    client = SessionClient(gateway, "receiver", version)
    receiver.run(client, until=21)
    client.close()
    assert receiver.bodies == [*bodies, b"last"], "each once, in order, and none after the last"


@pytest.mark.parametrize("pattern", ["$share/group/topic/once/#", "queue/once"])
@pytest.mark.parametrize("stop_at", [p.Publish, p.PubRel])
def test_shared_consumer_gets_each_message_once_across_kills(gateway: Waypost, pattern: str, stop_at: type) -> None:
    """One of several consumers gets each message once, from a queue or a shared subscription.

    After a restart its packet identifiers must not be given to other messages, which it would mistake for known ones.
    """
    topic = "queue/once" if pattern == "queue/once" else "topic/once/a"
    subscribe(gateway, 5, pattern)
    bodies = [b"%d" % i for i in range(20)]
    publish(gateway, bodies, 5, topic)
    receiver = Receiver()
    client = SessionClient(gateway, "receiver")
    receiver.run(client, until=20, stop_at=stop_at, after=7)
    gateway.kill()
    client.close()
    gateway.start()
    publish(gateway, [b"20", b"21"], 5, topic)
    client = SessionClient(gateway, "receiver")
    assert client.session_present
    receiver.run(client, until=22)
    client.close()
    assert sorted(receiver.bodies) == sorted([*bodies, b"20", b"21"])


def test_message_taken_by_another_member_leaves_no_open_exchange(gateway: Waypost) -> None:
    subscribe(gateway, 5, "$share/group/topic/once/#")
    publish(gateway, [b"%d" % i for i in range(5)], 5)
    receiver, other = Receiver(), Receiver()
    client = SessionClient(gateway, "receiver")
    receiver.run(client, until=5, stop_at=p.Publish, after=4)
    gateway.kill()
    client.close()
    gateway.start()
    client = SessionClient(gateway, "other")
    client.send(p.Subscribe(1, (SubscriptionRequest("$share/group/topic/once/#", 2),)))
    assert isinstance(client.next(), p.SubAck)
    other.run(client, until=1)
    client.close()
    for number in range(2):
        gateway.kill()
        gateway.start()
        publish(gateway, [b"x%d" % number, b"y%d" % number], 5)
        client = SessionClient(gateway, "receiver")
        receiver.run(client, until=len(receiver.bodies) + 2)
        client.close()
    assert not receiver.seen
    found = {*receiver.bodies, *other.bodies}
    assert found == {b"0", b"1", b"2", b"3", b"4", b"x0", b"y0", b"x1", b"y1"}


@pytest.mark.parametrize("version", [4, 5])
def test_repeated_publish_after_kill_counts_once(gateway: Waypost, version: int) -> None:
    """A publisher that repeats a PUBLISH after a kill, with the same identifier, publishes once."""
    subscribe(gateway, version)
    expected = [b"%d" % i for i in range(6)]
    for body, released in zip(expected, itertools.cycle((False, True)), strict=False):
        client = SessionClient(gateway, "sender", version)
        client.send(p.Publish("topic/once/a", body, 2, packet_id=7))
        assert isinstance(client.next(), p.PubRec)
        gateway.kill()
        client.close()
        gateway.start()
        client = SessionClient(gateway, "sender", version)
        assert client.session_present
        if not released:
            client.send(p.Publish("topic/once/a", body, 2, dup=True, packet_id=7))
            assert isinstance(client.next(), p.PubRec)
        client.send(p.PubRel(7))
        assert isinstance(client.next(), p.PubComp)
        client.close()
    receiver = Receiver()
    client = SessionClient(gateway, "receiver", version)
    receiver.run(client, until=6)
    client.close()
    assert receiver.bodies == expected


@pytest.mark.parametrize("version", [4, 5])
def test_packet_identifier_is_free_after_pubcomp_across_kill(gateway: Waypost, version: int) -> None:
    """An identifier is free after PUBCOMP, also across a kill.

    The sender uses it for its next message, and repeats that with DUP, without an answer. The gateway must not mistake
    it for the former message.
    """
    subscribe(gateway, version)
    expected = [b"%d" % i for i in range(6)]
    for number, body in enumerate(expected):
        client = SessionClient(gateway, "sender", version)
        client.send(p.Publish("topic/once/a", body, 2, dup=number > 0, packet_id=7))
        assert isinstance(client.next(), p.PubRec)
        client.send(p.PubRel(7))
        assert isinstance(client.next(), p.PubComp)
        gateway.kill()
        client.close()
        gateway.start()
    receiver = Receiver()
    client = SessionClient(gateway, "receiver", version)
    receiver.run(client, until=6)
    client.close()
    assert receiver.bodies == expected


def asked(gateway: Waypost) -> tuple[SessionClient, SessionClient, p.Publish]:
    """Return a consumer, a sender, and a QoS 2 message that the consumer has not answered."""
    consumer = SessionClient(gateway, "consumer")
    consumer.send(p.Subscribe(1, (SubscriptionRequest("anycast/once", 1),)))
    assert isinstance(consumer.next(), p.SubAck)
    sender = SessionClient(gateway, "asking")
    sender.send(p.Publish("anycast/once", b"ask", 2, packet_id=7))
    question = consumer.next()
    assert isinstance(question, p.Publish)
    return consumer, sender, question


def test_unanswered_anycast_message_is_delivered_again_after_kill(gateway: Waypost) -> None:
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
    consumer, sender = SessionClient(gateway, "consumer"), SessionClient(gateway, "asking")
    sender.send(p.Publish("anycast/once", b"ask", 2, dup=True, packet_id=7))
    again = consumer.next()
    assert isinstance(again, p.Publish)
    assert again.payload == b"ask"
    consumer.send(p.PubAck(again.packet_id))
    assert sender.next() == p.PubRec(7)
    consumer.close()
    sender.close()


def test_anycast_answer_goes_to_new_connection_of_sender(gateway: Waypost) -> None:
    consumer, sender, question = asked(gateway)
    sender.close()
    sender = SessionClient(gateway, "asking")
    sender.send(p.Publish("anycast/once", b"ask", 2, dup=True, packet_id=7), p.PingReq())
    assert sender.next() == p.PingResp(), "and nothing before it"
    consumer.send(p.PubAck(question.packet_id))
    assert sender.next() == p.PubRec(7)
    consumer.close()
    sender.close()
