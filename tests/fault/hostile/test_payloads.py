"""Customers' data appears only where they sent it, and in no output for operators, whichever call raises."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from proton import Message
from proton.utils import BlockingConnection

from bridge.plain import data_section
from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from edge.broker.mqtt.handshake import WillMessage
from tests.fault.hostile.raising import MARKER
from tests.support.command import run_waypost
from tests.support.gateway_peer import GatewayPeer
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge, hub, wait_until

WAIT_S = 40.0
SECRET = MARKER.encode()
EDGE = (
    "edge.broker.mqtt.handler:ConnectionHandler._handle",
    "edge.broker.mqtt.connection:MqttConnection.receive_data",
    "edge.broker.amqp.session:AmqpSession.handle",
    "edge.broker.amqp.incoming:IncomingLink.received",
    "edge.broker.router.router:Router.publish",
    "edge.broker.delivery.log:LogSubscription.arrived",
    "edge.broker.delivery.log:LogSubscription.hand_over",
    "edge.broker.store.writer:StoreWriter._commit",
    "edge.broker.store.sqlite_medium:pack",
    "edge.broker.store.reader:decode",
    "edge.broker.router.retained:RetainedMessages.purge",
    "edge.broker.http.api:HttpDeviceApi._wait_answered",
    "bridge.uplink:Uplink._send_batch",
    "edge.appliance.gateway:Gateway.status",
)
HUB = (
    "cloud.hub.service:HubService.batch_arrived",
    "cloud.hub.lander:Lander._land_batches",
    "cloud.lake.landing:Landing.land",
    "cloud.lake.rows:_telemetry",
    "cloud.hub.api:Api.status",
)


def program(process: Waypost, told: Path, targets: tuple[str, ...]) -> Waypost:
    """Make these calls of the program raise."""
    module = [sys.executable, "-m", "tests.fault.hostile.raising", str(told), *targets, "--"]
    process.arguments = [*module, *process.arguments[3:]]
    return process


def publish_all(gateway: Waypost, number: int) -> None:
    """Send a message over each protocol; reconnect if the gateway closes the connection."""
    properties = Properties(user_property=((MARKER, MARKER),), correlation_data=SECRET, content_type="text/plain")
    with contextlib.suppress(OSError, AssertionError), Raw(gateway, 5) as reader:
        reader.connect("reader", clean_start=False).subscribe("topic/#", qos=1)
    for version in (4, 5):
        try:
            with Raw(gateway, version) as client:
                client.socket.settimeout(2)
                will = WillMessage("queue/wills", SECRET, 1, False)
                client.send(packets.Connect(f"sender-{number}", version, username="joe", password=SECRET, will=will))
                client.receive()
                more = {"properties": properties} if version == 5 else {}
                for topic, retain in (("queue/jobs", False), ("topic/kept", True), ("queue/cold", False)):
                    client.send(packets.Publish(topic, SECRET * 3, qos=1, packet_id=1, retain=retain, **more))  # type: ignore[arg-type]
                    client.receive()
        except (OSError, AssertionError):
            continue
    answer_to(gateway, "/t/queue/jobs", SECRET)


async def unreadable(lake: Waypost) -> None:
    """Send unreadable deliveries of a gateway, which go to quarantine with a reason."""
    client = await GatewayPeer("gw2").connect(lake.endpoints["amqp"])
    client.send("telemetry", 0, data_section(SECRET * 3))
    client.send("ledger", 1, data_section(b'{"' + SECRET + b'": ["' + SECRET + b'"'))
    client.send("telemetry", 2, SECRET)
    await client.until(lambda: len(client.outcomes) == 3)
    client.close()


def answer_to(server: Waypost, path: str, sent: bytes | None = None) -> bytes:
    """Return the body of the answer, or the text of the error."""
    try:
        return ask(server, "GET" if sent is None else "POST", path, sent, timeout_s=WAIT_S).body
    except OSError as error:
        return str(error).encode()


def over_amqp(gateway: Waypost) -> None:
    try:
        connection = BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=3)
        sender = connection.create_sender("queue/jobs")
        for _ in range(3):
            sender.send(Message(body=MARKER, properties={MARKER: MARKER}, subject=MARKER), timeout=3)
        receiver = connection.create_receiver("queue/cold", credit=5)
        for _ in range(3):
            receiver.receive(timeout=1)
            receiver.accept()
        connection.close()
    except Exception:  # the connection was closed; this test does not check the reason
        time.sleep(0.05)


def command(*arguments: str) -> bytes:
    """Return everything that a command prints."""
    done = run_waypost(*arguments, timeout_s=100)
    return (done.stdout + done.stderr).encode()


def archived(bundle: Path) -> bytes:
    with tarfile.open(bundle) as archive:
        files = [archive.extractfile(member) for member in archive.getmembers()]
        return b"\n".join(file.read() for file in files if file is not None)


@pytest.mark.timeout(240)
def test_payloads_are_in_no_output_for_operators(tmp_path: Path) -> None:
    told = {name: tmp_path / f"{name}.raised" for name in ("gw", "hub")}
    lake = program(hub(tmp_path), told["hub"], HUB).start()
    uplink = ("--hub", f"amqp://127.0.0.1:{lake.port('amqp')}", "--gateway", "gw1", "--forward", "topic/#")
    gateway = program(edge(tmp_path, "gw", *uplink), told["gw"], EDGE).start()
    try:
        number = 0

        def all_raised() -> bool:
            nonlocal number
            number += 1
            publish_all(gateway, number)
            over_amqp(gateway)
            for process in (gateway, lake):
                answer_to(process, "/api/v1/status")
            raised = "".join(path.read_text() for path in told.values() if path.exists()).split()
            return set(raised) >= {*EDGE, *HUB}

        wait_until(all_raised, timeout_s=120, what="everything has raised")
        asyncio.run(unreadable(lake))
        pages = b"".join(
            answer_to(process, path)
            for process in (gateway, lake)
            for path in ("/", "/healthz", "/metrics", "/api/v1/status", "/api/v1/gateways")
        )
        data = str(tmp_path / "gw")
        outputs = {
            "pages": pages,
            "status": command("status", "--http", f"127.0.0.1:{gateway.port('http')}"),
            "doctor": command("doctor", "--data", data, "--json", "--bundle", str(tmp_path / "bundle.tar.gz")),
            "info": command("store", "info", "--data", data, "--json") + command("store", "info", "--data", data),
            "verify": command("store", "verify", "--data", data, "--json"),
        }
        (tmp_path / "gw" / "gateway.log").write_bytes(gateway.log.read_bytes())  # where the bundle looks for logs
        outputs["bundle"] = command("doctor", "--data", data, "--bundle", str(tmp_path / "with-log.tar.gz"))
        outputs["bundle"] += archived(tmp_path / "with-log.tar.gz")
    finally:
        for process in (gateway, lake):
            if process.process is not None and process.process.poll() is None:
                process.stop()
    outputs["log of the gateway"] = gateway.log.read_bytes()
    outputs["log of the hub"] = lake.log.read_bytes()
    assert b"raised" in outputs["log of the gateway"], "it is logged that something was raised"
    assert b"ValueError" in outputs["bundle"]
    quarantined = DeltaTable(str(tmp_path / "hub" / "lake" / "quarantine")).to_pyarrow_table()
    assert quarantined.num_rows >= 2
    outputs["reasons in the quarantine"] = json.dumps(quarantined.column("reason").to_pylist()).encode()
    assert [name for name, text in outputs.items() if SECRET in text] == []


@pytest.mark.parametrize("target", ["edge.appliance.gateway:Gateway.start", "cloud.hub.server:HubServer.run"])
def test_crash_shows_no_payload(tmp_path: Path, target: str) -> None:
    words = [*(() if target.startswith("edge") else ("hub",)), "run", "--data", str(tmp_path / "data"), "--dev"]
    script = (
        "import sys, importlib; from tests.fault.hostile import raising; raising.AT = (1,); from pathlib import Path; "
        f"raising.patch({target!r}, Path({str(tmp_path / 'told')!r})); sys.argv = ['waypost', *{words!r}]; "
        "from edge.appliance.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode != 0
    assert b"ValueError" in done.stderr
    assert SECRET not in done.stdout + done.stderr
