"""SIGKILL of a gateway while a client moves messages in transactions: none is lost, none is there twice."""

from __future__ import annotations

from pathlib import Path

from proton import Message, Terminus
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from tests.support.amqp_client import connect_amqp
from tests.support.processes import Waypost, edge
from tests.support.transactions import TransactionClient, drain

CONFIGURATION = """
apiVersion: waypost/v1
kind: Address
metadata: {name: queues}
spec: {address: 'queue/#', type: queue}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {name: default}
spec: {authenticationService: {name: none}}
"""
BATCH = 3
MESSAGES = 18
KILLS = ("sent", "posted")
"""Moments of the kills: after the discharge was sent, or before that."""


class DurableSource(LinkOption):
    """Durable subscription."""

    def apply(self, link: object) -> None:
        link.source.durability = Terminus.DELIVERIES  # type: ignore[attr-defined]
        link.source.expiry_policy = Terminus.EXPIRE_NEVER  # type: ignore[attr-defined]


class Mover:
    """Moves messages from `queue/in` to `queue/out`, and reports each one to `topic/moved`."""

    def __init__(self, gateway: Waypost) -> None:
        self.connection = connect_amqp(gateway)
        self.transactions = TransactionClient(self.connection)
        self.source = self.connection.create_receiver("queue/in", credit=2 * BATCH)
        self.targets = [self.connection.create_sender(address) for address in ("queue/out", "topic/moved")]

    def begin(self, count: int = BATCH) -> None:
        """Take and post messages in a new transaction."""
        self.transactions.declare()
        for body in [self.transactions.take(self.source) for _ in range(count)]:
            for target in self.targets:
                self.transactions.post(target, body)


def subscribed(gateway: Waypost) -> BlockingConnection:
    """Connect as the subscriber of `topic/moved`."""
    return connect_amqp(gateway, container_id="subscriber")


def test_moved_messages_are_exact(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIGURATION)
    gateway = edge(tmp_path, "gw", "--config", str(file))
    sent = sorted(f"message {number:02}" for number in range(MESSAGES))
    with gateway:
        first = subscribed(gateway)
        first.create_receiver("topic/moved", name="topic/moved", options=DurableSource()).link.detach()
        sender = connect_amqp(gateway).create_sender("queue/in")
        for body in sent:
            sender.send(Message(body=body, durable=True))
        for moment in KILLS:
            mover = Mover(gateway)
            mover.begin()
            assert mover.transactions.discharge()
            mover.begin()
            assert mover.transactions.discharge(fail=True)
            mover.begin()
            if moment == "sent":
                mover.transactions.send_discharge()
            gateway.kill()
            gateway.start()
        answered = BATCH * len(KILLS)
        connection = subscribed(gateway)
        moved, left = (drain(connection, f"queue/{name}", 2 * MESSAGES) for name in ("out", "in"))
        assert sorted(moved + left) == sent
        assert answered <= len(moved) <= answered + BATCH * KILLS.count("sent")
        assert drain(connection, "topic/moved", 2 * MESSAGES, DurableSource()) == moved
