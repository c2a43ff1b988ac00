"""A Mosquitto bridge to a gateway with its default settings: the most common way to migrate to another broker."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edge.broker.limits import CONNECTION_STATE_BYTES_MAX
from edge.broker.mqtt import packets
from tests.support.hostile import Raw
from tests.support.mosquitto import Mosquitto, installed
from tests.support.paho_loop import running_loop
from tests.support.processes import Waypost, edge, free_port, wait_until

WAIT_S = 30.0
VERSIONS = ("mqttv31", "mqttv311", "mqttv50")


class Seen(NamedTuple):
    topic: str
    payload: bytes
    retain: bool


class Watcher:
    """Paho with MQTT 5, a kept session and retain-as-published, so that the flag of every message is visible."""

    def __init__(self, port: int, *filters: str, name: str = "watcher") -> None:
        self.seen: list[Seen] = []
        self._filters = filters
        self._subscribed = threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = self._on_connect
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = self._on_message
        kept = Properties(PacketTypes.CONNECT)
        kept.SessionExpiryInterval = 600
        self.client.connect("127.0.0.1", port, clean_start=False, properties=kept)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watcher]:
        with running_loop(self.client):
            assert self._subscribed.wait(WAIT_S)
            yield self

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.client.publish(topic, payload, 1, retain).wait_for_publish(WAIT_S)

    def payloads(self, topic: str) -> list[bytes]:
        return [each.payload for each in self.seen if each.topic == topic]

    def sees(self, *wanted: Seen) -> None:
        """Wait until all of these messages have arrived."""
        wait_until(lambda: set(wanted) <= set(self.seen), timeout_s=WAIT_S, what=f"{wanted} among {self.seen}")

    def _on_connect(self, client: paho.Client, *_: Any) -> None:
        options = paho.SubscribeOptions(1, retainAsPublished=True, retainHandling=1)
        client.subscribe([(each, options) for each in self._filters])

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.seen.append(Seen(message.topic, message.payload, bool(message.retain)))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    """Run a gateway on a port that it keeps over a restart."""
    with edge(tmp_path, "gw", f"--mqtt=127.0.0.1:{free_port()}") as running:
        yield running


def bridge(folder: Path, gateway: Waypost, *settings: str) -> Mosquitto:
    return Mosquitto(
        folder / "mosquitto",
        "connection wp",
        f"address 127.0.0.1:{gateway.port('mqtt')}",
        "topic br/# both 1",
        "restart_timeout 1",
        "remote_clientid site-a.wp",
        *settings,
    )


@contextlib.contextmanager
def both(gateway: Waypost, mosquitto: Mosquitto) -> Iterator[tuple[Watcher, Watcher]]:
    """Yield a watcher for each side."""
    there, here = Watcher(mosquitto.port, "br/#"), Watcher(gateway.port("mqtt"), "br/#", "$SYS/broker/connection/#")
    with there.watching(), here.watching():
        yield there, here


def exchange(there: Watcher, here: Watcher, mark: bytes) -> None:
    """Publish a message and a retained one each way; each arrives with its flag and never returns. A retained message
    may arrive twice, when the bridge subscribes again.
    """
    for watcher, other, name in ((there, here, "there"), (here, there, "here")):
        wait_until(lambda w=watcher, o=other, n=name: reaches(w, o, f"br/first/{n}", mark), timeout_s=WAIT_S, what="up")
        watcher.publish(f"br/{name}", mark)
        watcher.publish(f"br/kept/{name}", mark, retain=True)
        wanted = (Seen(f"br/{name}", mark, False), Seen(f"br/kept/{name}", mark, True))
        other.sees(*wanted)
        watcher.sees(*wanted)
    for watcher, other, name in ((there, here, "there"), (here, there, "here")):
        watcher.publish(f"br/last/{name}", mark)  # published after any echo
        other.sees(Seen(f"br/last/{name}", mark, False))
        watcher.sees(Seen(f"br/last/{name}", mark, False))
    for watcher, name in ((there, "there"), (here, "here")):
        counts = Counter(each.topic for each in watcher.seen if each.payload == mark)
        once = {f"br/{name}", f"br/kept/{name}", f"br/last/{name}", "br/there", "br/here"}
        assert {counts[topic] for topic in once} == {1}, counts


def reaches(watcher: Watcher, other: Watcher, topic: str, mark: bytes) -> bool:
    """Return True when the bridge forwards in this direction."""
    watcher.publish(topic, mark)
    return mark in other.payloads(topic)


@installed
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("notifications", ["true", "false"])
def test_bridge_carries_messages_both_ways_without_an_echo(
    tmp_path: Path, gateway: Waypost, version: str, notifications: str
) -> None:
    settings = (f"bridge_protocol_version {version}", f"notifications {notifications}")
    mosquitto = bridge(tmp_path, gateway, *settings)
    with mosquitto.running(), both(gateway, mosquitto) as (there, here):
        exchange(there, here, b"1")
        assert (Seen("$SYS/broker/connection/site-a.wp/state", b"1", True) in here.seen) is (notifications == "true")


@installed
def test_bridge_with_default_settings_survives_restarts_of_either_side(tmp_path: Path, gateway: Waypost) -> None:
    mosquitto = bridge(tmp_path, gateway)
    state = "$SYS/broker/connection/site-a.wp/state"
    with mosquitto.running(), both(gateway, mosquitto) as (there, here):
        exchange(there, here, b"1")
        here.sees(Seen(state, b"1", True))
        mosquitto.stop()
        here.sees(Seen(state, b"0", True))
        here.publish("br/while/there/is/away", b"2")
        here.publish("br/kept/there", b"changed while away", retain=True)
        mosquitto.start()
        there.sees(Seen("br/while/there/is/away", b"2", False), Seen("br/kept/there", b"changed while away", True))
        exchange(there, here, b"3")
        gateway.stop()
        there.publish("br/while/here/is/away", b"4")
        gateway.start()
        here.sees(Seen("br/while/here/is/away", b"4", False))
        exchange(there, here, b"5")
        here.sees(Seen(state, b"1", True))
        there.publish("br/kept/there", b"", retain=True)
        here.sees(Seen("br/kept/there", b"", True))
    late = Watcher(gateway.port("mqtt"), "br/kept/#", state, name="late")
    with late.watching():
        late.sees(Seen("br/kept/here", b"5", True), Seen(state, b"0", True))
        assert not late.payloads("br/kept/there"), "it was deleted at the other side"


class TestStates:
    """Receive and publish the states of bridges."""

    STATE = "$SYS/broker/connection/{}/state"

    @pytest.fixture
    def gateway(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
        with edge(tmp_path_factory.mktemp("states"), "gw") as running:
            yield running

    def test_bridge_may_publish_the_state_of_its_own_connection_only(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("b1") as client:
            sent = (
                packets.Publish(self.STATE.format("b1"), b"1", 1, retain=True, packet_id=1),
                packets.Publish(self.STATE.format("b2"), b"1", 1, retain=True, packet_id=2),
                packets.Publish(self.STATE.format("b1"), b"1" * (CONNECTION_STATE_BYTES_MAX + 1), 1, packet_id=3),
                packets.Publish("$SYS/broker/connection/b1/other", b"1", 1, packet_id=4),
            )
            client.send(*sent)
            answers = [client.receive() for _ in sent]
            assert [each.reason for each in answers if isinstance(each, packets.PubAck)] == [0, 0x87, 0x83, 0x87]

    def test_state_is_published_by_the_will_until_it_is_deleted(self, gateway: Waypost) -> None:
        topic = self.STATE.format("b3")
        with Raw(gateway, 4).connect("watcher") as watcher:
            watcher.subscribe("$SYS/broker/connection/#")
            dying = Raw(gateway, 4).connect("b3", bridge=True, will=packets.WillMessage(topic, b"0", 1, retain=True))
            dying.send(packets.Publish(topic, b"1", 1, retain=True, packet_id=1))
            assert dying.receive() == packets.PubAck(1)
            dying.close()
            assert [watcher.receive(), watcher.receive()] == [
                packets.Publish(topic, b"1"),
                packets.Publish(topic, b"0"),
            ]
            with Raw(gateway, 4).connect("b3", bridge=True) as again:
                assert again.subscribe("$SYS/broker/connection/b3/#") == [0]
                assert again.receive() == packets.Publish(topic, b"0", retain=True)
                again.send(packets.Publish(topic, b"", 1, retain=True, packet_id=1))
                while again.receive() != packets.PubAck(1):
                    pass
            with Raw(gateway, 4).connect("late") as late:
                late.subscribe("$SYS/broker/connection/#", "$SYS/broker/version")
                found = late.receive()
                assert isinstance(found, packets.Publish)
                assert found.topic == "$SYS/broker/version"
