"""A message that no consumer can process is dead-lettered at its last attempt, across a kill of the gateway."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from proton import Delivery, Message
from proton.utils import BlockingConnection

from edge.broker.delivery.attempts import unpack
from edge.broker.store.sqlite import FILE_NAME
from tests.support.configured_gateway import gateway_with
from tests.support.processes import Waypost, wait_until

WAIT_S = 30.0
ATTEMPTS_MAX = 4

RESOURCES = f"""
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}}, spec: {{listeners: {{amqp: "127.0.0.1:0"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.jobs}},
  spec: {{address: jobs, type: queue, deadletter: dead,
    messageRedelivery: {{maximumDeliveryAttempts: {ATTEMPTS_MAX}}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.dead}}, spec: {{address: dead, type: deadletter}}}}
"""


def kept(gateway: Waypost) -> list[dict[int, int]]:
    """Return the failure counts of messages in the store."""
    data = Path(gateway.arguments[gateway.arguments.index("--data") + 1])
    connection = sqlite3.connect(f"{(data / FILE_NAME).resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT value FROM state WHERE kind = 'attempts'").fetchall()
    finally:
        connection.close()
    return [unpack(value) for (value,) in rows]


def wait_for(gateway: Waypost, counts: list[dict[int, int]]) -> None:
    wait_until(lambda: kept(gateway) == counts, timeout_s=WAIT_S, what=f"{counts} on disk")


def fail_once(gateway: Waypost) -> int:
    """Take the message and release it as failed; return its delivery count."""
    connection = BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=WAIT_S)
    try:
        receiver = connection.create_receiver("jobs", credit=1)
        message = receiver.receive(timeout=WAIT_S)
        assert message.body == "poison"
        delivery = receiver.fetcher.unsettled[0]
        delivery.local.failed = True
        receiver.settle(Delivery.MODIFIED)
        return int(message.delivery_count)
    finally:
        connection.close()


def test_attempts_are_counted_over_kills(tmp_path: Path) -> None:
    with gateway_with(tmp_path, RESOURCES) as gateway:
        sending = BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=WAIT_S)
        sending.create_sender("jobs").send(Message(body="poison", durable=True), timeout=WAIT_S)
        sending.close()
        for failed in range(1, ATTEMPTS_MAX):
            assert fail_once(gateway) == failed - 1
            wait_for(gateway, [{0: failed}])
            gateway.kill()
            gateway.start()
        assert fail_once(gateway) == ATTEMPTS_MAX - 1
        wait_for(gateway, [])
        gateway.kill()
        gateway.start()
        connection = BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=WAIT_S)
        try:
            dead = connection.create_receiver("dead", credit=1).receive(timeout=WAIT_S)
            assert dead.annotations["x-opt-waypost-dead-reason"] == "delivery attempts exceeded"
        finally:
            connection.close()
