"""Sessions of absent clients are rows of the store, without a difference for clients and the status page."""

from __future__ import annotations

import pytest

from bridge.message import Run
from edge.broker.delivery.durable import Declaration
from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressTable
from edge.broker.mqtt import packets as p
from edge.broker.mqtt import session_table
from edge.broker.mqtt.events import SubscriptionRequest, Will
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.retention.names import NameKind
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError
from tests.support.mqtt_sessions import RULES, SessionPeer, SessionSite, age_sessions


def all_rows(site: SessionSite) -> bool:
    return not site.sessions._table.opened


def subscribed(
    site: SessionSite, *requests: SubscriptionRequest, identifier: int | None = None, expiry_s: int = 100
) -> SessionPeer:
    peer = SessionPeer(site, expiry_s=expiry_s)
    properties = Properties(subscription_identifier=(identifier,)) if identifier else Properties()
    peer.send(p.Subscribe(1, requests, properties))
    site.settle()
    peer.sent()
    return peer


def test_session_is_restored_unchanged() -> None:
    site = SessionSite()
    request = SubscriptionRequest("topic/+", 1, retain_as_published=True, retain_handling=2)
    subscribed(site, request, identifier=7).lose()
    age_sessions(site)
    assert all_rows(site)
    assert (len(site.sessions), site.sessions.owner("c"), site.sessions.connected) == (1, "", 0)
    SessionPeer(site, "other").publish(1, "topic/1", qos=1)
    age_sessions(site)
    assert site.sessions._figures().subscriptions == 1
    back = SessionPeer(site)
    assert back.connack.session_present
    site.settle()
    [subscriber] = site.sessions._table.opened["c"].subscribers.values()
    assert (subscriber.request, subscriber.identifiers) == (request, (7,))
    [message] = [each for each in back.sent() if isinstance(each, p.Publish)]
    assert (message.topic, message.properties.subscription_identifier) == ("topic/1", (7,))


def test_packet_identifiers_of_qos_2_are_restored() -> None:
    site = SessionSite()
    peer = SessionPeer(site)
    peer.publish(7)
    site.settle()
    peer.lose()
    age_sessions(site)
    assert all_rows(site)
    back = SessionPeer(site)
    back.publish(7)
    site.settle()
    assert [type(each) for each in back.sent()] == [p.PubRec]
    assert site.router.queues["queue/1"].backlog == 1, "the same message once more is not another one"
    back.send(p.PubRel(7))
    site.settle()
    assert [type(each) for each in back.sent()] == [p.PubComp]
    assert site.incoming() == []


def test_message_held_by_a_consumer_is_not_published_again() -> None:
    """The identifier of an anycast message is on disk with the session: its consumer has the message."""
    site = SessionSite()
    consumer, peer = SessionPeer(site, "consumer"), SessionPeer(site)
    consumer.send(p.Subscribe(1, (SubscriptionRequest("anycast/1", 1),)))
    site.settle()
    consumer.sent()
    peer.publish(7, "anycast/1")
    [message] = consumer.sent()
    consumer.send(p.PubAck(message.packet_id))
    assert [type(each) for each in peer.sent()] == [p.PubRec]
    peer.lose()
    age_sessions(site)
    assert "c" not in site.sessions._table.opened
    assert site.incoming() == [7]
    back = SessionPeer(site)
    back.publish(7, "anycast/1")
    site.settle()
    assert [type(each) for each in back.sent()] == [p.PubRec]
    assert consumer.sent() == []


def test_unreadable_session_is_read_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    site = SessionSite()
    subscribed(site, SubscriptionRequest("topic/1", 1), expiry_s=10).lose()
    age_sessions(site)
    with monkeypatch.context() as broken:

        def fail(kind: str, key: str) -> bytes:
            raise StoreError("the medium fails")

        broken.setattr(site.store.state, "get", fail)
        site.sessions.tick(12.0)
    assert len(site.sessions) == 1
    site.sessions.tick(14.0)
    assert len(site.sessions) == 0


def test_session_deleted_by_another_program_starts_empty() -> None:
    site = SessionSite()
    subscribed(site, SubscriptionRequest("topic/1", 1)).lose()
    age_sessions(site)
    site.store.state.delete("session", "c")
    assert not SessionPeer(site).connack.session_present


def test_session_with_messages_in_flight_stays_in_memory_for_a_while() -> None:
    site = SessionSite()
    peer = subscribed(site, SubscriptionRequest("topic/1", 2))
    SessionPeer(site, "other", expiry_s=0).publish(1, "topic/1", qos=2)
    site.settle()
    site.settle()
    [message] = [each for each in peer.sent() if isinstance(each, p.Publish)]
    peer.lose()
    age_sessions(site)
    assert "c" in site.sessions._table.opened
    back = SessionPeer(site)
    site.settle()
    back.send(p.PubRec(message.packet_id or 0))
    site.settle()
    back.send(p.PubComp(message.packet_id or 0))
    age_sessions(site)
    back.lose()
    for _ in range(3):
        age_sessions(site)
    assert "c" not in site.sessions._table.opened
    assert dict(site.store.state.items("outgoing")).get("c", b"") == b""


def test_session_ends_at_its_expiry() -> None:
    site = SessionSite()
    subscribed(site, SubscriptionRequest("topic/1", 1), expiry_s=10).lose()
    age_sessions(site)
    assert all_rows(site)
    site.sessions.tick(9.0)
    assert len(site.sessions) == 1
    site.sessions.tick(11.0)
    age_sessions(site, 11.0)
    assert len(site.sessions) == len(site.router.durable_subscriptions) == 0
    assert site.router.names.count(NameKind.SESSION) == site.router.names.count(NameKind.SUBSCRIPTION) == 0
    assert list(site.store.state.items("session")) == []
    assert not SessionPeer(site).connack.session_present


def test_delayed_will_is_published() -> None:
    site = SessionSite()
    reader = subscribed(site, SubscriptionRequest("will", 0))
    peer = SessionPeer(site, "other")
    session = site.sessions._table.opened["other"]
    peer.lose()
    site.sessions._schedule_will(session, Will(Run("will", "other", 0, b"", [b"gone"]), 30), 0.0)
    age_sessions(site)
    assert "other" in site.sessions._table.opened
    assert reader.sent() == []
    age_sessions(site, 31.0)
    assert [each.payload for each in reader.sent() if isinstance(each, p.Publish)] == [b"gone"]
    assert "other" not in site.sessions._table.opened


def test_many_absent_sessions_are_all_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "SESSIONS_AWAY_MAX", 3)
    site = SessionSite()
    peers = [SessionPeer(site, f"c{i}") for i in range(5)]
    site.settle()
    for peer in peers:
        peer.lose()
    site.sessions.tick(0.1)
    assert all_rows(site)
    SessionPeer(site).lose()
    site.sessions.tick(0.2)
    assert list(site.sessions._table.opened) == ["c"]


def test_session_with_many_subscriptions_counts_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "SESSIONS_AWAY_MAX", 3)
    site = SessionSite()
    few, many = SessionPeer(site, "few"), subscribed(site, *(SubscriptionRequest(f"topic/{i}", 1) for i in range(3)))
    few.lose()
    site.sessions.tick(0.1)
    assert len(site.sessions._table.opened) == 2, "its client may come back soon"
    many.lose()
    site.router.tick()
    site.sessions.tick(0.2)
    assert not site.sessions._table.opened


def test_packet_identifiers_count_for_the_user() -> None:
    site = SessionSite()
    limits = Limits(sessions_max=3)
    site.router = Router(site.store, AddressTable(RULES), clock_ns=lambda: 1, flush_soon=lambda: None, limits=limits)
    site.sessions = SessionRegistry(site.router, site.store, MqttTranslator())
    few, many = SessionPeer(site, "few"), SessionPeer(site, "many")
    few.publish(1)
    for packet_id in range(1, 400):
        many.publish(packet_id)
    site.settle()
    few.lose()
    many.lose()
    age_sessions(site)
    assert (len(site.sessions), site.router.names.count(NameKind.SESSION)) == (1, 1)
    assert SessionPeer(site, "few").connack.session_present
    assert not SessionPeer(site, "many").connack.session_present
    assert site.incoming("many") == []


def test_sessions_are_restored_after_a_restart() -> None:
    site = SessionSite()
    peer = subscribed(site, SubscriptionRequest("topic/1", 1), SubscriptionRequest("$share/g/topic/2", 1), expiry_s=50)
    peer.publish(5)
    site.settle()
    site.start()
    assert all_rows(site)
    assert not site.router.durable_subscriptions.opened
    site.sessions.tick(1_000.0)  # for the registry the clients are away from now on
    site.sessions.tick(1_049.0)
    assert (len(site.sessions), len(site.router.durable_subscriptions)) == (1, 2)
    assert site.sessions._table.get("c") is not None
    assert site.sessions._table.opened["c"].state.incoming == {5}
    age_sessions(site, 1_051.0)
    assert len(site.sessions) == len(site.router.durable_subscriptions) == 0


def test_amqp_subscription_named_like_a_shared_one_survives_a_restart() -> None:
    """No client ended ``share/news::mine``; the shared subscription without a session did end."""
    site = SessionSite()
    for name, all_qos in (("share/news::mine", True), ("share/g/news", False)):
        site.router.subscriptions.declare(Declaration(name=name, pattern="share/news", all_qos=all_qos))
    site.settle()
    site.start()
    assert list(site.router.durable_subscriptions) == ["share/news::mine"]


def test_session_in_rows_can_be_taken_over() -> None:
    site = SessionSite()
    subscribed(site, SubscriptionRequest("topic/1", 1)).lose()
    age_sessions(site)
    assert SessionPeer(site, clean_start=True).connack.reason is R.SUCCESS
    site.settle()
    assert (len(site.sessions), len(site.router.durable_subscriptions)) == (1, 0)
