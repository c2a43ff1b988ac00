"""QoS 2 over the device API, without authentication of devices, and with sessions that outlive their connections."""

from __future__ import annotations

import pytest

from edge.broker.configuration import DeviceApiConfiguration
from edge.broker.hono.mqtt import DeviceInterception
from edge.broker.hono.service import DeviceService
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.interfaces import Refusal
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.answers import REASONS
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.store.errors import StoreError
from tests.support.mqtt_sessions import SessionPeer, SessionSite

ADDRESS, TOPIC = "event/t", "event/t/4711"


class Devices(SessionSite):
    """A site with the device API."""

    rules = [AddressRule(ADDRESS, AddressType.QUEUE)]  # noqa: RUF012 - as in the base

    def start(self) -> None:
        super().start()
        self.interception = DeviceInterception(
            DeviceService(DeviceApiConfiguration(tenant="t"), self.router, self.store.state)
        )

    @property
    def stored(self) -> int:
        return self.router.queues[ADDRESS].backlog


class Handed(Devices):
    """A site that hands events to an application and does not store them."""

    rules = [AddressRule(ADDRESS, AddressType.ANYCAST)]  # noqa: RUF012 - as in the base


def refused(site: Devices, peer: SessionPeer, topic: str) -> None:
    """Let the commit of a message fail; the next commit writes its other changes."""
    peer.publish(1, topic)
    site.store.failure = StoreError("no")
    site.settle()
    site.store.failure = None
    site.store.state.put("test", "test", b"")
    site.settle()
    assert site.router.figures.refused == 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("bag", ["", "/?on-error=skip-ack", "/?on-error=disconnect"])
@pytest.mark.parametrize("restarted", [False, True])
def test_refused_message_is_accepted_when_repeated(version: int, bag: str, *, restarted: bool) -> None:
    site = Devices()
    peer = SessionPeer(site, version=version)
    refused(site, peer, TOPIC + bag)
    assert not [each for each in peer.sent() if isinstance(each, p.PubRec)]
    assert site.incoming() == []
    peer.lose()
    site.settle()
    if restarted:
        site.start()
    again = SessionPeer(site, version=version)
    again.publish(1, TOPIC + bag)
    site.settle()
    assert [each.packet_id for each in again.sent() if isinstance(each, p.PubRec)] == [1]
    assert site.stored == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_identifier_of_a_refused_message_is_free(*, restarted: bool) -> None:
    """A PUBREC with an error ends the exchange [MQTT-4.3.3-9]."""
    site = Devices()
    peer = SessionPeer(site)
    refused(site, peer, TOPIC + "/?on-error=ignore")
    assert [each.packet_id for each in peer.sent() if isinstance(each, p.PubRec)] == [1]
    assert site.incoming() == []
    if restarted:
        peer.lose()
        site.settle()
        site.start()
        peer = SessionPeer(site)
    peer.publish(1, TOPIC)
    site.settle()
    assert [each.packet_id for each in peer.sent() if isinstance(each, p.PubRec)] == [1]
    assert site.stored == 1


@pytest.mark.parametrize("version", [4, 5])
def test_message_that_was_never_published_may_be_repeated(version: int) -> None:
    """A message with an invalid topic is dropped; a client before MQTT 5 gets no error."""
    site = Devices()
    peer = SessionPeer(site, version=version)
    peer.publish(1, "event/t/no device/?on-error=skip-ack")
    site.settle()
    peer.publish(1, TOPIC)
    site.settle()
    assert [each.packet_id for each in peer.sent() if isinstance(each, p.PubRec)] == [1]
    assert site.stored == 1


@pytest.mark.parametrize("version", [4, 5])
def test_message_repeated_before_its_refusal_is_refused(version: int) -> None:
    """The connection that took over gets the error, or is closed when its version has no error."""
    site = Handed()
    application = SessionPeer(site, "application")
    application.send(p.Subscribe(1, (SubscriptionRequest(ADDRESS, 1),)))
    site.settle()
    application.sent()
    SessionPeer(site, version=version).publish(1, TOPIC)
    again = SessionPeer(site, version=version)
    again.publish(1, TOPIC)
    site.settle()
    [handed] = [each for each in application.sent() if isinstance(each, p.Publish)]
    application.send(p.PubAck(handed.packet_id, ReasonCode.UNSPECIFIED_ERROR))
    site.settle()
    answers = [each.reason for each in again.sent() if isinstance(each, p.PubRec)]
    assert (answers, again.connection.closed) == (([], True) if version == 4 else ([REASONS[Refusal.REJECTED]], False))
    last = SessionPeer(site, version=version) if version == 4 else again
    last.publish(1, TOPIC)
    site.settle()
    assert [each for each in application.sent() if isinstance(each, p.Publish)], "it is taken, and handed on anew"
