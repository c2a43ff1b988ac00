"""A JMS client with `SESSION_TRANSACTED` (Qpid JMS) moves messages from one queue of a gateway to another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from proton import Message

from tests.support.amqp_client import connect_amqp
from tests.support.jms import jms_program
from tests.support.processes import edge
from tests.support.transactions import drain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # Maven fetches the client once

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
MESSAGES = 50
BATCH = 7


def test_commits_and_rollbacks_move_each_message_once(tmp_path: Path) -> None:
    program = jms_program(tmp_path, "Transacted")
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIGURATION)
    with edge(tmp_path, "gw", "--config", str(file)) as gateway:
        connection = connect_amqp(gateway)
        sender = connection.create_sender("queue/in")
        sent = sorted(f"message {number:02}" for number in range(MESSAGES))
        for body in sent:
            sender.send(Message(body=body, durable=True))
        url = f"amqp://127.0.0.1:{gateway.port('amqp')}"
        command = [*program, url, "queue/in", "queue/out", str(BATCH)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        moved, redelivered, rollbacks = map(int, done.stdout.splitlines()[-1].split()[1:])
        assert moved == MESSAGES
        assert rollbacks > 1
        assert redelivered >= BATCH  # `JMSRedelivered`
        assert drain(connection, "queue/out", 2 * MESSAGES) == sent  # and not the message that was never committed
        assert drain(connection, "queue/in", 2 * MESSAGES) == []
