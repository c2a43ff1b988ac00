"""Forwarders over MQTT to Mosquitto, and to a gateway: both ways, over restarts of the peer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bridge.connectors.mqtt.client import MqttClient
from bridge.connectors.mqtt.dialects import DIALECTS
from bridge.connectors.settings import MqttSettings
from bridge.message import Run
from bridge.message_origin import find_origin
from bridge.publish_properties import PublishProperties, read, write
from bridge.publisher import device_of, is_relay
from tests.integration.forwarders.gateways import Receiver, Sender, eventually, gateways, into, mqtt_to, out, scenario
from tests.support.mosquitto import Listener, Mosquitto, installed
from tests.support.paho_client import PahoClient, publish_messages
from tests.support.paho_loop import running_loop

MESSAGES = 2_000


@pytest.fixture
def mosquitto(tmp_path: Path) -> Mosquitto:
    return Mosquitto(tmp_path / "mosquitto")


@installed
def test_outgoing_messages_survive_a_restart_of_the_broker(mosquitto: Mosquitto) -> None:
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
def test_incoming_messages_survive_a_restart_of_the_broker(mosquitto: Mosquitto) -> None:
    """The broker keeps the session: messages that it took while the gateway was away arrive later."""

    async def run() -> list[bytes]:
        async with gateways("gw1") as (near,):
            reader = Receiver(near.broker, "plant/#", name="reader")
            await near.configure(mqtt_to(mosquitto.port), into("f", "plant/#", "far/#"))
            await eventually(lambda: near.connector().dialer.state.connected)
            publish_messages(mosquitto.port, "far/1", (b"%d" % n for n in range(500)))
            near.connector().dialer.pause()
            await eventually(lambda: not near.connector().dialer.state.connected)
            await asyncio.to_thread(publish_messages, mosquitto.port, "far/1", [b"%d" % n for n in range(500, 1_000)])
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
def test_message_above_the_limit_is_skipped(mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture) -> None:
    """Mosquitto takes messages of up to 256 MB, and would redeliver a large one on each connection."""

    async def run(listener: Listener) -> None:
        async with gateways("gw1") as (near,):
            reader = Receiver(near.broker, "plant/#", name="reader")
            await near.configure(
                mqtt_to(mosquitto.port), into("in", "plant/#", "far/#"), out("out", "queue/out", "cloud/out")
            )
            await eventually(lambda: near.connector().dialer.state.connected)
            for topic, size in (("far/before", 1), ("far/big", 17_000_000), ("far/after", 2)):
                await asyncio.to_thread(publish_messages, mosquitto.port, topic, [bytes(size)])
            Sender(near.broker).publish("queue/out", *(b"%d" % n for n in range(20)))
            await eventually(lambda: near.connector().backlog == 0, "what goes out goes on")
            await eventually(lambda: len(listener.messages) == 20)
            await eventually(lambda: {run.address for run in reader.runs} == {"plant/before", "plant/after"})
            assert near.connector().refused_here == {"in": 1}
            (lost,) = near.store.ledger.entries(0, 10)
            assert lost[1:8] == ("inbound/peer/in", "$inbound/peer/in", 0, 0, 1, 17_000_017, "inbound-too-large")
            near.connector().dialer.pause()
            await eventually(lambda: not near.connector().dialer.state.connected)
            near.connector().dialer.resume()
            await asyncio.to_thread(publish_messages, mosquitto.port, "far/last", [b"3"])
            await eventually(lambda: reader.runs[-1].address == "plant/last")
            assert near.connector().inboxes[0].figures.received == 4, "it was acknowledged, and does not come again"

    with mosquitto.running(), Listener(mosquitto.port, "cloud/#").listening() as listener:
        asyncio.run(run(listener))
    assert "the message to far/big has 17000017 bytes, more than 16842768" in caplog.text


@pytest.fixture
def dialects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connectors start with an older MQTT version; Mosquitto speaks the newest."""
    monkeypatch.setitem(MqttClient.__init__.__kwdefaults__, "dialects", DIALECTS[request.param :])


@installed
@pytest.mark.parametrize("dialects", [0, 1], indirect=True, ids=["MQTT 5", "bridge of MQTT 3.1.1"])
def test_retained_messages_follow_the_peer(mosquitto: Mosquitto, dialects: None) -> None:
    """Updates and deletions arrive as retained; a reconnect creates no new messages from old values."""

    async def run() -> None:
        async with gateways("gw1") as (near,):
            retained, reader = near.broker.router.retained, Receiver(near.broker, "plant/#", name="reader")

            def kept(name: str) -> list[bytes]:
                run = retained.get(f"plant/{name}")
                return [] if run is None else run.bodies

            async def put(name: str, payload: bytes) -> None:
                await asyncio.to_thread(publish_messages, mosquitto.port, f"far/{name}", [payload], retain=True)

            for name in ("a", "b", "c"):
                await put(name, b"1")
            await near.configure(mqtt_to(mosquitto.port), into("f", "plant/#", "far/#"))
            await eventually(lambda: kept("a") == kept("b") == kept("c") == [b"1"])
            await put("a", b"2")
            await put("b", b"")
            await eventually(lambda: (kept("a"), kept("b")) == ([b"2"], []), "an update, and a deletion")
            near.connector().dialer.pause()
            await eventually(lambda: not near.connector().dialer.state.connected)
            await put("c", b"2")
            near.connector().dialer.resume()
            await eventually(lambda: kept("c") == [b"2"], "an update while away")
            near.connector().dialer.pause()
            await eventually(lambda: not near.connector().dialer.state.connected)
            await asyncio.to_thread(_forget_session, mosquitto.port, "gw1-peer")
            received = near.connector().inboxes[0].figures.received
            near.connector().dialer.resume()
            await eventually(
                lambda: near.connector().inboxes[0].figures.received == received + 2, "all that is retained"
            )
            await put("a", b"2")
            await put("end", b"1")
            await eventually(lambda: kept("end") == [b"1"])
            got = [(run.address, body) for run in reader.runs for body in run.bodies]
            expected = {"a": [b"1", b"2", b"2"], "b": [b"1", b""], "c": [b"1", b"2"], "end": [b"1"]}
            found = {name: [body for address, body in got if address == f"plant/{name}"] for name in expected}
            assert found == expected, (
                "a value that was only retained came once, and one that was published again came again"
            )

    with mosquitto.running():
        asyncio.run(run())


@installed
def test_repeated_message_is_dropped_by_its_name(mosquitto: Mosquitto) -> None:
    """Gateways forward over a broker that restarts: each message arrives once, with its device."""

    async def run() -> list[Run]:
        async with gateways("gw1", "gw2") as (near, far):
            reader = Receiver(far.broker, "plant/#", name="reader")
            await far.configure(mqtt_to(mosquitto.port), into("f", "plant/#", "cloud/#"))
            await eventually(lambda: far.connector().dialer.state.connected)
            await near.configure(mqtt_to(mosquitto.port), out("f", "plant/#", "cloud/#"))
            sender, expires = Sender(near.broker), write(PublishProperties(expiry_s=600, users=(("a", "b"),)))
            for start in range(0, MESSAGES, 100):
                bodies = (b"%d" % n for n in range(start, start + 100))
                sender.publish("plant/7", *bodies, properties=expires, device="pump")
            await eventually(lambda: near.connector().figures.messages_accepted > MESSAGES / 4)
            await asyncio.to_thread(mosquitto.restart)
            for each in (near, far):
                each.connector().dialer.resume()
            await eventually(lambda: near.connector().backlog == 0, "everything is acknowledged")
            await asyncio.to_thread(_publish_again, mosquitto.port)
            await eventually(lambda: far.connector().inboxes[0].figures.duplicates > 0)
            await asyncio.to_thread(publish_messages, mosquitto.port, "cloud/end", [b"end"])
            await eventually(lambda: reader.runs and reader.runs[-1].bodies == [b"end"])
            return reader.runs[:-1]

    with mosquitto.running():
        runs = asyncio.run(run())
    assert [body for run in runs for body in run.bodies] == [*(b"%d" % n for n in range(MESSAGES)), b"once"]
    assert {device_of(run.device) for run in runs[:-1]} == {"pump"}
    properties = read(runs[0].properties)
    users = dict(properties.users)
    assert (users["a"], users["x-opt-waypost-hops"]) == ("b", "gw1")
    origin = find_origin(runs[0].flags, runs[0].properties, runs[0].bodies[0])
    assert origin is not None
    assert is_relay(runs[0].device)
    assert origin[:1] + origin[2:5] == ("gw1", "plant/7", 0, "pump")
    assert properties.expiry_s is not None
    assert 0 < properties.expiry_s <= 600


@scenario
async def test_messages_go_to_another_gateway_and_back() -> None:
    """Forward to Waypost's own listener and back."""
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
def test_refused_connection_has_a_one_line_error_with_the_next_step(tmp_path: Path) -> None:
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
            assert "; check the rights" in error
            assert near.connector().backlog == 1

    with mosquitto.running():
        asyncio.run(run())


def _forget_session(port: int, client_id: str) -> None:
    with PahoClient(paho.Client(paho.CallbackAPIVersion.VERSION2, client_id)).connect(port):
        pass


def _publish_again(port: int) -> None:
    """Send two messages with one name."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "repeater", protocol=paho.MQTTv5)
    client.connect("127.0.0.1", port)
    names = Properties(PacketTypes.PUBLISH)
    for name, value in (("epoch", "e"), ("address", "plant/7"), ("sequence", "7")):
        names.UserProperty = (f"x-opt-waypost-{name}", value)
    with running_loop(client):
        for _ in range(2):
            client.publish("cloud/elsewhere", b"once", 1, properties=names).wait_for_publish(30)
