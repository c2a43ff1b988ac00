"""Peers that a gateway dials attack it: its hub, an MQTT broker. Devices are served, and the link returns."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from edge.broker.mqtt import packets
from tests.fault.hostile.far_side import Attack, FarSide, keys_of
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.slow_crowd import GROWTH_MIB_MAX
from tests.fault.hostile.watch import watched
from tests.fault.hostile.web import ask
from tests.support.certificates import Authority
from tests.support.configured_gateway import gateway_with
from tests.support.processes import Waypost, hub, wait_until
from tests.support.tls_peer import TlsPeer

FLOOD_BYTES: Final = 256 * 1024
FLOODS: Final = 6
PART_BYTES: Final = 64 * 1024
SILENT_S: Final = 2.0
"""Silence before the connection of a half message ends."""
BACK_S: Final = 60.0
"""Time until a link is up again: the longest backoff is 30 s."""
FLOOR_S: Final = 0.5
"""Floor for the p99 of a device during an attack, with two busy cores and one attempt."""
HUB, BROKER = "hub", "broker"

AMQP: Final = b"AMQP\3\1\0\0"
EMPTY_FRAME: Final = b"\0\0\0\x08\x02\0\0\0"
SUBSCRIBED: Final = b"\x20\x02\0\0\x90\x03\xff\xff\x01"
PING_ANSWER: Final = b"\xd0\0"


def new_keys(peer: TlsPeer, log: Path) -> None:
    """Send requests for new keys; read the answers, so that the attack can continue."""
    keys = keys_of(log)
    for _ in range(FLOODS):
        flood = keys.key_updates(FLOOD_BYTES // 27)
        for start in range(0, len(flood), PART_BYTES):
            peer.socket.sendall(flood[start : start + PART_BYTES])
            read_what_is_there(peer)


def new_keys_unread(peer: TlsPeer, log: Path) -> None:
    """Send requests for new keys, and read nothing."""
    peer.socket.sendall(keys_of(log).key_updates(FLOOD_BYTES // 27))


def read_what_is_there(peer: TlsPeer) -> None:
    with contextlib.suppress(BlockingIOError):
        while peer.socket.recv(1 << 16, socket.MSG_DONTWAIT):
            pass


def amqp_bytes_each(peer: TlsPeer, _log: Path) -> None:
    """Send empty frames, with one byte in each record."""
    data = AMQP + EMPTY_FRAME * (FLOOD_BYTES // 30 // 8)
    peer.socket.sendall(peer.encrypted(*(bytes([each]) for each in data)))


def mqtt_bytes_each(peer: TlsPeer, _log: Path) -> None:
    """Send answers to pings that were never sent, with one byte in each record."""
    data = SUBSCRIBED + PING_ANSWER * (FLOOD_BYTES // 30 // 2)
    peer.socket.sendall(peer.encrypted(*(bytes([each]) for each in data)))


def small_packets(peer: TlsPeer, _log: Path) -> None:
    """Send small packets in whole records: the cost is in decoding."""
    peer.send(SUBSCRIBED + PING_ANSWER * (FLOOD_BYTES // 2))


def small_frames(peer: TlsPeer, _log: Path) -> None:
    peer.send(AMQP + EMPTY_FRAME * (FLOOD_BYTES // 8))


def huge_frame(peer: TlsPeer, _log: Path) -> None:
    peer.send(AMQP + b"\x7f\xff\xff\xff\x02\0\0\0" + bytes(4 << 20))


def half_message(peer: TlsPeer, _log: Path) -> None:
    """Send half a message of the maximum size, and then nothing."""
    packet = packets.Publish("far/1", bytes(16 << 20), qos=1, packet_id=1).encode(4)
    peer.send(SUBSCRIBED + packet[: len(packet) // 2])
    time.sleep(SILENT_S)  # the attack is the silence


def without_end(peer: TlsPeer, _log: Path) -> None:
    """Send messages, and never an answer to the subscription."""
    message = packets.Publish("far/1", bytes(1 << 10), qos=0).encode(4)
    peer.send(SUBSCRIBED[:4])
    for _ in range(64):
        peer.send(message * 1_000)


ATTACKS: Final[dict[str, tuple[str, Attack]]] = {
    "new keys of a hub": (HUB, new_keys),
    "new keys of a hub that does not read": (HUB, new_keys_unread),
    "a hub's records of a byte": (HUB, amqp_bytes_each),
    "a hub's empty frames": (HUB, small_frames),
    "a hub's huge frame": (HUB, huge_frame),
    "new keys of a broker": (BROKER, new_keys),
    "a broker's records of a byte": (BROKER, mqtt_bytes_each),
    "a broker's small packets": (BROKER, small_packets),
    "half a message of a broker": (BROKER, half_message),
    "a broker's messages without end": (BROKER, without_end),
}
IN_EACH_RUN: Final = ("new keys of a hub", "a broker's records of a byte")


class Site(NamedTuple):
    """Gateway with a hub and a broker, either of which may turn hostile."""

    gateway: Waypost
    far: dict[str, FarSide]

    def linked(self, name: str) -> bool:
        """Return whether the link to it is up."""
        found: Any = ask(self.gateway.port("http"), "GET", "/api/v1/status").document
        (each,) = (each for each in found["bridge"]["connectors"] if each["name"] == name)
        return bool(each["state"] == "connected")


CONFIGURATION: Final = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw1}}
spec:
  hub: {{url: "amqps://localhost:{hub}", tls: {{caCert: {ca}}}}}
  listeners: {{mqtt: "127.0.0.1:0", http: "127.0.0.1:0"}}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {{name: default}}
spec:
  authenticationService: {{name: none}}
  connectors:
  - {{name: broker, type: mqtt, endpointHosts: [{{host: localhost, port: {broker}}}], tls: {{caCert: {ca}}}}}
---
apiVersion: waypost/v1
kind: Address
metadata: {{name: plant}}
spec:
  address: "plant/#"
  type: topic
  forwarders: [{{name: up, remoteAddress: hub}}, {{name: over, remoteAddress: "broker/plant/#"}}]
---
apiVersion: waypost/v1
kind: Address
metadata: {{name: far}}
spec:
  address: "far/#"
  type: topic
  forwarders: [{{name: down, remoteAddress: "broker/far/#", direction: in}}]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, control: Waypost) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("far")
    authority = Authority(folder / "ca")
    for name in (HUB, BROKER):
        (folder / f"far-{name}").mkdir()
    with (
        hub(folder) as real,
        FarSide(folder / f"far-{HUB}", authority, real.port("amqp")) as far_hub,
        FarSide(folder / f"far-{BROKER}", authority, control.port("mqtt")) as far_broker,
    ):
        resources = CONFIGURATION.format(hub=far_hub.port, broker=far_broker.port, ca=authority.certificate)
        with gateway_with(folder, resources) as gateway:
            made = Site(gateway, {HUB: far_hub, BROKER: far_broker})
            for name in (HUB, BROKER):
                wait_until(lambda name=name: made.linked(name), timeout_s=BACK_S, what=f"the link to the {name}")
            yield made


@pytest.mark.parametrize(
    "name", [name if name in IN_EACH_RUN else pytest.param(name, marks=pytest.mark.slow) for name in ATTACKS]
)
def test_hostile_peer_disturbs_no_device_and_link_returns(
    site: Site, control: Waypost, figures: Callable[[Figures], None], name: str
) -> None:
    whom, attack = ATTACKS[name]
    far = site.far[whom]
    with watched(site.gateway, control, name, figures, floor_s=FLOOR_S, grown_mib=GROWTH_MIB_MAX):
        far.attack, before = attack, far.attacked
        far.cut()
        wait_until(lambda: far.attacked > before, timeout_s=BACK_S, what="it was attacked")
    far.attack = None
    far.cut()
    wait_until(lambda: site.linked(whom), timeout_s=BACK_S, what="the link is back")
