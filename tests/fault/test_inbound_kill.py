"""A gateway that receives from a far side is killed: all messages that the far side could forget are in the lake.

From a queue of another gateway (AMQP, each message with a message-id) and from a topic of Kafka, each message is in the
lake once, in order. From Mosquitto, at QoS 1 and without names, no message is missing, and repeated ones were in flight
at a kill.

The test prints the seed; ``WAYPOST_SEED=n`` repeats the same moments.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import encode
from bridge.engine import DeliveryState
from tests.support.amqp_sender import AmqpSender
from tests.support.command import run_waypost
from tests.support.http_client import document
from tests.support.kafka import Kafka, kafka_jars
from tests.support.lake import rows
from tests.support.mosquitto import Mosquitto, installed
from tests.support.processes import Waypost, edge, hub, wait_until
from tests.support.publisher import Publisher
from tests.support.seeds import chosen_seed

KILLS = 3
EACH = 1_500
"""Messages put into the queue before each kill."""
WINDOW = 100
"""In-flight limit of a connection to Mosquitto (`max_inflight_messages`): these may be repeated after each kill."""

GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw1}}
spec: {{listeners: {{http: "127.0.0.1:0"}}}}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {{name: default}}
spec:
  connectors:
  - {{name: hub, endpointHosts: [{{host: 127.0.0.1, port: {hub}}}]}}
  - {{name: far, type: {kind}, endpointHosts: [{{host: 127.0.0.1, port: {far}}}]}}
---
apiVersion: waypost/v1
kind: Address
metadata: {{name: default.taken}}
spec:
  address: {address}
  type: topic
  forwarders:
  - {{name: taken, direction: in, remoteAddress: far/{remote}}}
  - {{name: to-hub, remoteAddress: hub}}
"""


def gateway(folder: Path, **places: object) -> Waypost:
    """Configure a gateway that receives from a far side, and forwards to a hub."""
    file, data = folder / "gateway.yaml", folder / "gw1"
    file.write_text(GATEWAY.format(**places))
    applied = run_waypost("apply", "--data", str(data), "-f", str(file))
    assert applied.returncode == 0, applied.stderr
    return Waypost(folder / "gw1.log", "run", "--data", str(data))


def connected(near: Waypost) -> bool:
    """Return whether it is connected to the far side."""
    states = {each["name"]: each["state"] for each in document(near, "/api/v1/bridge")["connectors"]}
    return bool(states["far"] == "connected")


def landed(folder: Path) -> list[bytes]:
    """Return the bodies in the lake, in the order of their sequences."""
    found = sorted(rows(folder / "hub" / "lake", "telemetry"), key=lambda row: (row["address"], row["sequence"]))
    assert len({row["epoch"] for row in found}) <= 1
    return [payload(row["body"]) for row in found]


def payload(body: bytes) -> bytes:
    return plain.body_of(body) if body.startswith(b"\x00\x53") else body


def kill_while_it_takes(near: Waypost, feed: Callable[[], object]) -> None:
    """Kill the gateway several times, at random moments."""
    chance = random.Random(chosen_seed())
    for _ in range(KILLS):
        wait_until(lambda: connected(near), timeout_s=60, what="it takes from the far side")
        feed()
        time.sleep(chance.uniform(0.0, 0.3))  # the random moment
        near.kill()
        near.start()


def all_land(folder: Path, wanted: Sequence[bytes]) -> list[bytes]:
    missing = set(wanted)

    def there() -> bool:
        missing.difference_update(landed(folder))
        return not missing

    wait_until(there, timeout_s=120, what=f"all of it is in the lake; missing: {list(missing)[:3]}", every_s=0.5)
    return landed(folder)


@pytest.mark.timeout(400)
def test_queue_of_another_gateway_lands_once_in_order(tmp_path: Path) -> None:
    the_hub, far = hub(tmp_path), edge(tmp_path, "gw2")
    with the_hub, far:
        places = {"hub": the_hub.port("amqp"), "far": far.port("amqp"), "kind": "amqp"}
        sender = AmqpSender(far.port("amqp"), "device", "queue/orders")
        sent: list[bytes] = []

        def feed() -> None:
            bodies = [b"%d" % number for number in range(len(sent), len(sent) + EACH)]
            ids = (b"\x00\x53" + bytes((s.PROPERTIES,)) + encode([f"order-{body.decode()}"]) for body in bodies)
            sender.send(*(name + plain.data_section(body) for name, body in zip(ids, bodies, strict=True)))
            assert set(sender.settled()) == {DeliveryState.ACCEPTED}
            sent.extend(bodies)

        with gateway(tmp_path, address="orders", remote="queue/orders", **places) as near:
            kill_while_it_takes(near, feed)
            found = all_land(tmp_path, sent)
            sender.close()
            assert near.stop() == 0
    assert found == sent, "each once, in order"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kafka_topic_lands_once_in_order(tmp_path: Path) -> None:
    broker, the_hub = Kafka(tmp_path / "kafka", kafka_jars()), hub(tmp_path)
    with broker.running(), the_hub:
        broker.create("orders", partitions=1)
        places = {"hub": the_hub.port("amqp"), "far": broker.port, "kind": "kafka"}
        sent: list[bytes] = []

        def feed() -> None:
            bodies = [b"%d" % number for number in range(len(sent), len(sent) + EACH)]
            broker.send(bodies)
            sent.extend(bodies)

        with gateway(tmp_path, address="orders", remote="orders", **places) as near:
            kill_while_it_takes(near, feed)
            found = all_land(tmp_path, sent)
            assert near.stop() == 0
    assert found == sent, "each once, in order"


@installed
@pytest.mark.timeout(400)
def test_mosquitto_topic_lands_at_least_once(tmp_path: Path) -> None:
    broker, the_hub = Mosquitto(tmp_path / "mosquitto"), hub(tmp_path)
    with broker.running(), the_hub:
        places = {"hub": the_hub.port("amqp"), "far": broker.port, "kind": "mqtt"}
        publisher = Publisher("p", broker.port, "cloud/1", pause_s=0.001)
        with gateway(tmp_path, address="cloud/#", remote="cloud/#", **places) as near:
            wait_until(lambda: connected(near), timeout_s=60, what="it has subscribed")
            publisher.start()
            kill_while_it_takes(near, lambda: None)
            publisher.end()
            found = all_land(tmp_path, publisher.acked)
            assert near.stop() == 0
    again = sum(count - 1 for count in Counter(found).values())
    print(f"{len(publisher.acked)} acknowledged, {len(found)} in the lake, {again} of them again")
    assert len(publisher.acked) > 100 * KILLS, "there was load"
    assert again <= KILLS * WINDOW, "no more than the far side had under way at each kill"
