"""Deliveries that wait for a turn of the loop when a connection ends go to the next connection or to other
consumers."""

from __future__ import annotations

import pytest

from bridge.amqp_values import encode
from bridge.message import AMQP, Run
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.handler import ConnectionHandler
from edge.broker.router.batch import Publication
from edge.broker.router.due_wills import WillOrigin
from tests.support.mqtt_sessions import SessionPeer, SessionSite

COUNT = 40


class Peer(SessionPeer):
    """A client with a persistent session."""

    def subscribe(self, site: SessionSite, *patterns: str) -> None:
        self.send(p.Subscribe(1, tuple(SubscriptionRequest(pattern, 1) for pattern in patterns)))
        site.settle()
        self.sent()

    def take(self, site: SessionSite) -> list[int]:
        """Receive and acknowledge all messages that come; return their numbers."""
        taken: list[int] = []
        while found := [packet for packet in self.sent() if isinstance(packet, p.Publish)]:
            taken += [int(packet.payload.decode().strip("[").partition(",")[0]) for packet in found]
            self.send(*(p.PubAck(packet.packet_id) for packet in found))
            for _ in range(len(site.turns)):
                site.turns.popleft()()
            site.settle()
        return taken


def send(site: SessionSite, address: str) -> None:
    """Publish messages that need translation: more than one turn takes."""
    bodies = [b"\0\x53\x77" + encode([number, "x" * 500]) for number in range(COUNT)]
    run = Run(address, "d", AMQP | 1, b"", bodies)
    site.router.publish(Publication(WillOrigin("d", "", run), run, ()))
    site.settle()


@pytest.mark.parametrize("patterns", [("topic/x",), ("topic/x", "topic/+"), ("queue/x",), ("$share/g/topic/x",)])
def test_waiting_deliveries_continue_over_the_next_connection(patterns: tuple[str, ...]) -> None:
    site = SessionSite()
    peer = Peer(site)
    peer.subscribe(site, *patterns)
    send(site, patterns[0].removeprefix("$share/g/"))
    assert site.turns, "more waits for its turn"
    assert 0 < len([each for each in peer.sent() if isinstance(each, p.Publish)]) < COUNT
    peer.lose()
    again = Peer(site)
    site.settle()
    assert sorted(again.take(site)) == list(range(COUNT))


def test_waiting_deliveries_of_one_consumer_go_to_another() -> None:
    site = SessionSite()
    peer = Peer(site)
    peer.subscribe(site, "queue/x")
    send(site, "queue/x")
    got = [each for each in peer.sent() if isinstance(each, p.Publish)]
    peer.send(*(p.PubAck(packet.packet_id) for packet in got))
    other = Peer(site, "other")
    other.subscribe(site, "queue/x")
    peer.lose()
    site.settle()
    assert sorted(other.take(site)) == list(range(len(got), COUNT))


def test_waiting_deliveries_continue_over_the_connection_that_took_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting messages come although the older connection ends in between."""
    site = SessionSite()
    peer = Peer(site)
    peer.subscribe(site, "topic/x")
    send(site, "topic/x")
    got = [each for each in peer.sent() if isinstance(each, p.Publish)]
    peer.send(*(p.PubAck(packet.packet_id) for packet in got))
    with monkeypatch.context() as broken:

        def raises(_handler: ConnectionHandler) -> None:
            raise LookupError("a bug")

        broken.setattr(ConnectionHandler, "taken_over", raises)
        again = Peer(site)
    site.settle()
    assert sorted(again.take(site)) == list(range(len(got), COUNT))
