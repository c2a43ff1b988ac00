"""A session behind a gate: CONNACK waits for the verdict, and a refusal follows the version."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.message import DURABLE, Run
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.batch import Publication
from edge.broker.security.credentials import CredentialSnapshot, new_user
from edge.broker.security.proof import LoginVerdict
from tests.unit.mqtt.gated_sessions import GatedPeer, GatedSite, admitted


class TestVerdict:
    @pytest.mark.parametrize("version", [4, 5])
    def test_connack_and_later_packets_wait_for_the_verdict(self, version: int) -> None:
        site = GatedSite()
        peer = GatedPeer(site, version, username="joe", password=b"x")
        peer.send(packets.Subscribe(7, (SubscriptionRequest("up/1", 1),)))
        assert peer.sent() == []
        site.gate.asked.pop()(LoginVerdict.ACCEPTED)
        assert [type(packet) for packet in peer.sent()] == [packets.ConnAck, packets.SubAck]
        assert peer.driver.flushes

    @pytest.mark.parametrize(
        ("version", "verdict", "reason"),
        [
            (4, LoginVerdict.REFUSED, 0x86),
            (5, LoginVerdict.REFUSED, 0x86),
            (4, LoginVerdict.BUSY, 0x88),
            (5, LoginVerdict.BUSY, 0x89),
        ],
    )
    def test_refusal_has_the_code_of_its_version(self, version: int, verdict: LoginVerdict, reason: int) -> None:
        site = GatedSite()
        peer = GatedPeer(site, version, username="joe", password=b"x")
        site.gate.asked.pop()(verdict)
        (answer,) = peer.sent()
        assert answer.reason == reason
        assert peer.connection.closed
        assert len(site.sessions) == 0

    def test_client_that_left_early_gets_no_session(self) -> None:
        site = GatedSite()
        peer = GatedPeer(site, 5, username="joe", password=b"x")
        peer.session.handle(peer.connection.receive_eof(1.0))
        site.gate.asked.pop()(LoginVerdict.ACCEPTED)
        assert len(site.sessions) == 0

    def test_certificate_is_sufficient(self) -> None:
        site = GatedSite()
        assert GatedPeer(site, 5, identity="joe").sent()[0].reason == 0
        assert GatedPeer(site, 5, identity="stranger", client_id="d").sent()[0].reason == 0x87
        assert (
            GatedPeer(site, 5, identity="joe", username="jane", client_id="e").sent() == []
        )  # must prove that it is jane
        assert len(site.gate.asked) == 1


class TestDenied:
    def test_mqtt_5_client_gets_a_reason_and_continues(self) -> None:
        peer = admitted(GatedSite(), 5)
        peer.send(packets.Publish("no", b"x", 1, packet_id=1))
        (answer,) = peer.sent()
        assert (type(answer), answer.reason) == (packets.PubAck, 0x87)
        for _ in range(2):  # the packet identifier is free again
            peer.send(packets.Publish("no", b"x", 2, packet_id=2))
            (answer,) = peer.sent()
            assert (type(answer), answer.reason) == (packets.PubRec, 0x87)
        peer.send(
            packets.Subscribe(
                3,
                (
                    SubscriptionRequest("#", 1),
                    SubscriptionRequest("up/+", 1),
                ),
            )
        )
        (answer,) = peer.sent()
        assert list(answer.codes) == [0x87, 1]
        assert peer.site.router.figures.refused == 3

    @pytest.mark.parametrize("qos", [1, 2])
    def test_older_client_is_disconnected(self, qos: int) -> None:
        peer = admitted(GatedSite(), 4)
        peer.send(packets.Publish("no", b"x", qos, packet_id=1))
        assert peer.sent() == []
        assert peer.connection.closed

    @pytest.mark.parametrize("version", [3, 4, 5])
    def test_qos_0_is_dropped_and_counted(self, version: int) -> None:
        peer = admitted(GatedSite(), version)
        peer.send(packets.Publish("no", b"x", 0))
        assert peer.sent() == []
        assert not peer.connection.closed
        assert peer.site.router.figures.refused == 1
        assert peer.site.router.figures.received == 0


class TestSessions:
    def test_session_belongs_to_its_user(self) -> None:
        site = GatedSite()
        first = admitted(site, 4, clean_start=False)
        thief = GatedPeer(site, 4, username="jane", password=b"x")
        site.gate.asked.pop()(LoginVerdict.ACCEPTED)
        assert thief.sent()[0].reason == 0x85
        assert not first.connection.closed
        assert SessionRegistry(site.router, site.store, MqttTranslator()).owner("c") == "joe"  # after a restart too

    def test_changed_rules_cut_the_connection_and_the_stored_session(self) -> None:
        site = GatedSite()
        peer = admitted(site, 5, clean_start=True, properties=Properties(session_expiry_interval_s=100))
        peer.send(
            packets.Subscribe(
                3,
                (
                    SubscriptionRequest("up/#", 1),
                    SubscriptionRequest("up/a", 1),
                ),
            )
        )
        narrow = [AccessRule(("up/a",), frozenset({Operation.RECV}))]
        peer.sent()
        site.gate.update(CredentialSnapshot({"joe": new_user("joe", narrow)}))
        assert peer.sent()[0].reason == 0x87
        assert peer.connection.closed
        again = GatedPeer(site, 5, username="joe", password=b"x", clean_start=False)
        site.gate.asked.pop()(LoginVerdict.ACCEPTED)
        assert again.sent()[0].session_present
        site.router.publish(Publication(again.session, _run("up/a"), ()))
        site.router.publish(Publication(again.session, _run("up/b"), ()))
        assert [packet.topic for packet in again.sent()] == ["up/a"]


def _run(address: str) -> Any:
    return Run(address, "x", 1 | DURABLE, b"", [b"body"])
