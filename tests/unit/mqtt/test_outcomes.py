"""Messages that MQTT consumers refuse or that are too large for them: their next consumer, and the answer to the
sender."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.engine import DeliveryState
from bridge.message import Run
from edge.broker.limits import READ_BYTES_MAX, SUBSCRIPTION_BUFFER_BYTES_MAX, Limits
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.expiry import Lifetime
from edge.broker.router.batch import Publication
from tests.support.router_site import SilentOrigin, expiry
from tests.unit.amqp import broker as amqp
from tests.unit.amqp.wire import message
from tests.unit.mqtt.mixed_clients import MixedSite, MqttClient

SMALL = 500
LARGE_BODY = b"x" * 5_000


def small(site: MixedSite, pattern: str, qos: int = 1, client_id: str = "small", **properties: Any) -> MqttClient:
    return MqttClient(site, client_id, pattern, qos, maximum_packet_size=SMALL, **properties)


class TestTooLargeForOne:
    @pytest.mark.parametrize("qos", [0, 1])
    @pytest.mark.parametrize(
        ("pattern", "kept"),
        [("queue/x", 0), ("queue/x", 100), ("$share/group/topic/x", 0), ("$share/group/topic/x", 100)],
    )
    def test_other_consumers_get_the_message(self, pattern: str, qos: int, kept: int) -> None:
        site = MixedSite()
        little = small(site, pattern, qos, session_expiry_interval_s=kept)
        other = MqttClient(site, "other", pattern, session_expiry_interval_s=kept)
        publisher = MqttClient(site, "publisher")
        bodies = [b"%d" % i + LARGE_BODY for i in range(10)]
        publisher.publish(pattern.removeprefix("$share/group/"), *bodies, b"little", b"less")
        got = other.take()
        assert set(bodies) <= set(got)
        assert sorted(got + little.take()) == sorted([*bodies, b"little", b"less"])
        assert site.losses == []

    def test_backlog_of_a_slow_consumer_is_not_read_into_memory(self) -> None:
        site = MixedSite()
        slow = MqttClient(site, "slow", "queue/x", receive_maximum=1)
        small(site, "queue/x")
        count = 2 * (SUBSCRIPTION_BUFFER_BYTES_MAX + READ_BYTES_MAX) // len(LARGE_BODY)
        for _ in range(0, count, 100):
            site.router.publish(
                Publication(amqp.MqttDevice(), Run("queue/x", "d", 1, b"", [LARGE_BODY] * 100), range(100))
            )
        site.settle_down()
        assert site.router.queues["queue/x"].buffer.bytes <= SUBSCRIPTION_BUFFER_BYTES_MAX + READ_BYTES_MAX
        slow.lose()
        other = MqttClient(site, "other", "queue/x")
        assert len(other.take()) == -(-count // 100) * 100

    def test_message_waits_for_a_consumer_that_accepts_its_size(self) -> None:
        site = MixedSite()
        little = small(site, "queue/x")
        publisher = MqttClient(site, "publisher")
        publisher.publish("queue/x", LARGE_BODY, b"little")
        assert little.take() == [b"little"]
        assert site.router.queues["queue/x"].backlog == 1
        assert MqttClient(site, "other", "queue/x").take() == [LARGE_BODY]
        assert site.losses == []

    def test_waiting_message_expires_by_the_rule_of_the_address(self) -> None:
        site = MixedSite()
        rule = AddressPolicy(ttl_max_s=10, expiry="deadletter/d")
        site.router.reconfigure(site.router.addresses.table, {"queue/#": rule})
        little = small(site, "queue/x")
        MqttClient(site, "publisher").publish("queue/x", LARGE_BODY)
        assert little.take() == []
        site.now_ns += 60 * 10**9
        for _ in range(3):
            site.router.tick()
            site.settle_down()
        assert MqttClient(site, "other", "deadletter/d").take() == [LARGE_BODY]
        assert site.losses == [("dead-lettered: expired", 1)]

    def test_message_that_expires_on_its_way_to_the_client_is_not_acknowledged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The queue has delivered it, and the packet is written later in the turn."""
        site = MixedSite()
        client = MqttClient(site, "c", "queue/x")
        remaining, calls = Lifetime.remaining, list[Run]()

        def later(lifetime: Lifetime, run: Run) -> Run | None:
            calls.append(run)
            site.now_ns += 10 * 10**9
            return remaining(lifetime, run)

        monkeypatch.setattr(Lifetime, "remaining", later)
        run = Run("queue/x", "sender", 1, expiry(5), [b"x"])
        site.router.publish(Publication(SilentOrigin(), run, ()))
        site.settle_down()
        assert client.take() == []
        assert len(calls) == 1
        assert site.losses == [("expired", 1)]

    def test_subscription_of_one_client_drops_it_and_records_it(self) -> None:
        """The message counts as delivered [MQTT-3.1.2-25], but it was acknowledged to its sender."""
        site = MixedSite()
        little = small(site, "topic/x", session_expiry_interval_s=100)
        MqttClient(site, "publisher").publish("topic/x", LARGE_BODY, b"little")
        assert little.take() == [b"little"]
        assert site.losses == [("undeliverable", 1)]

    def test_message_that_is_not_stored_is_dropped(self) -> None:
        site = MixedSite()
        little = small(site, "topic/x")
        MqttClient(site, "publisher").publish("topic/x", LARGE_BODY, b"little")
        assert little.take() == [b"little"]
        assert site.losses == []

    @pytest.mark.parametrize("qos", [1, 2])
    def test_message_in_flight_from_a_connection_with_a_larger_maximum_is_dropped(self, qos: int) -> None:
        site = MixedSite()
        before = MqttClient(site, "c", "queue/x", qos, session_expiry_interval_s=100)
        MqttClient(site, "publisher").publish("queue/x", LARGE_BODY, qos=qos)
        before.lose()
        site.settle_down()
        other = MqttClient(site, "other", "queue/x")
        after = small(site, "", client_id="c", session_expiry_interval_s=100)
        assert not [packet for packet in after.sent() if isinstance(packet, p.Publish)]
        assert other.take() == [LARGE_BODY]


class TestTooLargeAtAnAnycastAddress:
    @pytest.mark.parametrize("qos", [0, 1])
    def test_message_is_offered_to_other_consumers(self, qos: int) -> None:
        site = MixedSite()
        little = small(site, "anycast/x", qos)
        other = MqttClient(site, "other", "anycast/x", qos)
        publisher = MqttClient(site, "publisher")
        answers = publisher.publish("anycast/x", *[LARGE_BODY] * 4)
        assert other.take() == [LARGE_BODY] * 4
        assert little.take() == []
        assert [each.reason for each in answers + publisher.sent()] == [R.SUCCESS] * 4

    @pytest.mark.parametrize("qos", [0, 1])
    def test_message_is_refused_when_no_consumer_accepts_it(self, qos: int) -> None:
        site = MixedSite()
        little = small(site, "anycast/x", qos)
        publisher = MqttClient(site, "publisher")
        answers = publisher.publish("anycast/x", LARGE_BODY, b"little")
        assert little.take() == [b"little"]
        [refused, taken] = answers + publisher.sent()
        assert (refused.reason, taken.reason) == (R.IMPLEMENTATION_SPECIFIC_ERROR, R.SUCCESS)
        assert refused.properties.reason_string == "message too large"

    @pytest.mark.parametrize("qos", [1, 2])
    @pytest.mark.parametrize(
        "state", [DeliveryState.RELEASED, DeliveryState.MODIFIED_FAILED, DeliveryState.MODIFIED_UNDELIVERABLE]
    )
    def test_message_released_by_its_amqp_consumer_was_not_consumed(self, state: DeliveryState, qos: int) -> None:
        site = MixedSite()
        worker = site.client("worker")
        link = worker.receiver("anycast/x", credit=9)
        publisher = MqttClient(site, "publisher")
        assert publisher.publish("anycast/x", b"one", qos=qos) == []
        worker.engine.settle(link, worker.deliveries(link), state)
        site.settle_down()
        assert [each.reason for each in publisher.sent()] == [R.NO_MATCHING_SUBSCRIBERS]
        assert len(worker.deliveries(link)) == 1

    def test_message_is_refused_when_its_only_possible_consumer_leaves(self) -> None:
        site = MixedSite()
        little = small(site, "anycast/x")
        other = MqttClient(site, "other", "anycast/x", receive_maximum=1)
        publisher = MqttClient(site, "publisher")
        publisher.publish("anycast/x", LARGE_BODY, LARGE_BODY)
        assert little.take() == []
        other.lose()
        assert {each.reason for each in publisher.sent()} == {R.IMPLEMENTATION_SPECIFIC_ERROR}

    def test_amqp_sender_gets_the_refusal(self) -> None:
        site = MixedSite()
        small(site, "anycast/x")
        client = site.client()
        sender = client.sender("anycast/x")
        client.engine.send(sender, 0, message(LARGE_BODY))
        site.settle_down()
        [(_, state, condition)] = client.outcomes(sender)
        assert (state, condition.name) == (DeliveryState.REJECTED, "amqp:link:message-size-exceeded")


class TestRefused:
    """PUBACK and PUBREC of 0x80 and above (MQTT 5 section 4.13.2)."""

    @staticmethod
    def refuse(consumer: MqttClient, reason: R = R.NOT_AUTHORIZED) -> None:
        [packet] = [packet for packet in consumer.sent() if isinstance(packet, p.Publish)]
        answer = p.PubAck if packet.qos == 1 else p.PubRec
        consumer.send(answer(packet.packet_id, reason))

    @pytest.mark.parametrize("qos", [1, 2])
    def test_amqp_sender_to_an_anycast_address_is_rejected(self, qos: int) -> None:
        site = MixedSite()
        consumer = MqttClient(site, "consumer", "anycast/x", qos)
        client = site.client()
        sender = client.sender("anycast/x")
        client.engine.send(sender, 0, message(b"refused", durable=True))
        site.settle_down()
        self.refuse(consumer)
        [(_, state, _)] = client.outcomes(sender)
        assert state is DeliveryState.REJECTED

    @pytest.mark.parametrize("qos", [1, 2])
    def test_mqtt_publisher_to_an_anycast_address_gets_a_reason_code(self, qos: int) -> None:
        site = MixedSite()
        consumer, publisher = MqttClient(site, "consumer", "anycast/x", qos), MqttClient(site, "publisher")
        assert publisher.publish("anycast/x", b"refused", qos=qos) == []
        self.refuse(consumer)
        [answer] = publisher.sent()
        assert answer.reason is R.UNSPECIFIED_ERROR
        assert answer.properties.reason_string == "rejected by the consumer"

    @pytest.mark.parametrize("kept", [0, 100])
    @pytest.mark.parametrize("qos", [1, 2])
    def test_refused_message_of_a_queue_becomes_a_dead_letter(self, qos: int, kept: int) -> None:
        site = MixedSite()
        site.router.reconfigure(site.router.addresses.table, {"queue/#": AddressPolicy(deadletter="deadletter/d")})
        consumer = MqttClient(site, "consumer", "queue/x", qos, session_expiry_interval_s=kept)
        site.router.publish(Publication(amqp.MqttDevice(), Run("queue/x", "d", 2, b"", [b"refused"]), (1,)))
        site.settle_down()
        self.refuse(consumer)
        assert MqttClient(site, "other", "deadletter/d").take() == [b"refused"]
        assert site.losses == [("dead-lettered: rejected", 1)]
        assert dict(site.store.state.items("outgoing")) == {}, "no record of the exchange is left"

    @pytest.mark.parametrize("address", ["queue/x", "topic/x"])
    def test_refused_message_without_a_dead_letter_address_is_recorded(self, address: str) -> None:
        site = MixedSite()
        consumer = MqttClient(site, "consumer", address, session_expiry_interval_s=100)
        MqttClient(site, "publisher").publish(address, b"refused")
        self.refuse(consumer, R.QUOTA_EXCEEDED)
        assert site.losses == [("rejected", 1)]

    def test_no_matching_subscribers_is_not_a_refusal(self) -> None:
        site = MixedSite()
        consumer = MqttClient(site, "consumer", "queue/x")
        MqttClient(site, "publisher").publish("queue/x", b"taken")
        self.refuse(consumer, R.NO_MATCHING_SUBSCRIBERS)
        assert site.losses == []


class TestLosingAConsumer:
    """The unacknowledged message may have killed a client that vanished without a DISCONNECT."""

    @staticmethod
    def poisoned() -> MixedSite:
        site = MixedSite()
        policy = AddressPolicy(redelivery=Redelivery(attempts_max=3), deadletter="deadletter/d")
        site.router.reconfigure(site.router.addresses.table, {"queue/#": policy})
        run = Run("queue/x", "d", 2, b"", [b"poison"])
        site.router.publish(Publication(amqp.MqttDevice(), run, (1,)))
        site.settle_down()
        return site

    @staticmethod
    def got(peer: MqttClient) -> list[bytes]:
        return [packet.payload for packet in peer.sent() if isinstance(packet, p.Publish)]

    @pytest.mark.parametrize("kept", [0, 100])
    @pytest.mark.parametrize("qos", [1, 2])
    def test_poison_message_ends_as_a_dead_letter(self, qos: int, kept: int) -> None:
        site = self.poisoned()
        for _ in range(3):
            consumer = MqttClient(site, "consumer", "queue/x", qos, session_expiry_interval_s=kept)
            consumer.lose()
        again = MqttClient(site, "consumer", "queue/x", qos, session_expiry_interval_s=kept)
        assert self.got(again) == []
        assert MqttClient(site, "other", "deadletter/d").take() == [b"poison"]
        assert site.losses == [("dead-lettered: delivery attempts exceeded", 1)]
        assert dict(site.store.state.items("outgoing")) == {}, "no record of the exchange is left"

    @pytest.mark.parametrize("qos", [1, 2])
    def test_message_is_redelivered_before_the_last_attempt(self, qos: int) -> None:
        site = self.poisoned()
        for _ in range(2):
            MqttClient(site, "consumer", "queue/x", qos, session_expiry_interval_s=100).lose()
        again = MqttClient(site, "consumer", "", session_expiry_interval_s=100)
        assert again.connection.window < Limits().inflight_max
        assert site.losses == []

    def test_takeover_counts_as_an_attempt(self) -> None:
        site = self.poisoned()
        for _ in range(4):
            MqttClient(site, "consumer", "queue/x")
        assert MqttClient(site, "other", "deadletter/d").take() == [b"poison"]

    @pytest.mark.parametrize("kept", [0, 100])
    def test_normal_disconnect_does_not_count(self, kept: int) -> None:
        site = self.poisoned()
        for _ in range(4):
            consumer = MqttClient(site, "consumer", "queue/x", session_expiry_interval_s=kept)
            assert consumer.connection.window < Limits().inflight_max, "it is under way"
            consumer.send(p.Disconnect())
            consumer.lose()
        assert site.losses == []

    def test_message_goes_to_another_consumer_at_once_after_a_normal_disconnect(self) -> None:
        site = self.poisoned()
        policy = AddressPolicy(redelivery=Redelivery(attempts_max=3, delay_s=60))
        site.router.reconfigure(site.router.addresses.table, {"queue/#": policy})
        consumer = MqttClient(site, "consumer", "queue/x", session_expiry_interval_s=100)
        other = MqttClient(site, "other", "queue/x")
        consumer.send(p.Disconnect())
        consumer.lose()
        assert other.take() == [b"poison"]

    def test_stop_of_the_broker_does_not_count(self) -> None:
        site = self.poisoned()
        for _ in range(4):
            consumer = MqttClient(site, "consumer", "queue/x")
            assert self.got(consumer) == [b"poison"]
            consumer.connection.disconnect(R.SERVER_SHUTTING_DOWN)
            consumer.lose()
        assert site.losses == []
