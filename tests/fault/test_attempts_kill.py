"""A message that no consumer can process is dead-lettered at its last attempt, across a kill of the gateway."""

from __future__ import annotations

from pathlib import Path

from proton import Delivery, Message

from edge.broker.delivery.attempts import unpack
from tests.support.amqp_client import amqp_client
from tests.support.configured_gateway import gateway_with
from tests.support.processes import Waypost, wait_until
from tests.support.store_rows import query

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


def stored_attempts(gateway: Waypost) -> list[dict[int, int]]:
    """Return the failure counts of messages in the store."""
    return [unpack(value) for (value,) in query(gateway.data, "SELECT value FROM state WHERE kind = 'attempts'")]


def wait_for(gateway: Waypost, counts: list[dict[int, int]]) -> None:
    wait_until(lambda: stored_attempts(gateway) == counts, timeout_s=WAIT_S, what=f"{counts} on disk")


def fail_once(gateway: Waypost) -> int:
    """Take the message and release it as failed; return its delivery count."""
    with amqp_client(gateway, timeout_s=WAIT_S) as connection:
        receiver = connection.create_receiver("jobs", credit=1)
        message = receiver.receive(timeout=WAIT_S)
        assert message.body == "poison"
        delivery = receiver.fetcher.unsettled[0]
        delivery.local.failed = True
        receiver.settle(Delivery.MODIFIED)
        return int(message.delivery_count)


def test_delivery_attempts_are_counted_across_kills(tmp_path: Path) -> None:
    with gateway_with(tmp_path, RESOURCES) as gateway:
        with amqp_client(gateway, timeout_s=WAIT_S) as sending:
            sending.create_sender("jobs").send(Message(body="poison", durable=True), timeout=WAIT_S)
        for failed in range(1, ATTEMPTS_MAX):
            assert fail_once(gateway) == failed - 1
            wait_for(gateway, [{0: failed}])
            gateway.kill()
            gateway.start()
        assert fail_once(gateway) == ATTEMPTS_MAX - 1
        wait_for(gateway, [])
        gateway.kill()
        gateway.start()
        with amqp_client(gateway, timeout_s=WAIT_S) as connection:
            dead = connection.create_receiver("dead", credit=1).receive(timeout=WAIT_S)
            assert dead.annotations["x-opt-waypost-dead-reason"] == "delivery attempts exceeded"
