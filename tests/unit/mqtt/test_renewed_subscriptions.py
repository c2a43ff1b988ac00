"""SUBSCRIBE again with another QoS: no message is lost due to replacing the subscription [MQTT-3.8.4-4]."""

from __future__ import annotations

import pytest

from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.mqtt_sessions import SessionPeer, SessionSite, age_sessions


def request(qos: int, *, no_local: bool = False) -> SubscriptionRequest:
    return SubscriptionRequest("topic/#", qos, no_local, retain_handling=2)


def subscribe(site: SessionSite, peer: SessionPeer, qos: int, *, no_local: bool = False) -> list[p.Publish]:
    """Subscribe; return the messages since the last call."""
    peer.send(p.Subscribe(7, (request(qos, no_local=no_local),)))
    site.settle()
    return received(site, peer)


def received(site: SessionSite, peer: SessionPeer) -> list[p.Publish]:
    site.settle()
    return [each for each in peer.sent() if isinstance(each, p.Publish)]


def publish(site: SessionSite, *bodies: bytes, qos: int = 1) -> None:
    sender = SessionPeer(site, "sender")
    for packet_id, body in enumerate(bodies, 1):
        sender.send(p.Publish("topic/1", body, qos, packet_id=packet_id))
    site.settle()
    sender.lose()


def full(site: SessionSite, qos: int = 1) -> tuple[SessionPeer, list[p.Publish]]:
    """Return a client with a full window and nine waiting messages, and the messages it got."""
    peer = SessionPeer(site, receive_maximum=2)
    subscribe(site, peer, qos)
    publish(site, *(b"%d" % n for n in range(11)), qos=qos)
    sent = received(site, peer)
    assert [each.payload for each in sent] == [b"0", b"1"]
    return peer, sent


def kept(site: SessionSite) -> list[tuple[int, int]]:
    """Return (waiting, outstanding) of each durable subscription."""
    return [(each.backlog, each.outstanding) for each in site.router.durable_subscriptions.figures()]


def assert_session_ends(site: SessionSite) -> None:
    """Check that the session of an absent client ends, with all its state."""
    site.sessions.tick(1.0)
    age_sessions(site, 102.0)
    assert (len(site.sessions), kept(site)) == (0, [])


WAITING = [b"%d" % n for n in range(2, 11)]


@pytest.mark.parametrize("no_local", [False, True])
def test_backlog_is_delivered_under_qos_0(no_local: bool) -> None:
    site = SessionSite()
    peer, sent = full(site)
    assert [(each.payload, each.qos) for each in subscribe(site, peer, 0, no_local=no_local)] == [
        (body, 0) for body in WAITING
    ]
    assert kept(site) == [(0, 2)]  # the client still has to complete the messages in flight
    peer.send(*(p.PubAck(each.packet_id) for each in sent))
    site.settle()
    assert kept(site) == [(0, 0)]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("resting", [False, True])
def test_backlog_of_an_absent_client_under_qos_0_is_delivered_on_return(restart: bool, resting: bool) -> None:
    site = SessionSite()
    peer, _ = full(site)
    peer.driver.congested = True  # it does not read, so messages of QoS 0 wait too
    assert subscribe(site, peer, 0) == []
    peer.lose()
    if restart:
        site.settle()
        site.start()
    if resting:
        age_sessions(site)
    back = SessionPeer(site)
    again = received(site, back)
    assert [each.payload for each in again if each.qos == 0][-9:] == WAITING
    assert {each.payload for each in again} == {b"%d" % n for n in range(11)}


def test_nothing_is_stored_once_all_was_delivered() -> None:
    site = SessionSite()
    peer, sent = full(site)
    subscribe(site, peer, 0)
    peer.send(*(p.PubAck(each.packet_id) for each in sent))
    site.settle()
    peer.lose()
    site.settle()
    assert kept(site) == []
    publish(site, b"nobody is there")
    back = SessionPeer(site)
    assert received(site, back) == []
    publish(site, b"now")
    assert [(each.payload, each.qos) for each in received(site, back)] == [(b"now", 0)]


def test_ended_session_leaves_nothing() -> None:
    site = SessionSite()
    peer, _ = full(site)
    peer.driver.congested = True
    subscribe(site, peer, 0)
    peer.lose()
    site.settle()
    site.start()
    assert kept(site) == [(11, 0)]
    assert_session_ends(site)


def test_shared_subscription_of_qos_0_ends_with_its_absent_session() -> None:
    site = SessionSite()
    peer = SessionPeer(site)
    peer.send(p.Subscribe(1, (SubscriptionRequest("$share/g/topic/#", 0),)))
    site.settle()
    peer.lose()
    site.settle()
    site.start()
    assert kept(site) == [(0, 0)]
    assert_session_ends(site)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("released", [False, True])
def test_qos_2_exchange_completes_at_its_original_level_over_a_restart(qos: int, released: bool) -> None:
    """The client may have forwarded the message, so it must not come again under another identifier."""
    site = SessionSite()
    peer, sent = full(site, 2)
    if released:
        peer.send(p.PubRec(sent[0].packet_id))
        site.settle()
    peer.driver.congested = True
    subscribe(site, peer, qos)
    peer.lose()
    site.settle()
    site.start()
    back = SessionPeer(site)
    site.settle()
    packets = back.sent()
    again = [each for each in packets if isinstance(each, p.Publish)]
    expected = [(each.payload, 2, True) for each in (sent[1:] if released else sent)]
    assert [(each.payload, each.qos, each.dup) for each in again[: len(expected)]] == expected
    assert [(each.payload, each.qos) for each in again[len(expected) :]] == [(body, qos) for body in WAITING]
    assert [each for each in packets if isinstance(each, p.PubRel)] == [p.PubRel(sent[0].packet_id)] * released
    rest = [each.packet_id for each in sent]
    back.send(*(p.PubRec(each) for each in (rest[1:] if released else rest)))
    site.settle()
    back.send(*(p.PubComp(each) for each in rest), *(p.PubAck(each.packet_id) for each in again if each.qos == 1))
    site.settle()
    assert kept(site) == [(0, 0)]


def test_backlog_in_memory_of_an_unstored_session_remains() -> None:
    site = SessionSite()
    peer = SessionPeer(site, expiry_s=0, receive_maximum=2)
    subscribe(site, peer, 1)
    publish(site, *(b"%d" % n for n in range(11)))
    assert len(received(site, peer)) == 2
    assert [(each.payload, each.qos) for each in subscribe(site, peer, 0)] == [(body, 0) for body in WAITING]
