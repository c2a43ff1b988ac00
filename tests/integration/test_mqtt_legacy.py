"""MQTT 3.1 with a client of its time: Mosquitto's with `-V mqttv31`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from edge.broker.limits import TOPIC_LEVELS_MAX
from edge.broker.mqtt import packets
from tests.support.configured_gateway import gateway_with
from tests.support.hostile import WAIT_S, Raw
from tests.support.processes import Waypost
from tests.support.programs import mosquitto_clients

pytestmark = mosquitto_clients

LONG_ID = "a-client-identifier-of-more-than-23-bytes"


WIDE = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: legacy}
spec:
  listeners: {mqtt: "127.0.0.1:0"}
  mqtt: {legacyDollarTopics: true}
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Run a gateway that accepts wildcards as MQTT 3.1 defines them."""
    with gateway_with(tmp_path_factory.mktemp("wide"), WIDE) as running:
        yield running


def mosquitto(gateway: Waypost, tool: str, *arguments: str) -> list[str]:
    return [tool, "-h", "127.0.0.1", "-p", str(gateway.port("mqtt")), "-V", "mqttv31", *arguments]


def publish(gateway: Waypost, topic: str, body: str, *arguments: str) -> None:
    command = mosquitto(gateway, "mosquitto_pub", "-i", "legacy-pub", "-t", topic, "-m", body, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mqtt_3_1_has_retained_messages_and_every_qos(gateway: Waypost, qos: str) -> None:
    publish(gateway, f"legacy/{qos}", "kept", "-q", qos, "-r")
    command = mosquitto(gateway, "mosquitto_sub", "-i", "legacy-sub", "-t", f"legacy/{qos}", "-q", qos, "-C", "1", "-v")
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, f"legacy/{qos} kept\n"), done.stderr


def test_long_client_identifier_has_a_session(gateway: Waypost) -> None:
    """MQTT 3.1 section 3.1 allows 23 characters; clients ignored that, so the limit is not enforced."""
    arguments = ("-i", LONG_ID, "-c", "-t", "legacy/session", "-q", "1")
    command = mosquitto(gateway, "mosquitto_sub", *arguments, "-E")  # until SUBACK
    assert subprocess.run(command, timeout=WAIT_S, check=False).returncode == 0
    publish(gateway, "legacy/session", "while away", "-q", "1")
    command = mosquitto(gateway, "mosquitto_sub", *arguments, "-C", "1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, "while away\n")


def test_refused_subscription_has_the_code_of_its_version(gateway: Waypost) -> None:
    """A session may have a thousand subscriptions; the next one gets QoS 0 for MQTT 3.1 and 0x80 for 3.1.1."""
    for version, code in ((3, 0), (4, 0x80)):
        with Raw(gateway, version).connect(f"many-{version}") as client:
            for start in range(0, 1_000, 100):
                assert client.subscribe(*(f"many/{i}" for i in range(start, start + 100)), qos=1) == [1] * 100
            assert client.subscribe("many/beyond", qos=1) == [code]
            client.send(packets.Publish("many/beyond", b"x"), packets.Publish("many/5", b"y", 1, packet_id=3))
            found = [client.receive(), client.receive()]
            assert [each.payload for each in found if isinstance(each, packets.Publish)] == [b"y"]


def test_an_ill_formed_filter_ends_the_connection(gateway: Waypost) -> None:
    with Raw(gateway, 3).connect("deep") as client:
        client.send(packets.Subscribe(1, (packets.SubscriptionRequest("/".join("a" * (TOPIC_LEVELS_MAX + 1)), 0),)))
        assert client.receive() is None


def test_will_of_an_older_client_is_published(gateway: Waypost) -> None:
    with Raw(gateway, 3).connect("watcher") as watcher:
        watcher.subscribe("legacy/will", qos=1)
        Raw(gateway, 3).connect("legacy-dies", will=packets.WillMessage("legacy/will", b"gone", 1)).close()
        packet = watcher.receive()
        assert isinstance(packet, packets.Publish)
        assert (packet.payload, packet.qos) == (b"gone", 1)


def named(client: Raw, *topics: str) -> set[str]:
    """Publish to each topic; return those that arrive."""
    client.send(*(packets.Publish(topic, b"x") for topic in (*topics, "end")))
    found = set()
    while True:
        packet = client.receive()
        if isinstance(packet, packets.Publish):
            if packet.topic == "end":
                return found
            if packet.topic in topics:
                found.add(packet.topic)


class TestDollarTopics:
    """Topics that begin with ``$`` are ordinary in MQTT 3.1 and special in MQTT 3.1.1 and 5 [MQTT-4.7.2-1]."""

    def test_dollar_topics_are_separate_unless_configured_otherwise(self, gateway: Waypost) -> None:
        with Raw(gateway, 3).connect("apart") as client:
            client.subscribe("#")
            assert named(client, "$own/a", "plain/a") == {"plain/a"}

    @pytest.mark.parametrize(("version", "dollar"), [(3, True), (4, False), (5, False)])
    @pytest.mark.parametrize("pattern", ["#", "+/a"])
    def test_dollar_topics_follow_the_version_of_the_client(
        self, wide: Waypost, version: int, dollar: bool, pattern: str
    ) -> None:
        with Raw(wide, version).connect(f"each-{version}") as client:
            client.subscribe(pattern, "end")
            expected = {"$own/a", "plain/a"} if dollar else {"plain/a"}
            assert named(client, "$own/a", "plain/a") == expected
            client.send(packets.Unsubscribe(2, (pattern,)))
            while not isinstance(client.receive(), packets.UnsubAck):
                pass  # figures of the gateway are under `$SYS`
            assert named(client, "$own/a", "plain/a") == set()

    def test_dollar_topics_are_stored_and_retained(self, wide: Waypost) -> None:
        with Raw(wide, 4).connect("sender") as sender:
            sender.send(packets.Publish("$own/kept", b"retained", retain=True))
            with Raw(wide, 3).connect("sleeper", clean_start=False) as client:
                assert client.subscribe("#", qos=1) == [1]
                found: set[str] = set()
                while not {"$own/kept", "$SYS/broker/version"} <= found:
                    packet = client.receive()
                    assert isinstance(packet, packets.Publish)
                    found.add(packet.topic)
            sender.send(packets.Publish("$own/b", b"while away", 1, packet_id=1))
            assert sender.receive() == packets.PubAck(1)
        with Raw(wide, 3).connect("sleeper", clean_start=False) as client:
            while (packet := client.receive()) is not None:
                if isinstance(packet, packets.Publish) and packet.topic == "$own/b":
                    break
            assert packet == packets.Publish("$own/b", b"while away", 1, packet_id=1)

    def test_a_session_that_learns_a_newer_version_has_one_subscription(self, wide: Waypost) -> None:
        with Raw(wide, 3).connect("grows", clean_start=False) as client:
            client.subscribe("+/x")
        with Raw(wide, 4).connect("grows", clean_start=False) as client:
            client.subscribe("+/x", "end")
            assert named(client, "$own/x", "plain/x") == {"plain/x"}
        with Raw(wide, 4).connect("grows", clean_start=True):
            pass

    def test_client_of_mqtt_3_1_gets_dollar_topics(self, wide: Waypost) -> None:
        command = mosquitto(wide, "mosquitto_sub", "-i", "old", "-t", "+/broker/version", "-C", "1", "-v", "-W", "20")
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.stdout.startswith("$SYS/broker/version waypost "), done.stderr
