"""The clock of a gateway jumps by ten years, while it runs and while it is down: no acknowledged message is affected.

A gateway in the field has no reliable clock: it starts with its last known time, or with 1970, and is set some time
later. So sessions, retained messages, order, names and the uplink must not depend on the clock, and setting it must not
end a time to live.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.amqp_client import amqp_client
from tests.support.certificates import Authority
from tests.support.clock import YEAR_S, Clock
from tests.support.configured_gateway import gateway_with
from tests.support.paho_client import PahoClient, mqtt_client
from tests.support.problems import await_problem
from tests.support.processes import Waypost, edge, hub, landing_soon, wait_until
from tests.support.store_rows import query
from tests.support.uplink import uplink

WAIT_S = 20.0
COUNT = 20
HOUR_S = 3600
RESOURCES = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1},
  spec: {listeners: {mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0", http: "127.0.0.1:0"}}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {authenticationService: {name: none}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.hour},
  spec: {address: hour, type: queue, messageTtl: {maximum: 3600000}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.brief},
  spec: {address: brief, type: queue, messageTtl: {maximum: 200}}}
"""
OVER_TLS = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}},
  spec: {{listeners: {{mqtt: "127.0.0.1:0", http: "127.0.0.1:0"}},
    hub: {{url: "amqps://localhost:{hub}", tls: {{caCert: {authority}}}}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}}, spec: {{}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: plant}},
  spec: {{address: "plant/#", type: topic, forwarders: [{{name: up, remoteAddress: hub}}]}}}}
"""

Jump = tuple[int, bool, bool]
"""Years ahead, and whether the clock counts as reliable before and after."""
JUMPS: list[Jump] = [
    (years, before, after) for years in (10, -10) for before, after in ((False, False), (True, False), (False, True))
]


@pytest.fixture(params=JUMPS, ids=lambda jump: f"{jump[0]:+d} years, {jump[1]} to {jump[2]}")
def jump(request: pytest.FixtureRequest) -> Jump:
    chosen: Jump = request.param
    return chosen


@pytest.fixture
def clock(tmp_path: Path, jump: Jump) -> Iterator[Clock]:
    with Clock(tmp_path, synchronized=jump[1]) as clock:
        yield clock


@pytest.fixture
def gateway(tmp_path: Path, clock: Clock) -> Iterator[Waypost]:
    gateway = gateway_with(tmp_path, RESOURCES)
    gateway.environment = clock.environment
    with gateway:
        yield gateway


def lives(seconds: int) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)
    properties.MessageExpiryInterval = seconds
    return properties


def publish(client: PahoClient, topic: str, body: bytes, *, expiry_s: int | None = None, retain: bool = False) -> None:
    properties = None if expiry_s is None else lives(expiry_s)
    client.client.publish(topic, body, 1, retain, properties).wait_for_publish(WAIT_S)


def fill(gateway: Waypost, first: int) -> None:
    """Send this many messages from number `first` on to all waiting consumers."""
    with mqtt_client(gateway, "publisher", version=5) as publisher:
        for number in range(first, first + COUNT):
            publish(publisher, "plant/kept", b"%d" % number)
            publish(publisher, "plant/hour", b"%d" % number, expiry_s=HOUR_S)
            publish(publisher, "hour", b"%d" % number)


def wait_for(gateway: Waypost, clients: dict[str, str]) -> None:
    for name, pattern in clients.items():
        with mqtt_client(gateway, name, version=5, clean=False) as client:
            assert client.subscribe(pattern, 1) == [1]


SESSIONS = {"keeps": "plant/kept", "hourly": "plant/hour"}


def before(gateway: Waypost) -> None:
    wait_for(gateway, SESSIONS)
    fill(gateway, 0)
    with mqtt_client(gateway, "publisher", version=5) as publisher:
        publish(publisher, "state/kept", b"kept", retain=True)
        publish(publisher, "state/hour", b"hour", retain=True, expiry_s=HOUR_S)


def after(gateway: Waypost, data: Path) -> None:
    """Check that all consumers get all messages in order, from before and after the jump; and that time continues."""
    fill(gateway, COUNT)
    wanted = [b"%d" % number for number in range(2 * COUNT)]
    for name in SESSIONS:
        with mqtt_client(gateway, name, version=5, clean=False) as client:
            assert client.session_present, name
            assert client.bodies(2 * COUNT) == wanted, name
    with amqp_client(gateway) as connection:
        receiver = connection.create_receiver("hour", credit=2 * COUNT)
        messages = [receiver.receive(timeout=WAIT_S) for _ in wanted]
        assert [bytes(message.body) for message in messages] == wanted
    with mqtt_client(gateway, "late", version=5) as client:
        client.subscribe("state/#", 1)
        assert {client.get()[:2] for _ in range(2)} == {("state/kept", b"kept"), ("state/hour", b"hour")}
        publish(client, "brief", b"gone soon")
    expires(gateway, data)


def expires(gateway: Waypost, data: Path) -> None:
    """Check that a message from after the jump expires at the end of its life, and no other one does."""
    time.sleep(0.2)  # its life: there is nothing else to wait for
    with amqp_client(gateway) as connection:
        connection.create_receiver("brief", credit=1)
        wait_until(lambda: lost(data) == [("brief", 1, "expired")], timeout_s=WAIT_S, what="it expired, nothing else")


def lost(data: Path) -> list[tuple[str, int, str]]:
    """Return the ledger: address, messages, reason."""
    return query(data, "SELECT address, messages, reason FROM ledger")


def test_clock_jump_of_running_gateway_affects_no_message(
    gateway: Waypost, clock: Clock, jump: Jump, tmp_path: Path
) -> None:
    before(gateway)
    clock.set(jump[0] * YEAR_S, synchronized=jump[2])
    await_problem(gateway.port("http"), "clock", "was set", severity="warning")
    after(gateway, tmp_path / "gw")


def test_clock_jump_of_stopped_gateway_affects_no_message(
    gateway: Waypost, clock: Clock, jump: Jump, tmp_path: Path
) -> None:
    before(gateway)
    gateway.kill()
    clock.set(jump[0] * YEAR_S, synchronized=jump[2])
    gateway.start()
    after(gateway, tmp_path / "gw")


class TestUplink:
    """The path to the hub uses sequences as names, and no time; certificates depend on the time."""

    @pytest.mark.parametrize("years", [10, -10])
    def test_uplink_continues_after_clock_jump(self, tmp_path: Path, years: int) -> None:
        with Clock(tmp_path, synchronized=False) as clock, hub(tmp_path, *landing_soon(tmp_path)) as far:
            near = edge(
                tmp_path, "gw", f"--hub=amqp://127.0.0.1:{far.port('amqp')}", "--gateway=gw1", "--forward=plant/#"
            )
            near.environment = clock.environment
            with near:
                fill(near, 0)
                clock.set(years * YEAR_S, synchronized=False)
                fill(near, COUNT)
                near.kill()
                near.start()
                fill(near, 2 * COUNT)
                wanted = [b"%d" % number for number in range(3 * COUNT)]
                wait_until(lambda: in_lake(tmp_path, "plant/kept") == wanted, timeout_s=WAIT_S, what="all of it, once")
                wait_until(lambda: in_lake(tmp_path, "plant/hour") == wanted, timeout_s=WAIT_S, what="and of this")

    @pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
    @pytest.mark.parametrize(("years", "reason"), [(10, "certificate has expired"), (-10, "not yet valid")])
    def test_link_comes_up_once_clock_is_right(self, tmp_path: Path, years: int, reason: str) -> None:
        authority = Authority(tmp_path / "authority")
        theirs = authority.issue("hub")
        settings = tmp_path / "hub.yaml"
        settings.write_text(
            "{apiVersion: waypost/v1, kind: Hub, spec: {tls: {certificate: "
            f"{theirs.certificate}, key: {theirs.key}}}}}}}"
        )
        with Clock(tmp_path, synchronized=False) as clock, hub(tmp_path, "--config", str(settings)) as far:
            near = gateway_with(tmp_path, OVER_TLS.format(hub=far.port("amqp"), authority=authority.certificate))
            near.environment = clock.environment
            clock.set(years * YEAR_S, synchronized=False)
            with near:
                fill(near, 0)
                wait_until(lambda: reason in (uplink(near)["last_error"] or ""), timeout_s=WAIT_S, what="the reason")
                clock.set(0, synchronized=True)
                fill(near, COUNT)
                wait_until(lambda: uplink(near)["acked"] == 4 * COUNT, timeout_s=2 * WAIT_S, what="all at the hub")


def in_lake(folder: Path, address: str) -> list[bytes]:
    """Return bodies by sequence."""
    table = folder / "hub" / "lake" / "telemetry"
    if not table.exists():
        return []
    rows = DeltaTable(table).to_pyarrow_table(columns=["address", "sequence", "body"]).to_pylist()
    return [row["body"] for row in sorted(rows, key=lambda row: row["sequence"]) if row["address"] == address]
