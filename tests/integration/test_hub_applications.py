"""Cloud applications at a hub: live copies of gateway messages, and messages between applications."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Message, Timeout
from proton.utils import BlockingConnection

from bridge.engine import DeliveryState
from cloud.hub.limits import COPIES_WAITING_BYTES_MAX, FRAME_BYTES_MAX
from tests.support.amqp_client import connect_amqp
from tests.support.amqp_sender import AmqpSender
from tests.support.http_client import ask
from tests.support.node import rhea
from tests.support.processes import Waypost, hub, wait_until
from tests.support.tenants import EPOCH, WAIT_S, BatchLane, batch, body

ANNOTATIONS = "x-opt-waypost-"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with hub(tmp_path_factory.mktemp("hub")) as process:
        yield process


def connected(running: Waypost) -> BlockingConnection:
    return connect_amqp(running, timeout_s=WAIT_S)


def gateway(running: Waypost, name: str) -> AmqpSender:
    return AmqpSender(running.port("amqp"), name, "telemetry", ("waypost:batch/1",))


def test_copy_names_its_original(running: Waypost) -> None:
    application = connected(running)
    receiver = application.create_receiver("copy/+/temp")
    with gateway(running, "gw-copy") as sender:
        sender.send(batch("copy/7/temp", 40, [b"21.5", b"21.6"]), batch("elsewhere", 0, [b"not asked for"]))
        assert sender.settled() == [DeliveryState.ACCEPTED] * 2
    for sequence, reading in ((40, b"21.5"), (41, b"21.6")):
        message = receiver.receive(timeout=WAIT_S)
        assert (message.address, bytes(message.body)) == ("copy/7/temp", reading)
        said = {str(key): value for key, value in message.annotations.items()}
        assert said[ANNOTATIONS + "received-at"] > 0
        assert {name: said[ANNOTATIONS + name] for name in ("gateway", "epoch", "sequence", "device")} == {
            "gateway": "gw-copy",
            "epoch": EPOCH,
            "sequence": sequence,
            "device": "device-1",
        }
    with pytest.raises(Timeout):
        receiver.receive(timeout=0.2)
    application.close()


def test_messages_without_a_receiver_and_old_ones_are_only_in_the_lake(running: Waypost) -> None:
    application = connected(running)
    with gateway(running, "gw-old") as sender:
        sender.send(batch("old/1", 0, [b"before"])).settled()
        receiver = application.create_receiver("old/#")
        sender.send(batch("old/1", 1, [b"backlog"], lane=BatchLane.BACKLOG)).settled()
        sender.send(batch("old/1", 2, [b"live"])).settled()
    assert body(receiver) == b"live"
    application.close()


def test_applications_exchange_messages(running: Waypost) -> None:
    first, second = connected(running), connected(running)
    first.create_sender("queue/tasks").send(Message(body="task", durable=True))
    receiver = second.create_receiver("queue/tasks")
    assert receiver.receive(timeout=WAIT_S).body == "task"
    receiver.accept()
    first.close()
    second.close()


def test_large_message_is_sent_in_small_frames(running: Waypost) -> None:
    first, second = connected(running), connected(running)
    assert first.conn.transport.remote_max_frame_size == FRAME_BYTES_MAX
    large = random.Random(0).randbytes(40 * FRAME_BYTES_MAX)
    first.create_sender("queue/large").send(Message(body=large, durable=True))
    receiver = second.create_receiver("queue/large")
    assert body(receiver) == large
    receiver.accept()
    first.close()
    second.close()


def test_addresses_of_gateways_are_refused_to_applications(running: Waypost) -> None:
    """A gateway's link to an address of applications is refused."""
    with AmqpSender(running.port("amqp"), "gw-lost", "telemetry", ("waypost:batch/1",)) as sender:
        link = sender.engine.attach_sender("other", "plant/1")
        sender.until(lambda: link.closed, "refusal of the link")


def test_slow_application_does_not_delay_landing(running: Waypost) -> None:
    """An application without credit stops no landing; copies beyond its limit are dropped and counted."""
    application = connected(running)
    slow = application.create_receiver("flood/#", credit=1)
    quick = connected(running)
    receiver = quick.create_receiver("flood/last")
    large, messages = b"x" * 10_000, 50
    batches = 2 * COPIES_WAITING_BYTES_MAX // (messages * len(large))
    with gateway(running, "gw-flood") as sender:
        for i in range(batches):
            sender.send(batch("flood/1", i * messages, [large] * messages))
        assert set(sender.settled()) == {DeliveryState.ACCEPTED}
        wait_until(lambda: missed(running) > 0, timeout_s=WAIT_S, what="counting of what was missed")
        sender.send(batch("flood/last", 0, [b"last"])).settled()
    assert body(receiver) == b"last"
    assert slow.receive(timeout=WAIT_S) is not None
    application.close()
    quick.close()


RHEA = """
const [port] = process.argv.slice(1).map(Number);
const rhea = require('rhea');
const connection = rhea.connect({host: '127.0.0.1', port, reconnect: false, container_id: 'rhea'});
const receiver = connection.open_receiver('rhea/#');
receiver.once('receiver_open', () => connection.open_sender('rhea/ready').once('sendable', ({sender}) => {
  sender.send({body: 'ready'});
}));
receiver.on('message', ({message}) => {
  if (message.body === 'ready') { console.log('ready'); return; }
  console.log(message.message_annotations['x-opt-waypost-gateway'], message.body.content.toString());
  console.log('done'); process.exit(0);
});
"""


@rhea
def test_rhea_receives_copies(running: Waypost) -> None:
    node = subprocess.Popen(["node", "-e", RHEA, str(running.port("amqp"))], stdout=subprocess.PIPE, text=True)
    try:
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
        with gateway(running, "gw-rhea") as sender:
            sender.send(batch("rhea/1", 0, [b"22.5"])).settled()
        assert node.stdout.read() == "gw-rhea 22.5\ndone\n"
        assert node.wait(WAIT_S) == 0
    finally:
        node.kill()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()


def missed(running: Waypost) -> float:
    lines = ask(running, "GET", "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("waypost_hub_copies_missed_total"))


def test_hub_without_applications_refuses_them_and_serves_gateways(tmp_path: Path) -> None:
    file = tmp_path / "hub.yaml"
    file.write_text("{apiVersion: waypost/v1, kind: Hub, spec: {applications: false, gatherMilliseconds: 20}}\n")
    with hub(tmp_path, "--config", str(file)) as process:
        with AmqpSender(process.port("amqp"), "application", "queue/tasks") as refused:
            assert refused.closed
            assert refused.condition is not None
            assert "serves no applications" in (refused.condition.description or "")
        with gateway(process, "gw1") as sender:
            assert sender.send(batch("plant/1", 0, [b"21.5"])).settled() == [DeliveryState.ACCEPTED]
            assert "\nwaypost_hub_connections 1.0\n" in ask(process, "GET", "/metrics").body.decode()
