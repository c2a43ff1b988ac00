"""Applications at a real message broker (ActiveMQ Artemis): commands, outcomes and live copies, while it restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.support.artemis import Artemis, artemis_jars
from tests.support.command_gateway import DEVICE, CommandGateway
from tests.support.gateway_peer import GatewayPeer
from tests.support.http_client import ask, document
from tests.support.processes import Waypost, hub, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

COMMANDS, OUTCOMES, COPIES = (f"waypost.default.{name}" for name in ("commands", "outcomes", "copies"))
REPLIES = "waypost.default.replies.app"
WAIT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    folder = tmp_path_factory.mktemp("artemis")
    with Artemis(folder, artemis_jars(), (COMMANDS, OUTCOMES, COPIES, REPLIES)).running() as running:
        yield running


@pytest.fixture(scope="module")
def running(broker: Artemis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    folder = tmp_path_factory.mktemp("hub")
    config = folder / "hub.yaml"
    spec = f"messaging: {{url: 'amqp://127.0.0.1:{broker.port}', copies: {COPIES}}}"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {{{spec}}}\n")
    with hub(folder, f"--config={config}") as process:
        connected(process)
        yield process


def connected(process: Waypost) -> None:
    wait_until(lambda: metric(process, "connected") == 1, timeout_s=WAIT_S, what="the hub has connected")


def metric(process: Waypost, name: str) -> float:
    """Return a metric of messaging."""
    lines = ask(process, "GET", "/metrics").body.decode().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith(f"waypost_hub_messaging_{name} ")]
    return float(value)


@contextlib.contextmanager
def application(broker: Artemis) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(f"amqp://127.0.0.1:{broker.port}", timeout=WAIT_S)
    try:
        yield connection
    finally:
        connection.close()


def send(broker: Artemis, **fields: object) -> None:
    message = Message(subject="on", properties={"gateway": "gw1", "device": DEVICE}, body=b"x", durable=True, **fields)
    with application(broker) as connection:
        connection.create_sender(COMMANDS).send(message)


def received(broker: Artemis, address: str, count: int = 1) -> list[Message]:
    """Receive messages of a queue."""
    with application(broker) as connection:
        receiver = connection.create_receiver(address, credit=count)
        found = []
        for _ in range(count):
            found.append(receiver.receive())
            receiver.accept()
        return found


def test_command_of_a_queue_reaches_its_gateway_and_its_sender_gets_the_outcome(
    broker: Artemis, running: Waypost
) -> None:
    with CommandGateway("gw1", lambda: running.port("amqp")) as gateway:
        wait_until(lambda: gateway.connected_to, timeout_s=WAIT_S, what="the gateway is connected")
        send(broker, id="first", reply_to=REPLIES, correlation_id="mine")
        send(broker, id="first", reply_to=REPLIES, correlation_id="mine")  # delivered twice, it is one command
        for address in (OUTCOMES, REPLIES):
            [outcome] = received(broker, address)
            assert (outcome.subject, outcome.correlation_id) == ("delivered", "mine")
            assert outcome.properties["gateway"] == "gw1"
        assert len(gateway.taken) == 1
        assert metric(running, "outcomes_total") == 2


def test_command_that_cannot_be_sent_is_rejected(broker: Artemis, running: Waypost) -> None:
    for fields in ({}, {"id": "second", "reply_to": "waypost.default.outcomes"}):
        send(broker, **fields)
        assert received(broker, "dead")[0].subject == "on"
    wait_until(lambda: metric(running, "commands_rejected_total") >= 2, timeout_s=WAIT_S, what="they are counted")


def test_live_copies_reach_the_broker(broker: Artemis, running: Waypost) -> None:
    async def land() -> None:
        peer = await GatewayPeer("hall").connect(running.endpoints["amqp"])
        peer.batch(0, "plant/1", 0, 3)
        await peer.until(lambda: len(peer.outcomes) == 1)
        peer.close()

    asyncio.run(land())
    copies = received(broker, COPIES, 3)
    assert [bytes(copy.body) for copy in copies] == [b"0", b"1", b"2"]
    assert copies[0].annotations["x-opt-waypost-gateway"] == "hall"
    assert metric(running, "copies_total") == 3


def test_outcome_waits_for_a_broker_that_is_away(broker: Artemis, running: Waypost) -> None:
    with CommandGateway("gw1", lambda: running.port("amqp")) as gateway:
        wait_until(lambda: gateway.connected_to, timeout_s=WAIT_S, what="the gateway is connected")
        broker.stop()
        wait_until(lambda: metric(running, "connected") == 0, timeout_s=WAIT_S, what="the hub has noticed it")
        command = {"gateway": "gw1", "device": DEVICE, "name": "off", "correlation_id": "late"}
        sent = ask(running, "POST", "/api/v1/commands", json.dumps(command).encode()).document["id"]
        wait_until(lambda: sent in gateway.taken, timeout_s=WAIT_S, what="the gateway has the command")
        broker.start()
        [outcome] = received(broker, OUTCOMES)
        assert (outcome.subject, outcome.correlation_id) == ("delivered", "late")
        state = document(running, f"/api/v1/commands/{sent}?wait=60")["state"]
        assert state == "delivered"


def test_command_waits_in_its_queue_while_no_hub_runs(broker: Artemis, running: Waypost) -> None:
    running.stop()
    send(broker, id="third", correlation_id="third")
    running.start()
    with CommandGateway("gw1", lambda: running.port("amqp")):
        [outcome] = received(broker, OUTCOMES)
        assert outcome.correlation_id == "third"
