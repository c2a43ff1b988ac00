"""A gateway with independent clients: Mosquitto's, Paho, and Proton's Python API."""

from __future__ import annotations

import queue
import subprocess
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from proton import Message
from proton.utils import ConnectionClosed

from tests.support.amqp_client import connect_amqp, detached_with
from tests.support.http_client import status
from tests.support.paho_client import mqtt_client
from tests.support.paho_loop import stop_loop
from tests.support.processes import Waypost, edge, wait_until
from tests.support.programs import mosquitto_clients

WAIT_S = 20.0


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_subscribes(gateway: Waypost, version: int, qos: int) -> None:
    topic = f"topic/ps/{version}/{qos}"
    with mqtt_client(gateway, f"sub{version}{qos}", version=version) as sub:
        assert sub.subscribe("topic/ps/+/" + str(qos), qos) == [qos]
        with mqtt_client(gateway, f"pub{version}{qos}", version=version) as pub:
            for i in range(20):
                pub.publish(topic, b"%d" % i, qos)
        assert [sub.get() for _ in range(20)] == [(topic, b"%d" % i, qos, False) for i in range(20)]


@mosquitto_clients
def test_mosquitto_publishes_and_subscribes(gateway: Waypost) -> None:
    port = str(gateway.port("mqtt"))
    command = ["mosquitto_sub", "-p", port, "-t", "topic/mosquitto/#", "-q", "2", "-C", "3", "-v", "-W", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sub:
        for i in range(200):  # until it has subscribed
            subprocess.run(
                ["mosquitto_pub", "-p", port, "-t", f"topic/mosquitto/{i}", "-m", f"hello {i}", "-q", "1"], check=True
            )
            if sub.poll() is not None:
                break
        assert sub.stdout is not None
        lines = sub.stdout.read().split("\n")
        assert sub.wait() == 0
    first = int(lines[0].rsplit(" ", 1)[1])
    assert lines[:3] == [f"topic/mosquitto/{i} hello {i}" for i in range(first, first + 3)]


@pytest.mark.parametrize("version", [4, 5])
def test_retained_message_is_delivered_and_deleted(gateway: Waypost, version: int) -> None:
    with mqtt_client(gateway, "keeper", version=version) as pub:
        pub.publish(f"topic/retained/{version}", b"kept", 1, retain=True)
    with mqtt_client(gateway, "late", version=version) as sub:
        sub.subscribe(f"topic/retained/{version}", 1)
        assert sub.get() == (f"topic/retained/{version}", b"kept", 1, True)
    with mqtt_client(gateway, "keeper", version=version) as pub:
        pub.publish(f"topic/retained/{version}", b"", 1, retain=True)
    with mqtt_client(gateway, "later", version=version) as sub:
        sub.subscribe(f"topic/retained/{version}", 1)
        sub.publish(f"topic/retained/{version}", b"fresh", 1)
        assert sub.get() == (f"topic/retained/{version}", b"fresh", 1, False)


@pytest.mark.parametrize("version", [4, 5])
def test_will_is_published_when_its_client_vanishes(gateway: Waypost, version: int) -> None:
    with mqtt_client(gateway, "heir", version=version) as sub:
        sub.subscribe("topic/will/+", 1)
        doomed = paho.Client(CallbackAPIVersion.VERSION2, "doomed", protocol=version)  # type: ignore[arg-type]
        doomed.will_set(f"topic/will/{version}", b"gone", 1)
        doomed.connect("127.0.0.1", gateway.port("mqtt"))
        connected: queue.Queue[bool] = queue.Queue()
        doomed.on_connect = lambda *_: connected.put(True)
        doomed.loop_start()
        connected.get(timeout=WAIT_S)
        stop_loop(doomed)
        doomed._reset_sockets()  # closes the connection without a DISCONNECT
        assert sub.get() == (f"topic/will/{version}", b"gone", 1, False)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_persistent_session_gets_missed_messages(gateway: Waypost, version: int, qos: int) -> None:
    name, topic = f"persistent{version}{qos}", f"topic/persistent/{version}{qos}"
    with mqtt_client(gateway, name, version=version, clean=False) as sub:
        assert not sub.session_present
        sub.subscribe(topic, qos)
    with mqtt_client(gateway, f"pub{name}", version=version) as pub:
        for i in range(300):
            pub.publish(topic, b"%d" % i, qos)
    with mqtt_client(gateway, name, version=version, clean=False) as sub:
        assert sub.session_present
        assert sub.bodies(300) == [b"%d" % i for i in range(300)]
    with mqtt_client(gateway, name, version=version, clean=True) as sub:
        assert not sub.session_present


def test_persistent_session_survives_a_kill(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        with mqtt_client(gateway, "sleeper", clean=False) as sub:
            sub.subscribe("topic/kill/#", 1)
        with mqtt_client(gateway, "pub") as pub:
            for i in range(100):
                pub.publish(f"topic/kill/{i % 3}", b"%d" % i, 1)
        gateway.kill()
        gateway.start()
        with mqtt_client(gateway, "sleeper", clean=False) as sub:
            assert sub.session_present
            assert sub.bodies(100) == [b"%d" % i for i in range(100)]
            sub.publish("topic/kill/after", b"after", 1)
            assert sub.get()[1] == b"after"


def test_queue_consumers_compete_over_both_protocols(gateway: Waypost) -> None:
    amqp = connect_amqp(gateway)
    with mqtt_client(gateway, "competitor") as mqtt:
        mqtt.subscribe("queue/compete", 1)
        receiver = amqp.create_receiver("queue/compete", credit=5)
        with mqtt_client(gateway, "feeder") as pub:
            for i in range(40):
                pub.publish("queue/compete", b"%d" % i, 1)
        over_amqp: list[bytes] = []
        over_mqtt: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while len(over_amqp) + len(over_mqtt) < 40 and time.monotonic() < deadline:
            while receiver.fetcher.has_message:
                message = receiver.receive(timeout=WAIT_S)  # keep a reference: its body is a view into it
                over_amqp.append(bytes(message.body))
                receiver.accept()
            amqp.container.do_work(0.05)
            while not mqtt.received.empty():
                over_mqtt.append(mqtt.get()[1])
    amqp.close()
    assert sorted([*over_amqp, *over_mqtt], key=int) == [b"%d" % i for i in range(40)]
    assert over_amqp
    assert over_mqtt


def test_amqp_to_mqtt_and_back(gateway: Waypost) -> None:
    amqp = connect_amqp(gateway)
    with mqtt_client(gateway, "bridged", version=5) as mqtt:
        mqtt.subscribe("topic/both/#", 1)
        sender = amqp.create_sender("topic/both/a")
        sender.send(Message(body=b"from amqp", content_type="text/plain", properties={"unit": "C"}))
        message = mqtt.received.get(timeout=WAIT_S)
        assert (message.topic, message.payload) == ("topic/both/a", b"from amqp")
        assert message.properties is not None
        assert message.properties.ContentType == "text/plain"
        assert ("unit", "C") in message.properties.UserProperty
        receiver = amqp.create_receiver("topic/both/b", credit=10)
        mqtt.publish("topic/both/b", b"from mqtt", 1)
        got = receiver.receive(timeout=WAIT_S)
        receiver.accept()
        assert (bytes(got.body), got.address) == (b"from mqtt", "topic/both/b")
    amqp.close()


def test_queue_delivers_released_and_unsettled_messages_again(gateway: Waypost) -> None:
    first = connect_amqp(gateway)
    sender = first.create_sender("queue/kept")
    for i in range(10):
        sender.send(Message(body=f"{i}"))
    receiver = first.create_receiver("queue/kept", credit=10)
    assert [receiver.receive(timeout=WAIT_S).body for _ in range(4)] == ["0", "1", "2", "3"]
    receiver.accept()  # the oldest of the four
    receiver.release(delivered=False)
    first.close()
    second = connect_amqp(gateway)
    receiver = second.create_receiver("queue/kept", credit=20)
    bodies = []
    for _ in range(9):
        bodies.append(receiver.receive(timeout=WAIT_S).body)
        receiver.accept()
    second.close()
    assert sorted(bodies) == [str(i) for i in range(1, 10)]


def test_anycast_settles_end_to_end(gateway: Waypost) -> None:
    sending = connect_amqp(gateway)
    with mqtt_client(gateway, "taker") as mqtt:
        mqtt.subscribe("anycast/work", 1)
        sender = sending.create_sender("anycast/work")
        for i in range(5):
            sender.send(Message(body=b"%d" % i))  # returns after the consumer's PUBACK has arrived as accepted
        assert mqtt.bodies(5) == [b"%d" % i for i in range(5)]
    sending.close()


def test_multicast_reaches_every_connected_subscriber(gateway: Waypost) -> None:
    with mqtt_client(gateway, "m1") as one, mqtt_client(gateway, "m2") as two, mqtt_client(gateway, "m3") as pub:
        one.subscribe("multicast/news", 0)
        two.subscribe("multicast/+", 1)
        pub.publish("multicast/news", b"hello", 1)
        assert one.get()[1] == two.get()[1] == b"hello"


def test_second_connection_takes_over_the_session(gateway: Waypost) -> None:
    with mqtt_client(gateway, "twice", version=5, clean=False) as first:
        first.subscribe("topic/takeover", 1)
        lost: queue.Queue[int] = queue.Queue()
        first.client.on_disconnect = lambda _c, _d, _f, reason, _p: lost.put(reason.value)
        first.client.reconnect_delay_set(min_delay=60, max_delay=60)
        with mqtt_client(gateway, "twice", version=5, clean=False) as second:
            assert second.session_present
            assert lost.get(timeout=WAIT_S) == 0x8E  # Session taken over
            second.publish("topic/takeover", b"to the second", 1)
            assert second.get()[1] == b"to the second"
            assert first.received.empty()


def test_bad_address_is_refused_with_a_condition(gateway: Waypost) -> None:
    amqp = connect_amqp(gateway)
    with detached_with("amqp:invalid-field"):
        amqp.create_sender("topic/with/#/inside")
    amqp.close()


def test_status_counts_clients_and_messages(gateway: Waypost) -> None:
    with mqtt_client(gateway, "counted") as client:
        client.publish("queue/counted", b"x", 1)
        wait_until(  # written bytes are counted at intervals
            lambda: status(gateway)["store"]["wear"]["payload_bytes"] >= 1,
            timeout_s=WAIT_S,
            what="the payload is counted",
        )
        found = status(gateway)
        assert found["clients"]["mqtt"] >= 1
        assert found["messages"]["acknowledged"] >= 1
        counted = {"address": "queue/counted", "type": "queue", "received": 1, "stored": 1, "subscribers": 0}
        assert counted in found["addresses"]


def test_amqp_clients_get_a_condition_when_the_gateway_stops(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as stopping:
        connection = connect_amqp(stopping, reconnect=False)
        receiver = connection.create_receiver("queue/a")
        assert stopping.stop() == 0
        with pytest.raises(ConnectionClosed, match="amqp:connection:forced"):
            receiver.receive(timeout=WAIT_S)
