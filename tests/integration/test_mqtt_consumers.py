"""MQTT clients as competing consumers: messages after one of them stops, or while none is connected."""

from __future__ import annotations

import itertools

import pytest

from edge.broker.limits import ANYCAST_HELD_MAX
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets as p
from tests.support.amqp_client import connect_amqp
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, wait_until

WAIT_S = 20.0
KEPT = Properties(session_expiry_interval_s=100)
_names = itertools.count()


def consumer(gateway: Waypost, pattern: str) -> Raw:
    """Connect a client with a kept session that consumes in turn at QoS 2."""
    client = Raw(gateway, 5).connect(f"consumer-{next(_names)}", properties=KEPT)
    assert client.subscribe(pattern, qos=2) == [2]
    return client


def publish(gateway: Waypost, address: str, *bodies: bytes) -> None:
    """Publish the bodies in order; the gateway takes each one."""
    with Raw(gateway, 5).connect("publisher") as client:
        for packet_id, body in enumerate(bodies, 1):
            client.send(p.Publish(address, body, 2, packet_id=packet_id))
            assert client.receive() == p.PubRec(packet_id)
            client.send(p.PubRel(packet_id))
            assert client.receive() == p.PubComp(packet_id)


def take(client: Raw) -> p.Publish:
    packet = client.receive()
    assert isinstance(packet, p.Publish), packet
    return packet


def finish(client: Raw, packet_id: int, *, received: bool = False) -> None:
    """Complete a QoS 2 exchange."""
    if not received:
        client.send(p.PubRec(packet_id))
        assert client.receive() == p.PubRel(packet_id)
    client.send(p.PubComp(packet_id))


def quiet(client: Raw) -> bool:
    """Return True when nothing arrives before the answer to a ping."""
    return isinstance(client.send(p.PingReq()).receive(), p.PingResp)


@pytest.mark.parametrize("pattern", ["queue/unsubscribed", "$share/group/topic/unsubscribed"])
def test_message_in_flight_stays_with_a_client_that_unsubscribes(gateway: Waypost, pattern: str) -> None:
    """A client may complete a QoS 2 message after it unsubscribes [MQTT-3.10.4-3]; no other client gets it."""
    address = pattern.removeprefix("$share/group/")
    with consumer(gateway, pattern) as leaving, consumer(gateway, pattern) as staying:
        publish(gateway, address, *(b"%d" % i for i in range(4)))
        theirs = [take(leaving), take(leaving)]
        others = [take(staying), take(staying)]
        leaving.send(p.PubRec(theirs[0].packet_id))
        assert leaving.receive() == p.PubRel(theirs[0].packet_id)
        leaving.send(p.Unsubscribe(9, (pattern,)))
        assert isinstance(leaving.receive(), p.UnsubAck)
        for each in others:
            finish(staying, each.packet_id)
        assert quiet(staying)
        finish(leaving, theirs[0].packet_id, received=True)
        finish(leaving, theirs[1].packet_id)
        assert quiet(leaving)
        publish(gateway, address, b"last")
        assert take(staying).payload == b"last"
        assert {each.payload for each in theirs + others} == {b"0", b"1", b"2", b"3"}


def test_unreceived_messages_of_an_ended_session_go_to_other_consumers(gateway: Waypost) -> None:
    with consumer(gateway, "queue/ended") as leaving:
        publish(gateway, "queue/ended", b"received", b"not received")
        first, _second = take(leaving), take(leaving)
        leaving.send(p.PubRec(first.packet_id))
        assert leaving.receive() == p.PubRel(first.packet_id)
        leaving.send(p.Unsubscribe(9, ("queue/ended",)))
        assert isinstance(leaving.receive(), p.UnsubAck)
        with consumer(gateway, "queue/ended") as staying:
            assert quiet(staying)
            leaving.send(p.Disconnect(properties=Properties(session_expiry_interval_s=0)))
            assert take(staying).payload == b"not received"


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("qos", [1, 2])
def test_an_anycast_message_waits_for_its_first_consumer(gateway: Waypost, version: int, qos: int) -> None:
    """MQTT 5 has a reason code for a missing consumer.

    An older client would read each answer as success, so its message waits, and later answers with it [MQTT-4.6.0-2].
    """
    address, answer = f"anycast/first/{version}/{qos}", p.PubAck if qos == 1 else p.PubRec
    with Raw(gateway, version).connect(f"older-{version}-{qos}") as client:
        client.send(p.Publish(address, b"x", qos, packet_id=1))
        assert quiet(client)
        client.send(p.Publish("multicast/nobody", b"x", qos, packet_id=2))
        assert quiet(client)
        with consumer(gateway, address) as first:
            packet = take(first)
            assert packet.payload == b"x"
            if packet.qos == 1:
                first.send(p.PubAck(packet.packet_id))
            else:
                finish(first, packet.packet_id)
            assert [client.receive(), client.receive()] == [answer(1), answer(2)]


def test_absent_session_is_no_consumer_of_a_multicast_address(gateway: Waypost) -> None:
    """A multicast address stores nothing for an absent session, so publishers of each protocol learn that no consumer
    is connected.
    """
    address = "multicast/away"

    def post() -> int:
        return ask(gateway, "POST", f"/t/{address}", b"x").status

    with Raw(gateway, 5).connect("away", properties=KEPT) as client:
        assert client.subscribe(address, qos=1) == [1]
        assert post() == 202
    with Raw(gateway, 5).connect("publisher-to-absent") as publisher:

        def reason() -> ReasonCode:
            answer = publisher.send(p.Publish(address, b"x", 1, packet_id=1)).receive()
            assert isinstance(answer, p.PubAck)
            return answer.reason

        wait_until(lambda: reason() is ReasonCode.NO_MATCHING_SUBSCRIBERS, timeout_s=WAIT_S, what="known to be away")
        assert post() == 503
        sending = connect_amqp(gateway)
        sender = sending.create_sender(address)
        assert sender.link.credit == 0
        with Raw(gateway, 5).connect("away", clean_start=False, properties=KEPT) as client:
            sending.wait(lambda: sender.link.credit > 0, timeout=WAIT_S)
            assert reason() is ReasonCode.SUCCESS
            assert post() == 202
        sending.close()


@pytest.mark.parametrize("version", [3, 4])
def test_more_pending_messages_than_allowed_end_the_connection(gateway: Waypost, version: int) -> None:
    """The client sends the messages again on its next connection [MQTT-4.3.2-2]."""
    with Raw(gateway, version).connect(f"many-{version}") as client:
        client.send(*(p.Publish("anycast/many", b"x", 1, packet_id=i) for i in range(1, ANYCAST_HELD_MAX + 2)))
        assert client.receive() is None
