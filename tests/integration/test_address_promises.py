"""Guarantees of addresses on one gateway, checked with independent clients: Paho and Proton's Python API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Delivery, Link, Message
from proton.reactor import Copy, Filter, Selector
from proton.utils import BlockingConnection, LinkDetached, SyncRequestResponse

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets
from tests.support.amqp_client import connect_amqp, detached_with
from tests.support.hostile import Raw
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, edge

WAIT_S = 20.0


def connect(gateway: Waypost, **options: Any) -> BlockingConnection:
    return connect_amqp(gateway, **options)


def test_password_is_accepted_where_none_is_needed(gateway: Waypost) -> None:
    """Many AMQP clients use PLAIN whenever they have a user; a gateway without users accepts it, as over MQTT."""
    connection = connect(gateway, user="joe", password="whatever", allowed_mechs="PLAIN", allow_insecure_mechs=True)
    try:
        connection.create_sender("queue/anybody").send(Message(body="in"))
        receiver = connection.create_receiver("queue/anybody")
        assert receiver.receive(timeout=WAIT_S).body == "in"
        receiver.accept()
    finally:
        connection.close()


def test_amqp_request_is_answered_over_a_dynamic_address(gateway: Waypost) -> None:
    serving, asking = connect(gateway), connect(gateway)
    try:
        requests = serving.create_receiver("queue/amqp-service", credit=10)
        replies = asking.create_receiver(None, dynamic=True, credit=10)
        reply_to = replies.link.remote_source.address
        assert reply_to.startswith("temp/")
        asking.create_sender("queue/amqp-service").send(Message(body="ping", reply_to=reply_to, correlation_id="c-1"))
        request = requests.receive(timeout=WAIT_S)
        requests.accept()
        answer = Message(address=request.reply_to, body="pong", correlation_id=request.correlation_id)
        serving.create_sender(None).send(answer)
        got = replies.receive(timeout=WAIT_S)
        assert (got.body, got.correlation_id) == ("pong", "c-1")
    finally:
        serving.close()
        asking.close()


def test_amqp_request_is_answered_by_an_mqtt_client(gateway: Waypost) -> None:
    """Dynamic reply-to becomes a response topic; the answer returns with its correlation id."""
    asking = connect(gateway)
    try:
        with mqtt_client(gateway, "mqtt-service", version=5) as service:
            service.subscribe("queue/mqtt-service", 1)
            replies = asking.create_receiver(None, dynamic=True, credit=10)
            reply_to = replies.link.remote_source.address
            asking.create_sender("queue/mqtt-service").send(
                Message(body=b"ping", reply_to=reply_to, correlation_id="c-7", properties={"unit": "C"})
            )
            request = service.received.get(timeout=WAIT_S)
            assert request.payload == b"ping"
            asked: Any = request.properties
            assert asked.ResponseTopic == reply_to
            assert dict(asked.UserProperty) == {"unit": "C"}
            back = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            back.CorrelationData = asked.CorrelationData
            service.client.publish(reply_to, b"pong", 1, properties=back).wait_for_publish(WAIT_S)
        answer = replies.receive(timeout=WAIT_S)
        assert (bytes(answer.body), answer.correlation_id) == (b"pong", "c-7")
    finally:
        asking.close()


def test_mqtt_request_is_answered_by_an_amqp_client(gateway: Waypost) -> None:
    serving = connect(gateway)
    try:
        requests = serving.create_receiver("queue/other-service", credit=10)
        with mqtt_client(gateway, "mqtt-asker", version=5) as asker:
            asker.subscribe("topic/replies/asker", 1)
            request = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            request.ResponseTopic = "topic/replies/asker"
            request.CorrelationData = b"\xff\x00binary"
            asker.client.publish("queue/other-service", b"ping", 1, properties=request).wait_for_publish(WAIT_S)
            message = requests.receive(timeout=WAIT_S)
            requests.accept()
            assert message.reply_to == "topic/replies/asker"
            correlation = bytes(message.correlation_id)  # Proton returns a view but does not accept one
            reply = Message(address=message.reply_to, body=b"pong", correlation_id=correlation)
            serving.create_sender(None).send(reply)
            answer: Any = asker.received.get(timeout=WAIT_S)
            assert (answer.payload, answer.properties.CorrelationData) == (b"pong", b"\xff\x00binary")
    finally:
        serving.close()


def test_modified_message_counts_its_deliveries_and_avoids_its_consumer(gateway: Waypost) -> None:
    connection, other = connect(gateway), connect(gateway)
    try:
        connection.create_sender("queue/counted").send(Message(body="m"))
        first = connection.create_receiver("queue/counted", credit=1)
        assert first.receive(timeout=WAIT_S).delivery_count == 0
        delivery = first.fetcher.unsettled.popleft()
        delivery.local.failed = True
        delivery.update(Delivery.MODIFIED)
        delivery.settle()
        assert first.receive(timeout=WAIT_S).delivery_count == 1
        delivery = first.fetcher.unsettled.popleft()
        delivery.local.undeliverable = True
        delivery.update(Delivery.MODIFIED)
        delivery.settle()
        connection.create_sender("queue/whatever")  # writes pending output
        second = other.create_receiver("queue/counted", credit=1)
        assert second.receive(timeout=WAIT_S).delivery_count == 2
        second.accept()
    finally:
        connection.close()
        other.close()


def test_browser_leaves_messages_and_selector_filters_them(gateway: Waypost) -> None:
    connection = connect(gateway)
    try:
        sender = connection.create_sender("queue/browsed")
        for i in range(10):
            sender.send(Message(body=str(i), properties={"n": i}))
        browser = connection.create_receiver("queue/browsed", credit=20, options=Copy())
        assert [browser.receive(timeout=WAIT_S).body for _ in range(10)] == [str(i) for i in range(10)]
        picking = connection.create_receiver(
            "queue/browsed", credit=20, options=[Copy(), Selector("n >= 8")], name="picking"
        )
        confirmed = picking.link.remote_source.filter
        confirmed.rewind()
        confirmed.next()
        assert list(confirmed.get_dict()) == ["selector"]
        assert [picking.receive(timeout=WAIT_S).body for _ in range(2)] == ["8", "9"]
        eater = connection.create_receiver("queue/browsed", credit=20, name="eater")
        assert [eater.receive(timeout=WAIT_S).body for _ in range(10)] == [str(i) for i in range(10)]
        with detached_with("amqp:invalid-field"):
            connection.create_receiver("topic/browsed", options=Selector("n >="), name="wrong")
    finally:
        connection.close()


def test_large_message_crosses_protocols_both_ways(gateway: Waypost) -> None:
    connection = connect(gateway)
    body = bytes(range(256)) * 4096 * 10  # 10 MiB
    try:
        receiver = connection.create_receiver("queue/large", credit=2)
        connection.create_sender("queue/large").send(Message(body=body), timeout=WAIT_S)
        got = receiver.receive(timeout=WAIT_S)
        receiver.accept()
        assert bytes(got.body) == body
        with mqtt_client(gateway, "large", version=5) as device:
            device.subscribe("topic/large", 1)
            device.publish("topic/large", body, 1)
            assert device.received.get(timeout=WAIT_S).payload == body
    finally:
        connection.close()


DYING = """
import sys
from proton import symbol
from proton.utils import BlockingConnection

will = {"x-opt-will-address": "topic/amqp-gone", "x-opt-will-body": b"gone", "x-opt-retain-message": True}
connection = BlockingConnection(sys.argv[1], properties={symbol(name): value for name, value in will.items()})
print("connected", flush=True)
sys.stdin.read()
connection.close()
"""


@pytest.mark.parametrize("closes", [True, False])
def test_amqp_client_has_a_will_and_retained_messages(gateway: Waypost, closes: bool) -> None:
    url = f"127.0.0.1:{gateway.port('amqp')}"
    command = [sys.executable, "-c", DYING, url]
    with mqtt_client(gateway, "watcher") as watcher:
        watcher.subscribe("topic/amqp-gone", 1)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as dying:
            assert dying.stdout is not None
            assert dying.stdout.readline() == "connected\n"
            if not closes:
                dying.kill()
            dying.communicate()
        if closes:
            watcher.publish("topic/amqp-gone", b"nothing before this", 1)
            assert watcher.get()[1] == b"nothing before this"
            return
        assert watcher.get() == ("topic/amqp-gone", b"gone", 1, False)
    later = connect(gateway)
    try:
        receiver = later.create_receiver("topic/amqp-gone", credit=1)
        assert bytes(receiver.receive(timeout=WAIT_S).body) == b"gone"
    finally:
        later.close()


def test_management_and_tokens(gateway: Waypost) -> None:
    connection = connect(gateway)
    try:
        connection.create_sender("queue/managed").send(Message(body="m"))
        client = SyncRequestResponse(connection, "$management")
        found = client.call(Message(properties={"operation": "READ", "name": "queue/managed"}, correlation_id="1"))
        assert found.properties["statusCode"] == 200
        assert found.body["messages"] == 1
        listed = client.call(
            Message(properties={"operation": "QUERY"}, body={"attributeNames": ["name"]}, correlation_id="2")
        )
        assert ["queue/managed"] in listed.body["results"]
        tokens = SyncRequestResponse(connection, "$cbs")
        answer = tokens.call(Message(properties={"operation": "put-token"}, body="token", correlation_id="3"))
        assert answer.properties["status-code"] == 202
    finally:
        connection.close()


def test_durable_subscription_is_taken_over_from_a_dead_connection(gateway: Waypost) -> None:
    class Durable(Filter):  # type: ignore[misc]  # Proton has no types
        def __init__(self) -> None:
            super().__init__({})

        def apply(self, receiver: Link) -> None:
            receiver.source.durability = 2
            receiver.source.expiry_policy = 3

    dead, alive = (connect(gateway, container_id="same-device") for _ in range(2))
    try:
        dead.create_receiver("topic/taken", name="sub", options=Durable(), credit=5)
        link = alive.create_receiver("topic/taken", name="sub", options=Durable(), credit=5)
        alive.create_sender("topic/taken").send(Message(body="m"))
        assert link.receive(timeout=WAIT_S).body == "m"
        link.accept()
        link.close()
    finally:
        alive.close()
        dead.close()


RESOURCES = """
apiVersion: waypost/v1
kind: Address
metadata: {name: jobs}
spec:
  address: queue/jobs/#
  type: queue
  deadletter: dead
  maxConsumers: 1
  messageRedelivery: {maximumDeliveryAttempts: 2}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: dead}, spec: {address: dead, type: deadletter}}
---
apiVersion: waypost/v1
kind: Address
metadata: {name: late}
spec: {address: late, type: subscription, topic: topic/a, maxConsumers: 1}
"""


def test_limits_of_attempts_and_consumers_apply(tmp_path: Path) -> None:
    (tmp_path / "addresses.yaml").write_text(RESOURCES)
    with edge(tmp_path, "gw", "--config", str(tmp_path / "addresses.yaml")) as gateway:
        connection = connect(gateway)
        try:
            connection.create_sender("queue/jobs/1").send(Message(body="poison"))
            receiver = connection.create_receiver("queue/jobs/1", credit=1)
            with detached_with("amqp:resource-limit-exceeded"):
                connection.create_receiver("queue/jobs/1", name="second")
            for attempt in range(2):
                assert receiver.receive(timeout=WAIT_S).delivery_count == attempt
                delivery = receiver.fetcher.unsettled.popleft()
                delivery.local.failed = True
                delivery.update(Delivery.MODIFIED)
                delivery.settle()
            dead = connection.create_receiver("dead", credit=1).receive(timeout=WAIT_S)
            assert dead.body == "poison"
            assert dead.annotations["x-opt-waypost-dead-reason"] == "delivery attempts exceeded"
            assert dead.annotations["x-opt-waypost-dead-from"] == "queue/jobs/1"
        finally:
            connection.close()


def test_sending_to_a_subscription_is_refused(tmp_path: Path) -> None:
    """Sending to a subscription is refused: no consumer could receive such a message."""
    (tmp_path / "addresses.yaml").write_text(RESOURCES)
    with edge(tmp_path, "gw", "--config", str(tmp_path / "addresses.yaml")) as gateway:
        connection = connect(gateway)
        try:
            with detached_with("amqp:not-allowed"):
                connection.create_sender("late")
            with pytest.raises(LinkDetached, match="::late"):
                connection.create_receiver("late")
            receiver = connection.create_receiver("topic/a::late", credit=1)
            with Raw(gateway, 5).connect("device") as device:
                assert device.subscribe("late", qos=1) == [ReasonCode.TOPIC_FILTER_INVALID]
                device.send(packets.Publish("late", b"x", 1, packet_id=7))
                answer = device.receive()
                assert isinstance(answer, packets.PubAck)
                assert answer.reason is ReasonCode.TOPIC_NAME_INVALID
                device.send(packets.Publish("topic/a", b"to the topic", 1, packet_id=8))
            assert bytes(receiver.receive(timeout=WAIT_S).body) == b"to the topic"
            receiver.accept()
        finally:
            connection.close()
