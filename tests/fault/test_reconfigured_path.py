"""Forwarders that are added and removed under load: acknowledged messages are in the lake, once.

A durable subscriber that stays connected gets all of them.

The test prints the seed; ``WAYPOST_SEED=n`` repeats the same choice of rules and moments.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from deltalake import DeltaTable

from tests.support.command import run_waypost
from tests.support.paho_loop import stop_loop
from tests.support.processes import Waypost, free_port, hub, landing_soon, wait_until
from tests.support.publisher import Publisher
from tests.support.seeds import chosen_seed
from tests.support.uplink import backlog

TOPICS = ("plant/press/1", "plant/press/2", "plant/oven/1")

BASE = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw1}}
spec:
  listeners: {{mqtt: "127.0.0.1:{mqtt}", http: "127.0.0.1:{http}"}}
  hub: {{url: "amqp://127.0.0.1:{hub}"}}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.plant}}
spec: {{address: "plant/#", type: topic, forwarders: [{{name: all, remoteAddress: hub}}]}}
"""
NARROW = """
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {{name: default.press}}
spec: {{address: "plant/press/#", type: {type}, forwarders: [{{name: press, remoteAddress: hub}}]}}
"""


class Subscriber:
    """Durable subscriber at QoS 1 that stays connected."""

    def __init__(self, port: int) -> None:
        self.bodies: Counter[bytes] = Counter()
        ready = threading.Event()
        self._client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id="durable", clean_session=False, protocol=paho.MQTTv311
        )
        self._client.on_message = lambda _c, _u, message: self.bodies.update((message.payload,))
        self._client.on_connect = lambda client, *_: client.subscribe("plant/#", qos=1)
        self._client.on_subscribe = lambda *_: ready.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert ready.wait(10)

    def close(self) -> None:
        self._client.disconnect()
        stop_loop(self._client)


def change(data: Path, *arguments: str, text: str = "") -> None:
    done = run_waypost(*arguments, "--data", str(data), stdin=text)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("changes", [3, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("type_", ["topic", "queue"])
def test_acknowledged_messages_arrive_while_forwarders_change(tmp_path: Path, type_: str, changes: int) -> None:
    chance = random.Random(chosen_seed())
    ports = {"mqtt": free_port(), "http": free_port(), "hub": free_port()}
    data = tmp_path / "gw1"
    change(data, "apply", "-f", "-", text=BASE.format(**ports))
    with (
        hub(tmp_path, f"--amqp=127.0.0.1:{ports['hub']}", *landing_soon(tmp_path)) as the_hub,
        Waypost(tmp_path / "gw1.log", "run", f"--data={data}") as gateway,
    ):
        subscriber = Subscriber(ports["mqtt"])
        publishers = [Publisher(f"p{i}", ports["mqtt"], topic) for i, topic in enumerate(TOPICS)]
        for publisher in publishers:
            publisher.start()
        for _ in range(changes // 2):
            time.sleep(chance.uniform(0.1, 0.8))  # the random moment
            change(data, "apply", "-f", "-", text=NARROW.format(type=type_))
            time.sleep(chance.uniform(0.5, 1.5))
            change(data, "delete", "Address", "default.press")
        time.sleep(1.0)
        for publisher in publishers:
            publisher.end()
        acked = [body for publisher in publishers for body in publisher.acked]
        wait_until(lambda: backlog(gateway) == 0, timeout_s=120, what="the backlog has drained", every_s=0.2)
        if type_ == "topic":
            wait_until(
                lambda: all(body in subscriber.bodies for body in acked),
                timeout_s=30,
                what="the durable subscriber has everything",
                every_s=0.2,
            )
        subscriber.close()
        assert gateway.stop() == 0
        assert the_hub.stop() == 0
    columns = ["gateway", "epoch", "address", "sequence", "body"]
    rows = DeltaTable(tmp_path / "hub" / "lake" / "telemetry").to_pyarrow_table(columns=columns)
    bodies = Counter(rows.column("body").to_pylist())
    missing = [body for body in acked if body not in bodies]
    print(f"{len(acked)} acked, {rows.num_rows} in the lake, {sum(subscriber.bodies.values())} at the subscriber")
    assert len(acked) > 1_000, "there was load"
    assert not missing, f"{len(missing)} acked messages are missing, first {missing[:3]}"
    assert max(bodies.values()) == 1, "no body twice: each was sent once"
