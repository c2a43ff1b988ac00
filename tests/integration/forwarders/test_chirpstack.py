"""A gateway with LoRaWAN devices behind a server that speaks ChirpStack's MQTT integration, over Mosquitto."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bridge.command import RECEIPTS, HubCommand, ReceiptDocument, message, queued, read
from bridge.connectors.settings import DownlinkSettings, MqttService, MqttSettings
from bridge.message import AMQP
from bridge.publisher import device_of
from edge.broker.configuration import AddressConfiguration
from edge.broker.model.addresses import AddressRule, AddressType
from tests.integration.forwarders.gateways import Gateway, Receiver, Sender, eventually, gateways, into, mqtt_to, out
from tests.support.chirpstack import APPLICATION, ChirpStack
from tests.support.mosquitto import Mosquitto, installed

pytestmark = installed

EUI, OTHER = "0101010101010101", "0202020202020202"
ADDRESSES = (
    AddressConfiguration(AddressRule("lorawan/#", AddressType.TOPIC)),
    AddressConfiguration(AddressRule("command/+", AddressType.QUEUE)),
    AddressConfiguration(AddressRule(f"{RECEIPTS}/#", AddressType.TOPIC)),
)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path / "mosquitto").running() as running:
        yield running


class Site:
    """Gateway, with what it has received and reported."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.events = Receiver(gateway.broker, "lorawan/#", name="events")
        self.receipts = Receiver(gateway.broker, f"{RECEIPTS}/#", name="receipts")
        self._sender = Sender(gateway.broker)

    def command(self, identifier: str, payload: bytes, device: str = EUI, ttl_ms: int = 60_000) -> None:
        """Put a command of a hub into the queue of a device."""
        made = HubCommand(
            id=identifier, device=device, name="set", payload=payload, content_type=None, ttl_ms=ttl_ms, response=False
        )
        run = queued(read(message(made)), f"command/{device}", "")
        self._sender.publish(f"command/{device}", *run.bodies, flags=run.flags | AMQP, properties=run.properties)

    @property
    def told(self) -> list[tuple[str, str]]:
        """Commands with their receipts."""
        bodies = [body for run in self.receipts.runs for body in run.bodies]
        documents = [msgspec.json.decode(body, type=ReceiptDocument) for body in bodies]
        return [(each.command, each.receipt.value) for each in documents]


@asynccontextmanager
async def connected(mosquitto: Mosquitto, **downlink: object) -> AsyncIterator[Site]:
    """Yield a gateway that is connected to ChirpStack's broker."""
    async with gateways("gw1") as (near,):
        near.configuration = msgspec.structs.replace(near.configuration, addresses=ADDRESSES)
        near.broker.reconfigure(near.configuration)
        site = Site(near)
        settings = MqttSettings(
            service=MqttService.CHIRPSTACK,
            downlink=DownlinkSettings(window_s=5.0, **downlink),  # type: ignore[arg-type]
        )
        await near.configure(
            mqtt_to(mosquitto.port, mqtt=settings),
            into("events", "lorawan/+/+/+", "application/+/device/+/event/+"),
            out("commands", "command/+", f"application/{APPLICATION}/device/+/command/down"),
        )
        await eventually(lambda: near.connector().dialer.state.connected)
        yield site


async def meanwhile(call: Callable[[str], object], device: str) -> None:
    """Call a function that waits, in a thread."""
    await asyncio.to_thread(call, device)


def test_events_are_messages_of_their_device(mosquitto: Mosquitto) -> None:
    async def run() -> None:
        async with connected(mosquitto) as site:
            with ChirpStack(mosquitto.port) as server:
                server.event(EUI, "join", devAddr="00189440")
                server.uplink(EUI)
                server.event(OTHER, "status", margin=10, batteryLevel=75.5)
                await eventually(lambda: len(site.events.runs) == 3)
            found = {each.address: each for each in site.events.runs}
            assert set(found) == {
                f"lorawan/{APPLICATION}/{EUI}/join",
                f"lorawan/{APPLICATION}/{EUI}/up",
                f"lorawan/{APPLICATION}/{OTHER}/status",
            }
            uplink = found[f"lorawan/{APPLICATION}/{EUI}/up"]
            assert device_of(uplink.device) == EUI
            assert json.loads(uplink.bodies[0])["data"] == "AQ=="

    asyncio.run(run())


def test_command_waits_for_an_uplink_and_ends_with_txack(mosquitto: Mosquitto) -> None:
    async def run() -> None:
        async with connected(mosquitto) as site:
            with ChirpStack(mosquitto.port) as server:
                site.command("a1", b"\x01")
                site.command("a2", b'{"fPort": 9, "object": {"led": true}}')
                site.command("b1", b"\x03", OTHER)
                server.uplink(OTHER)
                await meanwhile(server.send, OTHER)
                await eventually(lambda: site.told == [("b1", "delivered")])
                assert not server.queues[EUI], "this device has not sent"
                for number in (1, 2):
                    server.uplink(EUI)
                    await meanwhile(server.send, EUI)
                    await eventually(lambda number=number: len(site.told) == 1 + number)
                assert site.told[1:] == [("a1", "delivered"), ("a2", "delivered")]
                first, second = server.sent[1:]
                assert (first["data"], first["fPort"]) == ("AQ==", 1)
                assert (second["object"], second["fPort"]) == ({"led": True}, 9)

    asyncio.run(run())


def test_command_of_class_c_leaves_at_once_and_a_confirmed_one_waits_for_its_device(mosquitto: Mosquitto) -> None:
    async def run() -> None:
        async with connected(mosquitto, confirmed=True) as site:
            with ChirpStack(mosquitto.port, kind="CLASS_C") as server:
                server.event(EUI, "status", margin=10)
                await eventually(lambda: site.events.runs)
                site.command("c1", b"\x01")
                await meanwhile(server.send, EUI)
                server.acknowledge(EUI, acknowledged=False)
                await meanwhile(server.send, EUI)
                assert site.told == []
                server.acknowledge(EUI, acknowledged=True)
                await eventually(lambda: site.told == [("c1", "delivered")])
                assert [each["id"] for each in server.sent] == [server.sent[0]["id"]] * 2

    asyncio.run(run())


def test_newest_command_replaces_the_others_and_an_expired_one_is_reported(mosquitto: Mosquitto) -> None:
    async def run() -> None:
        async with connected(mosquitto, newest_wins=True) as site:
            with ChirpStack(mosquitto.port) as server:
                for identifier in ("n1", "n2", "n3"):
                    site.command(identifier, identifier.encode())
                site.command("e1", b"late", OTHER, ttl_ms=1_000)
                await eventually(lambda: ("e1", "expired") in site.told)
                server.uplink(EUI)
                await meanwhile(server.send, EUI)
                await eventually(lambda: len(site.told) == 4)
                server.uplink(OTHER)
                assert sorted(site.told) == [
                    ("e1", "expired"), ("n1", "rejected"), ("n2", "rejected"), ("n3", "delivered"),
                ]  # fmt: skip
                assert len(server.sent) == 1

    asyncio.run(run())


def test_command_survives_a_broken_connection_without_a_second_downlink(mosquitto: Mosquitto) -> None:
    """The network sends the downlink while the gateway is away: its txack waits in the session at the broker."""

    async def run() -> None:
        async with connected(mosquitto) as site:
            with ChirpStack(mosquitto.port) as server:
                site.command("k1", b"\x01")
                server.uplink(EUI)
                await eventually(lambda: server.queues[EUI])
                dialer = site.gateway.connector().dialer
                dialer.pause()
                await eventually(lambda: not dialer.state.connected)
                await meanwhile(server.send, EUI)
                server.uplink(EUI)
                dialer.resume()
                await eventually(lambda: site.told == [("k1", "delivered")])
                server.uplink(EUI)
                await eventually(lambda: len(site.events.runs) == 4)
                assert len(server.sent) == 1
                assert not server.queues[EUI]

    asyncio.run(run())
