"""CONNACK, SUBACK and UNSUBACK of a session that outlives its connection wait for the disk (DESIGN section 6).

So does the answer to the attach of a durable subscription.
"""

from __future__ import annotations

import pytest

from bridge.amqp_values import Symbol, Uint
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.frames import ATTACH, DETACH, RECEIVER, TRANSFER, FramePeer
from tests.support.processes import Waypost
from tests.support.session_client import SessionClient

ROUNDS = 4
"""Number of rounds; most of them catch a gateway that answers early, as a commit takes a millisecond or so."""


def after_the_kill(gateway: Waypost, *, subscribed: int, version: int) -> list[bytes]:
    """Return what a client that was cut off at its answer gets of one message a topic, topics ``topic/0`` and on."""
    gateway.kill()
    gateway.start()
    sender = SessionClient(gateway, "sender", version)
    for number in range(subscribed):
        sender.send(p.Publish(f"topic/{number}", b"%d" % number, 1, packet_id=number + 1))
        assert isinstance(sender.next(), p.PubAck)
    sender.close()
    receiver = SessionClient(gateway, "receiver", version)
    assert receiver.session_present
    receiver.send(p.PingReq())
    bodies = []
    for _ in range(subscribed):
        packet = receiver.next()
        while isinstance(packet, p.PingResp):
            packet = receiver.next()
        assert isinstance(packet, p.Publish)
        bodies.append(packet.payload)
        receiver.send(p.PubAck(packet.packet_id))
    receiver.send(p.PingReq())
    assert isinstance(receiver.next(), p.PingResp), "the answers have been taken: nothing is sent again"
    receiver.close()
    return bodies


@pytest.mark.parametrize("version", [4, 5])
def test_session_ended_by_clean_start_stays_ended_after_kill_at_connack(gateway: Waypost, version: int) -> None:
    for number in range(ROUNDS):
        client = SessionClient(gateway, "receiver", version)
        assert not client.session_present
        client.send(p.Subscribe(1, (SubscriptionRequest(f"topic/{number}", 1),)))
        assert isinstance(client.next(), p.SubAck)
        anew = SessionClient(gateway, "receiver", version, lasting=False)
        assert not anew.session_present
        gateway.kill()
        gateway.start()
        client.close()
        anew.close()


@pytest.mark.parametrize("version", [4, 5])
def test_new_session_survives_kill_at_connack(gateway: Waypost, version: int) -> None:
    for number in range(ROUNDS):
        client = SessionClient(gateway, f"receiver-{number}", version)
        gateway.kill()
        gateway.start()
        again = SessionClient(gateway, f"receiver-{number}", version)
        assert again.session_present
        client.close()
        again.close()


@pytest.mark.parametrize("version", [4, 5])
def test_subscription_survives_kill_at_suback(gateway: Waypost, version: int) -> None:
    for number in range(ROUNDS):
        client = SessionClient(gateway, "receiver", version)
        client.send(p.Subscribe(1, (SubscriptionRequest(f"topic/{number}", 1),)))
        assert isinstance(client.next(), p.SubAck)
        found = after_the_kill(gateway, subscribed=number + 1, version=version)
        assert sorted(found) == [b"%d" % each for each in range(number + 1)]
        client.close()


def attached(gateway: Waypost, number: int) -> FramePeer:
    """Attach a receiver with a durable subscription to ``topic/<number>``, and wait for the answer."""
    peer = FramePeer(gateway.port("amqp"), "receiver")
    peer.begin()
    durable = (Uint(2), Symbol("never"))  # unsettled-state, section 3.5.5; expiry policy, section 3.5.6
    peer.attach(f"link-{number}", 0, RECEIVER, f"topic/{number}", source=durable)
    peer.expect(ATTACH)
    return peer


def test_durable_amqp_subscription_survives_kill_at_attach(gateway: Waypost) -> None:
    for number in range(ROUNDS):
        with attached(gateway, number):
            gateway.kill()
        gateway.start()
        sender = SessionClient(gateway, "sender", 5)
        sender.send(p.Publish(f"topic/{number}", b"%d" % number, 1, packet_id=1))
        assert isinstance(sender.next(), p.PubAck)
        sender.close()
        with attached(gateway, number) as peer:
            assert peer.grant(0, 1).expect(TRANSFER).payload.endswith(b"%d" % number)


def test_closed_amqp_subscription_stays_closed_after_kill_at_detach(gateway: Waypost) -> None:
    for number in range(ROUNDS):
        with attached(gateway, number) as peer:
            peer.send(DETACH, Uint(0), True).expect(DETACH)
            gateway.kill()
        gateway.start()
        sender = SessionClient(gateway, "sender", 5)
        publish(sender, number, b"kept for nobody")
        with attached(gateway, number) as peer:
            publish(sender, number, b"%d" % number)
            assert peer.grant(0, 1).expect(TRANSFER).payload.endswith(b"%d" % number)
        sender.close()


def publish(sender: SessionClient, number: int, body: bytes) -> None:
    sender.send(p.Publish(f"topic/{number}", body, 1, packet_id=1))
    assert isinstance(sender.next(), p.PubAck)
