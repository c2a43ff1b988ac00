"""A JMS client with `SESSION_TRANSACTED` (Qpid JMS) moves messages from one queue of a gateway to another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from proton import Message

from tests.support.amqp_client import connect_amqp
from tests.support.jms import jms_program
from tests.support.processes import edge, free_port
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
MESSAGES = 120
BATCH = 7
KILLED_AT = (3, 6)
"""Commits of the client at which the gateway is killed; the client connects again (`failover:`)."""


def test_commits_rollbacks_and_kills_move_each_message_once(tmp_path: Path) -> None:
    program = jms_program(tmp_path, "Transacted")
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIGURATION)
    port = free_port()
    sent = [*(f"message {number:03}" for number in range(MESSAGES)), "the end"]
    with edge(tmp_path, "gw", "--config", str(file), f"--amqp=127.0.0.1:{port}") as gateway:
        sender = connect_amqp(gateway).create_sender("queue/in")
        for body in sent:
            sender.send(Message(body=body, durable=True))
        url = f"failover:(amqp://127.0.0.1:{port})?failover.maxReconnectAttempts=-1"
        command = [*program, url, "queue/in", "queue/out", str(BATCH)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            commits = 0
            for line in client.stdout:
                commits += line.startswith("commits")
                if line.startswith("commits") and commits in KILLED_AT:
                    gateway.kill()
                    gateway.start()
        assert client.returncode == 0
        redelivered, rollbacks = map(int, line.split()[1:3])
        assert rollbacks > 1
        assert redelivered >= BATCH  # `JMSRedelivered`
        connection = connect_amqp(gateway)
        assert drain(connection, "queue/out", 2 * MESSAGES) == sent  # and not the message that was never committed
        assert drain(connection, "queue/in", 2 * MESSAGES) == []
