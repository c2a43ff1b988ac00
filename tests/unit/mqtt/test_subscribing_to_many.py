"""A SUBSCRIBE that matches many queues takes several turns of the loop; SUBACK comes when all of them are joined."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from bridge.message import Run
from edge.broker.limits import PATTERN_SLICE_S
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from tests.unit.amqp import broker as amqp
from tests.unit.mqtt.mixed_clients import MixedSite, MqttClient

QUEUES = 30
BODIES = {b"%d" % number for number in range(QUEUES)}


class Site(MixedSite):
    """A broker with turns of the loop and many queues; each look at its clock takes a third of a slice."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(QUEUES):
            run = Run(f"queue/{number}", "d", 1, b"", [b"%d" % number])
            self.router.publish(Publication(amqp.MqttDevice(), run, (1,)))
        self.settle_down()
        self.turns: deque[Callable[[], None]] = deque()
        self.looks = 0
        self.store.commits.listeners.clear()
        self.router = Router(
            self.store,
            self.router.addresses.table,
            clock_ns=lambda: amqp.CLOCK_NS,
            flush_soon=lambda: None,
            monotonic_s=self.look,
            soon=self.turns.append,
        )
        self.sessions = SessionRegistry(self.router, self.store, MqttTranslator())

    @property
    def under_way(self) -> int:
        """Return the count of messages that consumers hold."""
        return sum(queue.outstanding for queue in self.router.queues.opened.values())

    def look(self) -> float:
        self.looks += 1
        return self.looks * PATTERN_SLICE_S / 3

    def go_on(self, count: int = 1) -> None:
        for _ in range(count):
            for _ in range(len(self.turns)):
                self.turns.popleft()()
            self.settle_down()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture(params=[0, 100])
def peer(request: pytest.FixtureRequest, site: Site) -> MqttClient:
    """Return a client that has sent SUBSCRIBE, with or without a persistent session."""
    client = MqttClient(site, "client", session_expiry_interval_s=request.param)
    client.send(p.Subscribe(1, (SubscriptionRequest("queue/#", 1),)))
    assert client.sent() == []
    return client


def kinds(packets: list[Any]) -> list[type]:
    return list(dict.fromkeys(map(type, packets)))


def payloads(packets: list[Any]) -> set[bytes]:
    return {packet.payload for packet in packets if isinstance(packet, p.Publish)}


def test_suback_comes_when_all_are_joined(site: Site, peer: MqttClient) -> None:
    site.go_on(2)
    assert peer.sent() == []
    site.go_on(100)
    sent = peer.sent()
    assert kinds(sent) == [p.SubAck, p.Publish]
    assert payloads(sent) == BODIES


def test_client_may_unsubscribe_meanwhile(site: Site, peer: MqttClient) -> None:
    site.go_on()
    peer.send(p.Unsubscribe(2, ("queue/#",)))
    site.go_on(100)
    assert kinds(peer.sent()) == [p.SubAck, p.UnsubAck]
    assert not site.turns
    assert not any(queue.group for queue in site.router.queues.opened.values())


def test_client_may_subscribe_to_more_meanwhile(site: Site, peer: MqttClient) -> None:
    site.go_on()
    peer.send(p.Subscribe(2, (SubscriptionRequest("topic/x", 1),)))
    assert peer.sent() == [p.SubAck(2, (1,))]
    site.go_on(100)
    sent = peer.sent()
    assert sent[0] == p.SubAck(1, (1,))
    assert payloads(sent) == BODIES


def test_connection_may_break_meanwhile(site: Site, peer: MqttClient) -> None:
    site.go_on()
    peer.lose()
    site.go_on(100)
    assert peer.sent() == []
    assert not site.turns
    again = MqttClient(site, "client", "queue/#", session_expiry_interval_s=100)
    site.go_on(100)
    assert payloads(again.sent()) <= BODIES
    assert site.under_way == QUEUES


def test_session_may_be_taken_over_meanwhile(site: Site, peer: MqttClient) -> None:
    site.go_on()
    again = MqttClient(site, "client", "queue/#", session_expiry_interval_s=100)
    site.go_on(100)
    assert p.SubAck not in kinds(peer.sent())
    assert payloads(again.sent()) <= BODIES
    assert site.under_way == QUEUES


def test_type_of_the_addresses_may_change_meanwhile(site: Site, peer: MqttClient) -> None:
    site.go_on()
    rules = [AddressRule("queue/#", AddressType.TOPIC)]
    site.router.reconfigure(AddressTable(rules))
    site.go_on(100)
    assert kinds(peer.sent()) == [p.SubAck]
    other = MqttClient(site, "other")
    other.publish("queue/5", b"as a topic")
    assert payloads(peer.sent()) == {b"as a topic"}
