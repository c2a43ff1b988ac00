"""Dead letters of a running gateway through the API and the command, with rights, audit and kills."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message

from edge.appliance.messages.limits import STEP_MESSAGES_MAX
from tests.support.amqp_client import amqp_client
from tests.support.command import document_of, output_of
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.http_client import Answer, ask
from tests.support.processes import Waypost, wait_until

ADDRESSES = """
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},
  spec: {address: jobs, type: queue, deadletter: dead}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.dead}, spec: {address: dead, type: deadletter}}
"""
USERS = "".join(
    (
        user("machine", "send, recv"),
        user("viewer", "view"),
        user("reader", "recv", '"dead"'),
        user("boss", "manage"),
        user("chief", "manage, recv"),
    )
)
WAIT_S = 60.0
SEED = 39


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with gateway_with(tmp_path, resources(ADDRESSES, USERS)) as running:
        yield running


def reject(gateway: Waypost, count: int) -> None:
    """Send numbered messages to `jobs`, and reject them."""
    login = {"user": "machine", "password": "machine", "allow_insecure_mechs": True}
    with amqp_client(gateway, timeout_s=WAIT_S, **login) as connection:
        sender = connection.create_sender("jobs")
        for number in range(count):
            sender.send(Message(body=f"job {number}", durable=True), timeout=WAIT_S)
        receiver = connection.create_receiver("jobs", credit=100)
        for _ in range(count):
            receiver.receive(timeout=WAIT_S)
            receiver.settle(Delivery.REJECTED)


def call(gateway: Waypost, name: str, path: str, document: dict[str, Any] | None = None) -> Answer:
    body = None if document is None else json.dumps(document).encode()
    method, login = "GET" if body is None else "POST", basic(name, name)
    return ask(gateway, method, f"/api/v1/dead-letters{path}", body, login, timeout_s=WAIT_S)


def bodies(gateway: Waypost, count: int, *addresses: str) -> dict[str, list[str]]:
    """Consume queues until they had this many messages, and all that is there then; return the bodies by queue."""
    found: dict[str, list[str]] = {address: [] for address in addresses}
    login = basic("machine", "machine")

    def are_consumed() -> bool:
        for address, taken in found.items():
            while (answer := ask(gateway, "GET", f"/c/{address}?settle=auto", headers=login)).status == 200:
                taken.append(answer.body.decode().strip('"'))
        return sum(map(len, found.values())) >= count

    wait_until(are_consumed, timeout_s=WAIT_S, what=f"{count} messages are consumed")
    return found


def test_dead_letters_are_seen_and_retried_with_rights(gateway: Waypost) -> None:
    reject(gateway, 3)
    (group,) = call(gateway, "viewer", "").document["groups"]
    assert (group["queue"], group["reason"], group["from"], group["messages"]) == ("dead", "rejected", "jobs", 3)
    assert call(gateway, "viewer", "/messages?queue=dead").status == 403
    page = call(gateway, "reader", "/messages?queue=dead&limit=2").document
    assert ([each["body"] for each in page["messages"]], page["next"]) == (["job 0", "job 1"], 1)
    assert call(gateway, "viewer", "/retry", {"queue": "dead"}).status == 403
    assert call(gateway, "boss", "/retry", {"queue": "dead", "dry_run": True}).document["messages"] == 3
    assert call(gateway, "boss", "/move", {"queue": "dead", "to": "jobs"}).status == 403
    assert call(gateway, "chief", "/move", {"queue": "dead", "to": "jobs", "positions": [0]}).document["done"] == 1
    assert call(gateway, "boss", "/retry", {"queue": "dead"}).document["done"] == 2
    audited = "audit: user=boss from=127.0.0.1 POST /api/v1/dead-letters/retry -> 200"
    wait_until(lambda: audited in gateway.log.read_text(), timeout_s=WAIT_S, what="the retry is in the audit")
    assert gateway.log.read_text().count(audited) == 1, "the dry run is not"
    assert call(gateway, "viewer", "").document["groups"] == []
    assert sorted(bodies(gateway, 3, "jobs")["jobs"]) == ["job 0", "job 1", "job 2"]


def test_wrong_requests_are_refused(gateway: Waypost) -> None:
    assert call(gateway, "boss", "/retry", {"queue": "jobs"}).status == 404
    assert call(gateway, "boss", "/retry", {"queue": "dead", "nonsense": 1}).status == 400
    assert call(gateway, "boss", "/retry", {"queue": "dead", "positions": [0] * (STEP_MESSAGES_MAX + 1)}).status == 400
    assert call(gateway, "reader", "/messages?queue=dead&limit=501").status == 400
    assert call(gateway, "reader", "/messages?queue=dead&bytes=99999").status == 400


def test_command_retries_moves_and_deletes(gateway: Waypost) -> None:
    reject(gateway, 3)
    data = str(gateway.data)
    assert "dead: 3 messages rejected at jobs" in output_of("message", "dead", "list", "--data", data)
    assert "3 messages would be retried" in output_of("message", "dead", "retry", "dead", "--dry-run", "--data", data)
    assert document_of("message", "dead", "retry", "dead", "--from", "jobs", "--data", data)["done"] == 3
    reject(gateway, 1)  # after the three others, of which one is rejected
    assert "1 message moved" in output_of("message", "dead", "move", "dead", "--to", "jobs", "--data", data)
    assert "0 messages deleted" in output_of("message", "dead", "delete", "dead", "--data", data)


def test_kill_leaves_each_message_dead_or_retried(tmp_path: Path) -> None:
    """A retry that is killed at any point neither loses a message nor sends it twice."""
    dice = random.Random(SEED)
    with gateway_with(tmp_path, resources(ADDRESSES, USERS)) as gateway:
        reject(gateway, 240)
        for first in range(0, 240, 30):
            step = {"queue": "dead", "positions": list(range(first, first + 30))}
            call(gateway, "boss", "")  # loads the interface, and verifies the password
            retrying = threading.Thread(target=_ignoring_errors, args=(gateway, step))
            retrying.start()
            retrying.join(dice.uniform(0.0, 0.15))
            gateway.kill()
            retrying.join()
            gateway.start()
        found = bodies(gateway, 240, "dead", "jobs")
        assert found["jobs"]
        assert sorted(found["dead"] + found["jobs"]) == sorted(f"job {number}" for number in range(240))


def _ignoring_errors(gateway: Waypost, step: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, HTTPException):  # the kill cuts off the answer
        call(gateway, "boss", "/retry", step)
