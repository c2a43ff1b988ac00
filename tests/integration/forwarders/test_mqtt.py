"""Forwarders over MQTT to Mosquitto, and to a gateway: both ways, over restarts of the peer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from bridge.connectors.settings import MqttSettings
from edge.broker.configuration import Connector, ConnectorType, EndpointHost
from tests.integration.forwarders.gateways import Receiver, Sender, eventually, gateways
from tests.integration.forwarders.test_amqp import into, out, scenario
from tests.support.mosquitto import Listener, Mosquitto, installed
from tests.support.paho_loop import stop_loop
from tests.support.processes import wait_until

MESSAGES = 2_000


def mqtt_to(port: int, **fields: object) -> Connector:
    hosts = (EndpointHost(host="127.0.0.1", port=port),)
    return Connector(name="peer", type=ConnectorType.MQTT, hosts=hosts, **fields)  # type: ignore[arg-type]


@pytest.fixture
def mosquitto(tmp_path: Path) -> Mosquitto:
    return Mosquitto(tmp_path / "mosquitto")


@installed
def test_out_while_the_broker_restarts(mosquitto: Mosquitto) -> None:
    async def run(listener: Listener) -> None:
        async with gateways("gw1") as (near,):
            await near.configure(
                mqtt_to(mosquitto.port, mqtt=MqttSettings(in_flight_max=50)), out("f", "plant/#", "cloud/#")
            )
            sender = Sender(near.broker)
            for start in range(0, MESSAGES, 100):
                sender.publish("plant/7", *(b"%d" % n for n in range(start, start + 100)))
            await eventually(lambda: near.connector().figures.messages_accepted > MESSAGES / 4)
            await asyncio.to_thread(mosquitto.restart)
            near.connector().dialer.resume()
            await eventually(lambda: near.connector().backlog == 0, "everything is acknowledged")
            await eventually(lambda: len(set(listener.messages)) == MESSAGES, "everything came")

    with mosquitto.running(), Listener(mosquitto.port, "cloud/#").listening() as listener:
        asyncio.run(run(listener))
    assert {topic for topic, _ in listener.messages} == {"cloud/7"}
    first = list(dict.fromkeys(payload for _, payload in listener.messages))
    assert first == [b"%d" % n for n in range(MESSAGES)], "in order, but for what came again"


@installed
def test_in_while_the_broker_restarts(mosquitto: Mosquitto) -> None:
    """The session is kept at the broker: what comes while the gateway is away is there when it returns."""

    async def run() -> list[bytes]:
        async with gateways("gw1") as (near,):
            reader = Receiver(near.broker, "plant/#", name="reader")
            await near.configure(mqtt_to(mosquitto.port), into("f", "plant/#", "far/#"))
            await eventually(lambda: near.connector().dialer.state.connected)
            _publish(mosquitto.port, range(500))
            near.connector().dialer.pause()
            await eventually(lambda: not near.connector().dialer.state.connected)
            await asyncio.to_thread(_publish, mosquitto.port, range(500, 1_000))
            await asyncio.to_thread(mosquitto.restart)
            near.connector().dialer.resume()
            await eventually(lambda: len({body for run in reader.runs for body in run.bodies}) == 1_000)
            assert {run.address for run in reader.runs} == {"plant/1"}
            await eventually(lambda: near.connector().inboxes[0].figures.accepted >= 1_000)
            return [body for run in reader.runs for body in run.bodies]

    with mosquitto.running():
        got = asyncio.run(run())
    assert list(dict.fromkeys(got)) == [b"%d" % n for n in range(1_000)]


@installed
def test_a_message_larger_than_is_taken_is_read_past(mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    """Mosquitto takes messages of up to 256 MB, and would send it again at each connection."""

    async def run(listener: Listener) -> None:
        async with gateways("gw1") as (near,):
            reader = Receiver(near.broker, "plant/#", name="reader")
            await near.configure(
                mqtt_to(mosquitto.port), into("in", "plant/#", "far/#"), out("out", "queue/out", "cloud/out")
            )
            await eventually(lambda: near.connector().dialer.state.connected)
            for topic, size in (("far/before", 1), ("far/big", 17_000_000), ("far/after", 2)):
                await asyncio.to_thread(_publish_one, mosquitto.port, topic, bytes(size))
            Sender(near.broker).publish("queue/out", *(b"%d" % n for n in range(20)))
            await eventually(lambda: near.connector().backlog == 0, "what goes out goes on")
            await eventually(lambda: len(listener.messages) == 20)
            await eventually(lambda: {run.address for run in reader.runs} == {"plant/before", "plant/after"})
            assert near.connector().refused_here == {"in": 1}
            near.connector().dialer.pause()
            await eventually(lambda: not near.connector().dialer.state.connected)
            near.connector().dialer.resume()
            await asyncio.to_thread(_publish_one, mosquitto.port, "far/last", b"3")
            await eventually(lambda: reader.runs[-1].address == "plant/last")
            assert near.connector().inboxes[0].figures.received == 4, "it was acknowledged, and does not come again"

    with mosquitto.running(), Listener(mosquitto.port, "cloud/#").listening() as listener:
        asyncio.run(run(listener))
    assert "the message to far/big has 17000016 bytes; at most 16842768 are taken" in caplog.text


@scenario
async def test_to_a_gateway_and_back() -> None:
    """Waypost's own listener as the peer."""
    async with gateways("gw1", "gw2") as (near, far):
        there, here = Receiver(far.broker, "site/#", name="there"), Receiver(near.broker, "queue/back")
        await near.configure(
            mqtt_to(far.mqtt_port), out("f", "plant/#", "site/{device}/{address}"), into("b", "queue/back", "plant/x")
        )
        Sender(near.broker).publish("plant/1", b"up")
        await eventually(lambda: near.connector().figures.messages_accepted == 1)
        Sender(far.broker).publish("plant/x", b"down")
        await eventually(lambda: [run.bodies for run in here.runs] == [[b"down"]])
        assert [(run.address, run.bodies) for run in there.runs] == [("site/dev/plant/1", [b"up"])]


@installed
def test_a_refusal_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    passwords.chmod(0o644)
    mosquitto = Mosquitto(tmp_path / "mosquitto")
    text = mosquitto._file.read_text().replace("allow_anonymous true", f"password_file {passwords}")
    mosquitto._file.write_text(text)

    async def run() -> None:
        async with gateways("gw1") as (near,):
            await near.configure(mqtt_to(mosquitto.port), out("f", "plant/#", "cloud/#"))
            Sender(near.broker).publish("plant/7", b"1")
            await eventually(lambda: near.connector().dialer.state.refused)
            error = near.connector().dialer.state.last_error
            assert error is not None
            assert error.startswith(f"mqtt://127.0.0.1:{mosquitto.port}: the broker refuses the connection: ")
            assert "see " in error
            assert near.connector().backlog == 1

    with mosquitto.running():
        asyncio.run(run())


def _publish_one(port: int, topic: str, payload: bytes, *, retain: bool = False) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "publisher")
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.publish(topic, payload, 1, retain).wait_for_publish(30)
    client.disconnect()
    stop_loop(client)


def _publish(port: int, numbers: range) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "publisher")
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = [client.publish("far/1", b"%d" % n, qos=1) for n in numbers]
    wait_until(lambda: all(each.is_published() for each in sent), timeout_s=30, what="the broker has them")
    client.disconnect()
    stop_loop(client)
