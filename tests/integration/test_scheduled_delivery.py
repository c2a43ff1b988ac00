"""Scheduled messages of AMQP clients at a running gateway: delivered at their time, over kills, shown and deleted."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Message, symbol
from proton.utils import BlockingSender, SendException

from tests.support.amqp_client import amqp_client
from tests.support.command import document_of, items_of, output_of
from tests.support.configured_gateway import address, basic, gateway_with, resources, user
from tests.support.http_client import ask
from tests.support.processes import Waypost, wait_until

WAIT_S = 60.0
SEED = 11
USERS = "".join((user("machine", "send, recv"), user("viewer", "view"), user("boss", "manage")))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with gateway_with(tmp_path, resources(address("jobs", "jobs", "queue"), USERS)) as running:
        yield running


@contextlib.contextmanager
def sender(gateway: Waypost) -> Iterator[BlockingSender]:
    login = {"user": "machine", "password": "machine", "allow_insecure_mechs": True}
    with amqp_client(gateway, timeout_s=WAIT_S, **login) as connection:
        assert "DELAYED_DELIVERY" in map(str, connection.conn.remote_offered_capabilities)
        yield connection.create_sender("jobs")


def scheduled(body: str, delay_ms: int) -> Message:
    return Message(body=body, durable=True, annotations={symbol("x-opt-delivery-delay"): delay_ms})


def waiting(gateway: Waypost) -> list[dict[str, Any]]:
    answer = ask(gateway, "GET", "/api/v1/messages/scheduled?limit=500", headers=basic("viewer", "viewer"))
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.document["messages"]
    return found


def delivered(gateway: Waypost) -> dict[str, float]:
    """Return the time of the delivery of each message of the queue, by body."""
    kept = items_of("message", "browse", "jobs", "--limit", "500", "--oldest", "--data", str(gateway.data))
    found = {each["body"].strip('"'): each["received_at"] for each in kept}
    assert len(found) == len(kept), "a message came twice"
    return found


def test_messages_are_delivered_once_and_never_early_over_kills(gateway: Waypost) -> None:
    chance = random.Random(SEED)
    earliest: dict[str, float] = {}
    for start in range(4):
        with sender(gateway) as sending:
            for number in range(25):
                name, delay_ms = f"{start}-{number}", chance.randrange(1, 4_000)
                due_at = time.time() + delay_ms / 1e3
                sending.send(scheduled(name, delay_ms), timeout=WAIT_S)
                earliest[name] = due_at
        gateway.kill()
        gateway.start()
    wait_until(lambda: not waiting(gateway), timeout_s=WAIT_S, what="all are delivered")
    found = delivered(gateway)
    assert found.keys() == earliest.keys()
    early = {name: found[name] - at for name, at in earliest.items() if found[name] < at - 0.001}
    assert early == {}


def test_operator_sees_and_deletes_a_message(gateway: Waypost) -> None:
    data = str(gateway.data)
    with sender(gateway) as sending:
        sending.send(scheduled("later", 3_600_000), timeout=WAIT_S)
        sending.send(scheduled("wrong", 7_200_000), timeout=WAIT_S)
    later, wrong = items_of("message", "scheduled", "list", "--data", data)
    assert (later["address"], later["user"]) == ("jobs", "machine")
    assert 3_500 < later["due_in_s"] <= 3_600 < wrong["due_in_s"]
    assert document_of("status", "--data", data)["store"]["scheduled"]["messages"] == 2
    page = ask(gateway, "GET", "/api/v1/messages/scheduled?limit=1", headers=basic("viewer", "viewer")).document
    assert ([each["number"] for each in page["messages"]], page["total"]) == ([later["number"]], 2)
    rest = f"/api/v1/messages/scheduled?after={page['next']}"
    page = ask(gateway, "GET", rest, headers=basic("viewer", "viewer")).document
    assert ([each["number"] for each in page["messages"]], page["next"]) == ([wrong["number"]], None)

    path = f"/api/v1/messages/scheduled/{wrong['number']}"
    assert ask(gateway, "DELETE", path, headers=basic("viewer", "viewer")).status == 403
    output_of("message", "scheduled", "delete", wrong["number"], "--data", data)
    assert ask(gateway, "DELETE", path, headers=basic("boss", "boss")).status == 404
    for name in ("nothing", "9" * 5_000):
        assert ask(gateway, "DELETE", f"/api/v1/messages/scheduled/{name}", headers=basic("boss", "boss")).status == 404
    gateway.kill()
    gateway.start()
    assert [each["number"] for each in waiting(gateway)] == [later["number"]]
    assert ask(gateway, "DELETE", "/api/v1/messages/scheduled", headers=basic("boss", "boss")).status == 400
    assert document_of("message", "scheduled", "delete", "--user", "nobody", "--data", data)["messages"] == 0
    assert document_of("message", "scheduled", "delete", "--user", "machine", "--data", data)["messages"] == 1
    assert waiting(gateway) == []
    [lost] = document_of("store", "info", "--data", data)["ledger"]
    assert (lost["reason"], lost["messages"]) == ("deleted", 2)


def test_message_that_expires_before_its_delivery_is_refused(gateway: Waypost) -> None:
    with sender(gateway) as sending:
        message = scheduled("m", 60_000)
        message.ttl = 10
        with pytest.raises(SendException):
            sending.send(message, timeout=WAIT_S)
    assert waiting(gateway) == []
