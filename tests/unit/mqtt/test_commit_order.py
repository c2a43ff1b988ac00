"""Sessions and commits in unusual orders: failed commits, commits of other causes, takeovers and errors in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.handler import ConnectionHandler
from edge.broker.store.errors import StoreError
from tests.support.mqtt_sessions import RaisingRouter, SessionPeer, SessionSite


class TestIncoming:
    """A packet identifier on disk promises that the message is stored, and the promise must hold."""

    def test_ended_session_does_not_overwrite_its_successor(self) -> None:
        site = SessionSite()
        old = SessionPeer(site)
        site.settle()
        old.publish(1)
        site.store.failure = StoreError("no")
        site.router.flush()  # the commit with message 1 runs
        site.store.failure = None
        new = SessionPeer(site, clean_start=True, waits=True)
        new.publish(2)
        site.end_commit()  # it fails: the old connection gets a refusal for 1
        site.settle()
        assert site.incoming() == [2]

    def test_identifier_of_a_message_refused_at_once_is_free(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        site.settle()
        peer.publish(1, qos=1)
        peer.publish(2, "$SYS/mine")  # refused, behind the answer to 1
        site.router.flush()
        assert peer.sent() == []
        assert site.incoming() == [], "after a restart message 2 would count as received, and it is nowhere"
        site.end_commit()
        assert [(type(each), each.packet_id, each.reason.failed) for each in peer.sent()] == [
            (p.PubAck, 1, False),
            (p.PubRec, 2, True),
        ]

    def test_identifier_of_a_message_refused_by_a_failed_commit_is_free(self) -> None:
        site = SessionSite()
        peer, consumer = SessionPeer(site), SessionPeer(site, "consumer")
        consumer.send(p.Subscribe(1, (SubscriptionRequest("anycast/1", 1),)))
        site.settle()
        consumer.sent()
        peer.publish(1, "anycast/1", qos=1)  # the consumer takes its time
        peer.publish(2)
        site.store.failure = StoreError("no")
        site.router.flush()
        site.end_commit()
        site.store.failure = None
        SessionPeer(site, "other")
        site.settle()
        assert peer.sent() == []
        assert site.incoming() == []
        consumer.send(p.PubAck(1))
        site.settle()
        assert [(type(each), each.packet_id, each.reason.failed) for each in peer.sent()] == [
            (p.PubAck, 1, False),
            (p.PubRec, 2, True),
        ]

    @pytest.mark.parametrize(("before", "now"), [(4, 4), (5, 4), (4, 5)])
    def test_refused_message_is_new_over_another_connection(self, before: int, now: int) -> None:
        """The CONNACK and the packets behind its CONNECT wait for a later commit."""
        site = SessionSite()
        old = SessionPeer(site, version=before)
        site.settle()
        old.publish(1)
        site.store.failure = StoreError("no")
        site.router.flush()
        old.lose()
        new = SessionPeer(site, version=now, waits=True)
        new.publish(1)
        assert new.sent() == []
        site.store.failure = None
        site.end_commit()
        assert new.sent() == [], "the commit before its own"
        site.settle()
        connack, answer = new.sent()
        assert connack.session_present
        assert answer == p.PubRec(1)
        assert site.incoming() == [1]

    def test_message_that_made_the_router_raise_can_be_repeated(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        site.settle()
        with pytest.raises(LookupError):
            peer.publish(1, RaisingRouter.raises)
        site.settle()
        assert site.incoming() == []
        again = SessionPeer(site)
        assert again.connack.session_present
        again.publish(1)
        site.settle()
        assert [(type(each), each.packet_id) for each in again.sent()] == [(p.PubRec, 1)]
        assert site.incoming() == [1]

    def test_reused_identifier_of_a_refused_message_is_stored(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        peer.publish(1, "$SYS/mine")
        peer.publish(1)
        site.settle()
        assert site.incoming() == [1]


class TestPubcomp:
    def start(self) -> tuple[SessionSite, SessionPeer]:
        site = SessionSite()
        peer = SessionPeer(site)
        peer.publish(1)
        site.settle()
        peer.sent()
        peer.send(p.PubRel(1))
        return site, peer

    def test_pubcomp_waits_for_a_foreign_commit(self) -> None:
        site, peer = self.start()
        assert site.store.commits.flush()
        assert peer.sent() == []
        site.end_commit()
        assert peer.sent() == [p.PubComp(1)]
        assert site.incoming() == []

    def test_earlier_commit_does_not_release_pubcomp(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        peer.publish(1)
        site.settle()
        peer.sent()
        SessionPeer(site, "other", waits=True)
        site.router.flush()  # a commit runs without the PUBREL
        peer.send(p.PubRel(1))
        site.end_commit()
        assert peer.sent() == []
        site.settle()
        assert peer.sent() == [p.PubComp(1)]

    def test_pubcomp_waits_for_the_next_commit_when_its_own_fails(self) -> None:
        site, peer = self.start()
        site.store.failure = StoreError("no")
        site.router.flush()
        site.end_commit()
        assert peer.sent() == []
        assert not site.posted, "nothing starts commit after commit on a medium that fails"
        site.store.failure = None
        site.router.tick()
        site.settle()
        assert peer.sent() == [p.PubComp(1)]
        assert site.incoming() == []


class TestOutgoing:
    def start(self) -> tuple[SessionSite, SessionPeer]:
        site = SessionSite()
        peer = SessionPeer(site)
        peer.send(p.Subscribe(1, (SubscriptionRequest("queue/1", 2),)))
        site.settle()
        sender = SessionPeer(site, "sender")
        sender.publish(9)
        site.settle()
        return site, peer

    def test_publish_and_pubrel_wait_for_a_successful_commit(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        peer.send(p.Subscribe(1, (SubscriptionRequest("queue/1", 2),)))
        site.settle()
        peer.sent()
        SessionPeer(site, "sender").publish(9)
        site.router.flush()
        site.store.failure = StoreError("no")
        site.end_commit()  # the message is on disk: it is delivered, and the commit with its journal fails
        site.end_commit()
        assert peer.sent() == []
        assert not site.posted
        site.store.failure = None
        site.router.tick()
        site.settle()
        assert [type(each) for each in peer.sent()] == [p.Publish]

    @pytest.mark.parametrize("again", [SubscriptionRequest("topic/1", 1), SubscriptionRequest("topic/1", 2, True)])
    @pytest.mark.parametrize("received", [False, True])
    def test_message_in_flight_is_not_repeated_for_a_renewed_subscription(
        self, again: SubscriptionRequest, received: bool
    ) -> None:
        """The client may have forwarded the message, with its PUBREC on the way, when it subscribes with another QoS or
        No Local."""
        site = SessionSite()
        peer = SessionPeer(site)
        peer.send(p.Subscribe(1, (SubscriptionRequest("topic/1", 2),)))
        site.settle()
        SessionPeer(site, "sender").publish(9, "topic/1")
        site.settle()
        assert [type(each) for each in peer.sent()] == [p.SubAck, p.Publish]
        if received:
            peer.send(p.PubRec(1))
            site.settle()
            assert peer.sent() == [p.PubRel(1)]
        peer.send(p.Subscribe(2, (again,)))
        site.settle()
        assert [type(each) for each in peer.sent()] == [p.SubAck]
        peer.send(*([] if received else [p.PubRec(1)]), p.PubComp(1))
        site.settle()
        peer.sent()
        peer.lose()
        new = SessionPeer(site)
        site.settle()
        assert new.sent() == []
        SessionPeer(site, "other").publish(9, "topic/1")
        site.settle()
        assert [type(each) for each in new.sent()] == [p.Publish]
        backlog = [each.backlog + each.outstanding for each in site.router.durable_subscriptions.figures()]
        assert backlog == [1]

    def test_session_may_be_taken_over_while_pubrel_waits(self) -> None:
        site, peer = self.start()
        assert [type(each) for each in peer.sent()][-1] is p.Publish
        peer.send(p.PubRec(1))
        site.router.flush()
        new = SessionPeer(site, waits=True)
        site.end_commit()
        assert new.sent() == []
        site.settle()
        connack, released = new.sent()
        assert connack.session_present
        assert released == p.PubRel(1)
        new.send(p.PubComp(1))
        site.settle()
        assert new.sent() == []


class TestErrors:
    def test_events_behind_an_exception_are_dropped(self) -> None:
        """The last event may be the end of the connection, which is reported only once."""
        site = SessionSite()
        peer = SessionPeer(site)
        with pytest.raises(LookupError):
            peer.send(p.Publish(RaisingRouter.raises, b"x"), p.Disconnect())
        assert site.sessions.connected == 0

    def test_connection_that_raises_can_be_taken_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        site = SessionSite()
        old = SessionPeer(site)
        monkeypatch.setattr(ConnectionHandler, "_release", _raise_once(old.handler, ConnectionHandler._release))
        new = SessionPeer(site)
        assert new.connack.reason is R.SUCCESS
        assert old.driver.aborted
        assert site.sessions.connected == 1
        with pytest.raises(LookupError):
            old.lose()
        assert site.sessions.connected == 1, "the end of the older one is none of the session"


def _raise_once(
    of: ConnectionHandler, release: Callable[[ConnectionHandler], None]
) -> Callable[[ConnectionHandler], None]:
    def raising(handler: ConnectionHandler) -> None:
        if handler is of:
            raise LookupError("a bug")
        release(handler)

    return raising


def test_session_expiry_of_disconnect_applies_after_a_restart() -> None:
    site = SessionSite()
    peer = SessionPeer(site, expiry_s=10)
    site.settle()
    peer.send(p.Disconnect(properties=Properties(session_expiry_interval_s=1_000)))
    site.settle()
    site.start()
    site.sessions.tick(0.0)
    site.sessions.tick(500.0)
    assert len(site.sessions) == 1
    site.sessions.tick(1_001.0)
    assert len(site.sessions) == 0


class TestConnack:
    """CONNACK names the owner of the session, and confirms that a clean start has deleted the old one."""

    def test_connack_waits_for_the_commit_of_a_new_session(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site, waits=True)
        assert peer.sent() == []
        assert site.sessions.connected == 0
        site.settle()
        [connack] = peer.sent()
        assert connack.reason is R.SUCCESS
        assert site.sessions.connected == 1

    @pytest.mark.parametrize("version", [4, 5])
    def test_connack_waits_for_the_end_of_the_previous_session(self, version: int) -> None:
        site = SessionSite()
        SessionPeer(site, version=version).lose()
        site.settle()
        peer = SessionPeer(site, version=version, clean_start=True, expiry_s=0, waits=True)
        assert peer.sent() == []
        assert [client_id for client_id, _ in site.store.medium.items("session")] == ["c"]
        site.settle()
        [connack] = peer.sent()
        assert not connack.session_present
        assert not list(site.store.state.items("session"))

    def test_connack_of_a_session_that_is_not_stored_waits_for_nothing(self) -> None:
        peer = SessionPeer(SessionSite(), clean_start=True, expiry_s=0, waits=True)
        [connack] = peer.sent()
        assert connack.reason is R.SUCCESS

    def test_connack_reports_failure_until_a_commit_succeeds(self) -> None:
        site = SessionSite()
        SessionPeer(site).lose()
        site.settle()
        site.store.failure = StoreError("no")
        for _ in range(2):  # the second finds no session, and its deletion is not on disk
            peer = SessionPeer(site, clean_start=True, expiry_s=0, waits=True)
            site.settle()
            [connack] = peer.sent()
            assert connack.reason is R.SERVER_UNAVAILABLE
            assert peer.connection.closed
            assert site.sessions.connected == 0
        site.store.failure = None
        peer = SessionPeer(site, clean_start=True, expiry_s=0, waits=True)
        assert peer.sent() == []
        site.settle()
        assert not list(site.store.state.items("session"))
        [connack] = peer.sent()
        assert connack.reason is R.SUCCESS

    def test_client_that_leaves_before_connack_releases_the_session(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site, waits=True)
        peer.lose()
        site.settle()
        assert site.sessions.connected == 0
        assert not site.sessions.attached()
        assert SessionPeer(site).connack.session_present

    def test_later_of_two_waiting_clients_gets_the_session(self) -> None:
        site = SessionSite()
        first = SessionPeer(site, waits=True)
        second = SessionPeer(site, waits=True)
        assert first.connection.closed
        site.settle()
        [refused], [connack] = first.sent(), second.sent()
        assert refused.reason is not R.SUCCESS
        assert connack.reason is R.SUCCESS
        assert connack.session_present, "the first made it"
        assert site.sessions.connected == 1

    def test_nothing_is_delivered_before_connack(self) -> None:
        site = SessionSite()
        SessionPeer(site).send(p.Subscribe(1, (SubscriptionRequest("queue/1", 0),)))
        site.settle()
        sender = SessionPeer(site, "sender")
        peer = SessionPeer(site, waits=True)
        sender.publish(1, qos=1)
        site.router.flush()
        site.settle()
        assert [type(each) for each in peer.sent()] == [p.ConnAck, p.Publish]


class TestSubscribed:
    """SUBACK and UNSUBACK report what is on disk, in sessions that outlive their connection."""

    SUBSCRIBE = p.Subscribe(1, (SubscriptionRequest("topic/1", 1),))

    def test_suback_waits_for_the_commit_of_the_subscription(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        peer.send(self.SUBSCRIBE)
        site.router.flush()
        assert peer.sent() == []
        site.settle()
        assert peer.sent() == [p.SubAck(1, (R.GRANTED_QOS_1,))]
        site.start()
        assert site.router.durable_subscriptions, "after a kill it is there"

    def test_suback_waits_for_the_next_commit_when_its_own_fails(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        site.settle()
        peer.sent()
        site.store.failure = StoreError("no")
        peer.send(self.SUBSCRIBE)
        site.settle()
        assert peer.sent() == []
        site.store.failure = None
        peer.publish(7, qos=1)
        site.settle()
        site.settle()
        assert p.SubAck(1, (R.GRANTED_QOS_1,)) in peer.sent()

    def test_unsuback_waits_for_its_commit(self) -> None:
        site = SessionSite()
        peer = SessionPeer(site)
        peer.send(self.SUBSCRIBE)
        site.settle()
        peer.sent()
        peer.send(p.Unsubscribe(2, ("topic/1",)))
        assert peer.sent() == []
        site.settle()
        assert peer.sent() == [p.UnsubAck(2, (R.SUCCESS,))]

    def test_session_that_ends_with_its_connection_is_answered_at_once(self) -> None:
        peer = SessionPeer(SessionSite(), clean_start=True, expiry_s=0)
        peer.send(self.SUBSCRIBE)
        assert peer.sent() == [p.SubAck(1, (R.GRANTED_QOS_1,))]

    def test_connection_that_took_over_gets_no_answers_of_the_old_one(self) -> None:
        site = SessionSite()
        old = SessionPeer(site)
        site.settle()
        old.sent()
        old.send(self.SUBSCRIBE)
        new = SessionPeer(site)
        site.settle()
        assert not any(isinstance(packet, p.SubAck) for packet in [*old.sent(), *new.sent()])
