"""Retained messages to a client that subscribes to many: a part in each turn of the loop, without a list in advance."""

from __future__ import annotations

import pytest

from bridge.message import RETAIN, Run
from edge.broker.limits import RETAINED_STEPS_MAX
from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.unit.mqtt.gated_sessions import GatedPeer, GatedSite, admitted

COUNT = RETAINED_STEPS_MAX * 2


@pytest.fixture
def site() -> GatedSite:
    made = GatedSite()
    for i in range(COUNT):
        made.router.retained.put(Run(f"up/{i}", "d", RETAIN | 1, b"", [b"%d" % i]), "")
    return made


def subscribe(peer: GatedPeer, *filters: str, qos: int = 0) -> None:
    peer.send(packets.Subscribe(3, tuple(SubscriptionRequest(each, qos) for each in filters)))


def turn(peer: GatedPeer) -> list[str]:
    """Return the received topics; run the next turn of the loop."""
    found = [packet.topic for packet in peer.sent() if isinstance(packet, packets.Publish)]
    for _ in range(len(peer.site.turns)):
        peer.site.turns.popleft()()
    return found


def test_each_turn_sends_a_part_until_all_are_sent(site: GatedSite) -> None:
    peer = admitted(site, 5)
    subscribe(peer, "up/#")
    parts = []
    while part := turn(peer):
        parts.append(part)
    assert all(len(part) <= RETAINED_STEPS_MAX for part in parts)
    assert len(parts) == 3, "the names, and the level above them"
    assert sorted(each for part in parts for each in part) == sorted(f"up/{i}" for i in range(COUNT))


def test_names_that_do_not_match_count(site: GatedSite) -> None:
    """Ten filters find one message each, and each has to search all names."""
    peer = admitted(site, 5)
    subscribe(peer, *(f"up/+/{i}" for i in range(9)), "up/7")
    turns, found = 1, turn(peer)
    while peer.site.turns:
        turns += 1
        found += turn(peer)
    assert (turns >= 9 * 2, found + turn(peer)) == (True, ["up/7"])


def test_messages_no_longer_requested_are_not_sent(site: GatedSite) -> None:
    peer = admitted(site, 5)
    subscribe(peer, "up/#")
    assert len(turn(peer)) < COUNT
    peer.send(packets.Unsubscribe(4, ("up/#",)))
    first = turn(peer)  # from the turn before UNSUBSCRIBE
    assert len(first) <= RETAINED_STEPS_MAX
    assert turn(peer) == []
    assert not peer.site.turns


def test_renewed_subscription_restarts_without_accumulating(site: GatedSite) -> None:
    peer = admitted(site, 5)
    for _ in range(50):
        subscribe(peer, "up/#")
    found: list[str] = []
    while part := turn(peer):
        found += part
    assert COUNT <= len(found) < COUNT * 2


def test_window_of_the_client_is_respected(site: GatedSite) -> None:
    peer = admitted(site, 5, properties=Properties(receive_maximum=3))
    subscribe(peer, "up/#", qos=1)
    seen = 0
    for _ in range(20):
        publishes = [packet for packet in peer.sent() if isinstance(packet, packets.Publish)]
        assert len(publishes) == 3
        seen += 3
        for packet in publishes:
            peer.send(packets.PubAck(packet.packet_id))
    assert seen == 60


def test_delivery_stops_when_the_client_disconnects(site: GatedSite) -> None:
    peer = admitted(site, 5)
    subscribe(peer, "up/#")
    peer.session.handle(peer.connection.receive_eof(1.0))
    assert len(peer.site.turns) == 1
    turn(peer)
    assert not peer.site.turns
