"""A session without a connected client does not consume from an address without a store, and senders get an error."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.engine import DeliveryState
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets as p
from tests.unit.amqp.wire import message
from tests.unit.mqtt.mixed_clients import MixedSite, MqttClient


def reasons(answers: list[Any]) -> list[R]:
    return [answer.reason for answer in answers]


@pytest.mark.parametrize("pattern", ["x", "+", "#"])
@pytest.mark.parametrize("address", ["multicast/x", "anycast/x"])
class TestAbsentConsumer:
    @staticmethod
    def subscriber(site: MixedSite, address: str, pattern: str) -> MqttClient:
        wanted = address.removesuffix("x") + pattern
        return MqttClient(site, "subscriber", wanted, session_expiry_interval_s=100)

    def test_mqtt_publisher_gets_an_error(self, address: str, pattern: str) -> None:
        site = MixedSite()
        subscriber = self.subscriber(site, address, pattern)
        publisher = MqttClient(site, "publisher")
        subscriber.lose()
        assert reasons(publisher.publish(address, b"nobody")) == [R.NO_MATCHING_SUBSCRIBERS]
        back = MqttClient(site, "subscriber", "", session_expiry_interval_s=100)
        answers = publisher.publish(address, b"there")
        assert back.take() == [b"there"]
        assert reasons(answers + publisher.sent()) == [R.SUCCESS]
        back.lose()
        assert reasons(publisher.publish(address, b"nobody")) == [R.NO_MATCHING_SUBSCRIBERS]

    def test_amqp_sender_gets_no_credit(self, address: str, pattern: str) -> None:
        site = MixedSite()
        subscriber = self.subscriber(site, address, pattern)
        subscriber.lose()
        client = site.client()
        sender = client.sender(address)
        assert sender.credit == 0
        back = MqttClient(site, "subscriber", "", session_expiry_interval_s=100)
        site.settle_down()
        assert sender.credit > 0
        client.engine.send(sender, 0, message(b"there"))
        site.settle_down()
        assert back.take() == [b"there"]
        assert [state for _, state, _ in client.outcomes(sender)] == [DeliveryState.ACCEPTED]

    def test_message_of_a_sender_with_credit_is_released(self, address: str, pattern: str) -> None:
        site = MixedSite()
        subscriber = self.subscriber(site, address, pattern)
        client = site.client()
        sender = client.sender(address)
        assert sender.credit > 0
        subscriber.lose()
        client.engine.send(sender, 0, message(b"nobody"))
        site.settle_down()
        assert [state for _, state, _ in client.outcomes(sender)] == [DeliveryState.RELEASED]

    def test_session_ends_once(self, address: str, pattern: str) -> None:
        site = MixedSite()
        subscriber = self.subscriber(site, address, pattern)
        subscriber.lose()
        site.sessions.tick(0.0)
        site.sessions.tick(1_000.0)
        assert len(site.sessions) == 0
        again = self.subscriber(site, address, pattern)
        publisher = MqttClient(site, "publisher")
        answers = publisher.publish(address, b"there")
        assert again.take() == [b"there"]
        assert reasons(answers + publisher.sent()) == [R.SUCCESS]
        again.send(p.Disconnect())
        assert reasons(publisher.publish(address, b"nobody")) == [R.NO_MATCHING_SUBSCRIBERS]
