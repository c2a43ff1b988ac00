"""Guarantees of MQTT sessions across connections, with Paho's client and a running gateway."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge.broker.mqtt.handshake import WillMessage
from tests.support.hostile import Raw
from tests.support.paho_client import PahoClient
from tests.support.paho_loop import stop_loop
from tests.support.processes import Waypost, edge

WAIT_S = 20.0


class Mqtt5Client(PahoClient):
    """Client of MQTT 5 with its session, and the options of its subscriptions."""

    def __init__(
        self, gateway: Waypost, client_id: str, *, expiry_s: int = 0, clean: bool = True, keep_alive: int = 30
    ) -> None:
        super().__init__(paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5))
        block = Properties(PacketTypes.CONNECT)
        if expiry_s:
            block.SessionExpiryInterval = expiry_s
        block.RequestResponseInformation = 1
        self.connect(gateway.port("mqtt"), keep_alive_s=keep_alive, clean_start=clean, properties=block)

    def subscribe(self, pattern: str, qos: int = 1, *, identifier: int = 0, **options: object) -> list[int]:
        block = Properties(PacketTypes.SUBSCRIBE)
        if identifier:
            block.SubscriptionIdentifier = identifier
        self.client.subscribe([(pattern, SubscribeOptions(qos, **options))], properties=block)  # type: ignore[arg-type]
        return self.subscribed.get(timeout=WAIT_S)

    def publish(self, topic: str, body: bytes, qos: int = 1, *, retain: bool = False, expiry_s: int = 0) -> None:
        block = Properties(PacketTypes.PUBLISH)
        if expiry_s:
            block.MessageExpiryInterval = expiry_s
        self.client.publish(topic, body, qos, retain, properties=block).wait_for_publish(WAIT_S)

    def bodies_before(self, last: bytes) -> list[bytes]:
        """Return the messages before this one, which is published last."""
        return list(iter(lambda: self.take().payload, last))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry_s", [0, 600])
def test_overlapping_subscriptions_deliver_one_copy(gateway: Waypost, qos: int, expiry_s: int) -> None:
    """One copy arrives, at the highest QoS and with every identifier, for kept sessions and others."""
    base = f"topic/overlap/{qos}/{expiry_s}"
    with Mqtt5Client(gateway, f"overlap{qos}{expiry_s}", expiry_s=expiry_s) as client:
        client.subscribe(f"{base}/+", 0, identifier=1)
        client.subscribe(f"{base}/#", 2, identifier=2)
        client.subscribe(f"{base}/a", 1, identifier=3)
        for i in range(50):
            client.publish(f"{base}/a", b"%d" % i, qos)
        client.publish(f"{base}/b", b"end", qos)
        for i in range(50):
            message = client.take()
            assert (message.payload, message.qos) == (b"%d" % i, qos)
            assert sorted(message.properties.SubscriptionIdentifier) == [1, 2, 3]
        message = client.take()
        assert message.payload == b"end"
        assert sorted(message.properties.SubscriptionIdentifier) == [1, 2]


def test_overlapping_subscriptions_deliver_one_copy_after_an_absence(gateway: Waypost) -> None:
    with Mqtt5Client(gateway, "absent", expiry_s=600) as client:
        client.subscribe("topic/absent/#", 1, identifier=1)
        client.subscribe("topic/absent/+", 2, identifier=2)
    with Mqtt5Client(gateway, "writer") as writer:
        for i in range(200):
            writer.publish("topic/absent/a", b"%d" % i, 2)
    with Mqtt5Client(gateway, "absent", expiry_s=600, clean=False) as client:
        for i in range(200):
            message = client.take()
            assert (message.payload, message.qos) == (b"%d" % i, 2)
            assert sorted(message.properties.SubscriptionIdentifier) == [1, 2]
        client.publish("topic/absent/a", b"end", 2)
        assert client.bodies_before(b"end") == []


@pytest.mark.parametrize("retain", [False, True])
def test_message_expiry_is_counted_down(gateway: Waypost, retain: bool) -> None:
    topic = f"topic/expiry/{retain}/"
    if not retain:
        with Mqtt5Client(gateway, "sleeper", expiry_s=600) as client:
            client.subscribe(topic + "#", 1)
    with Mqtt5Client(gateway, "writer") as writer:
        writer.publish(topic + "a", b"short", 1, expiry_s=1, retain=retain)
        writer.publish(topic + "b", b"long", 1, expiry_s=100, retain=retain)
        writer.publish(topic + "c", b"for ever", 1, retain=retain)
        time.sleep(1.5)  # this tests the gateway's own clock
    with Mqtt5Client(gateway, "sleeper", expiry_s=600, clean=False) as client:
        if retain:
            client.subscribe(topic + "#", 1)
        found = sorted((client.take() for _ in range(2)), key=lambda message: message.payload)
        assert [message.payload for message in found] == [b"for ever", b"long"]
        assert 90 <= found[1].properties.MessageExpiryInterval <= 99
        client.publish(topic + "d", b"end", 1)
        assert client.bodies_before(b"end") == []


def test_shared_subscription_has_members_with_and_without_a_session(gateway: Waypost) -> None:
    """All members form one group; unacknowledged messages of a member go to another one."""
    shared = "$share/g/topic/shared/#"
    kept = Mqtt5Client(gateway, "kept", expiry_s=600)
    passing = Mqtt5Client(gateway, "passing")
    kept.subscribe(shared, 1)
    passing.subscribe(shared, 1)
    with Mqtt5Client(gateway, "writer") as writer:
        for i in range(100):
            writer.publish("topic/shared/a", b"%d" % i, i % 2)
        got = [client.take().payload for client in (kept, passing) for _ in range(1)]
        passing.close()
        stop_loop(kept.client)
        kept.client._reset_sockets()  # drop the connection without a DISCONNECT
        for i in range(100, 150):
            writer.publish("topic/shared/a", b"%d" % i, 1)
    with Mqtt5Client(gateway, "kept", expiry_s=600, clean=False) as again:
        again.publish("topic/shared/z", b"end", 1)
        got += again.bodies_before(b"end")
    for client in (kept, passing):
        while not client.received.empty():
            got.append(client.received.get().payload)
    assert set(got) >= {b"%d" % i for i in range(1, 150, 2)} | {b"%d" % i for i in range(100, 150)}


def test_subscription_options_of_retained_messages_apply(gateway: Waypost) -> None:
    topic = "topic/retain options"
    with Mqtt5Client(gateway, "writer") as writer, Mqtt5Client(gateway, "reader") as reader:
        writer.publish(topic, b"kept", 1, retain=True)
        reader.subscribe(topic, 1, retainHandling=2)
        reader.subscribe(topic, 1, retainHandling=1)
        writer.publish(topic, b"as set", 1, retain=True)
        first = reader.take()
        assert (first.payload, first.retain) == (b"as set", False), "nothing retained: not wanted, and not new"
        reader.subscribe(topic, 1, retainHandling=0, retainAsPublished=True)
        assert (reader.take().retain, reader.received.empty()) == (True, True)
        writer.publish(topic, b"as published", 1, retain=True)
        last = reader.take()
        assert (last.payload, last.retain) == (b"as published", True)


def test_no_local_leaves_out_retained_messages_of_the_client_itself(gateway: Waypost) -> None:
    """[MQTT-3.8.3-3] covers new messages and retained ones alike."""
    with Mqtt5Client(gateway, "talker") as talker, Mqtt5Client(gateway, "other") as other:
        talker.publish("topic/own/1", b"mine", 1, retain=True)
        other.publish("topic/own/2", b"theirs", 1, retain=True)
        talker.subscribe("topic/own/#", 1, noLocal=True)
        assert talker.take().payload == b"theirs"
        with pytest.raises(queue.Empty):
            talker.received.get(timeout=0.3)
        other.subscribe("topic/own/#", 1)
        assert {other.take().payload for _ in range(2)} == {b"mine", b"theirs"}


def test_sys_topics_are_published_and_protected(gateway: Waypost) -> None:
    with Mqtt5Client(gateway, "operator") as client:
        client.client.subscribe([("$SYS/broker/clients/#", 0), ("$SYS/broker/version", 0)])
        found = {message.topic: message for message in (client.take() for _ in range(4))}
        assert found["$SYS/broker/version"].payload.startswith(b"waypost ")
        assert int(found["$SYS/broker/clients/connected"].payload) >= 1
        assert all(message.retain for message in found.values())
        assert client.publish_code("$SYS/broker/version", b"mine") == 0x87
        again = client.take()  # the next period
        assert again.topic.startswith("$SYS/broker/")
        assert not again.retain


def test_server_limits_keep_alive_and_session_expiry(gateway: Waypost) -> None:
    with Mqtt5Client(gateway, "patient", keep_alive=3600, expiry_s=0xFFFF_FFFF) as client:
        assert client.server_properties.ServerKeepAlive == 60
        assert client.server_properties.SessionExpiryInterval == 365 * 86_400
        assert client.server_properties.ResponseInformation == "replies/patient"
    with Mqtt5Client(gateway, "brisk", keep_alive=10, expiry_s=5) as client:
        assert not hasattr(client.server_properties, "ServerKeepAlive")
        assert not hasattr(client.server_properties, "SessionExpiryInterval")


def test_shutdown_is_announced(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as running:
        client = Mqtt5Client(running, "watcher")
        assert running.stop() == 0
        assert client.ended.get(timeout=WAIT_S) == 0x8B
        client.close()


def test_will_survives_a_kill_of_the_gateway(tmp_path: Path) -> None:
    """A kill disconnects all clients: those that reconnect keep their will, the wills of the others are published."""
    with edge(tmp_path, "gw") as gateway:
        clients = []
        for name, version in (("lost", 5), ("older", 4), ("back", 5)):
            will = WillMessage(f"topic/state/{name}", b"gone", 1, retain=True)
            clients.append(Raw(gateway, version).connect(name, will=will))
        with Mqtt5Client(gateway, "publisher") as publisher:  # acknowledged by a commit after theirs
            publisher.publish("topic/state/publisher", b"x", 1, retain=True)
        gateway.kill()
        for client in clients:
            client.close()
        gateway.start()
        with Raw(gateway, 5).connect("back"), Mqtt5Client(gateway, "watcher") as watcher:
            watcher.subscribe("topic/state/+", 1)
            assert watcher.take().payload == b"x"
            found = [watcher.take().topic for _ in range(2)]
            assert sorted(found) == ["topic/state/lost", "topic/state/older"]
            with pytest.raises(queue.Empty):
                watcher.received.get(timeout=0.5)
