"""Commands through two hubs of one registry: sent at either, while the gateway is at one of them and hubs restart."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.command_gateway import DEVICE, CommandGateway
from tests.support.http_client import ask, document
from tests.support.hub_replicas import hub_replicas
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, wait_until

WAIT_S: Final = 30.0
AT_ONCE_S: Final = 1.0
"""Longest time from the answer of a gateway at one hub to the answer of a request that waits at the other one."""


@pytest.fixture
def hubs(tmp_path: Path, postgres: Postgres) -> Iterator[list[Waypost]]:
    with hub_replicas(tmp_path, postgres.url(postgres.schema()), 10) as running:
        yield running


class Sender(threading.Thread):
    """Sends commands at either hub, each until a hub has accepted it."""

    def __init__(self, hubs: list[Waypost], count: int, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.hubs = hubs
        self.count = count
        self.dice = dice
        self.sent: list[str] = []
        """Identifiers, in order."""

    def run(self) -> None:
        for number in range(self.count):
            body = json.dumps({"gateway": "hall", "device": DEVICE, "name": f"on{number}", "ttl_s": 600}).encode()
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"command-{number}"}
            while True:
                try:
                    answer = ask(self.dice.choice(self.hubs), "POST", "/api/v1/commands", body, headers, timeout_s=5.0)
                except (OSError, HTTPException):  # the hub restarts: the same command, at any hub
                    time.sleep(0.05)
                    continue
                if answer.status == HTTPStatus.ACCEPTED:
                    self.sent.append(answer.document["id"])
                    break
                time.sleep(0.05)


def command(hub: Waypost, identifier: str, query: str = "") -> Any:
    return document(hub, f"/api/v1/commands/{identifier}{query}")


def shows_connected(hub: Waypost) -> bool:
    """Return whether a hub shows that the gateway is connected to another one."""
    answer = ask(hub, "GET", "/api/v1/gateways/hall")
    return answer.status == HTTPStatus.OK and answer.document["connected"] and answer.document["hub"] is not None


def send_while_restarting(hubs: list[Waypost], count: int, restarts: int, dice: random.Random) -> CommandGateway:
    """Send commands while the gateway changes the hub and hubs are killed; return when each has a receipt."""
    place = [hubs[1]]
    with CommandGateway("hall", lambda: place[0].port("amqp")) as gateway:
        wait_until(lambda: gateway.connected_to != 0, timeout_s=WAIT_S, what="the gateway connects")
        sender = Sender(hubs, count, dice)
        sender.start()
        for number in range(restarts):
            wanted = (number + 1) * count // (restarts + 1)
            wait_until(lambda wanted=wanted: len(sender.sent) >= wanted, timeout_s=120.0, what="commands are sent")
            victim = hubs[number % 2]
            if place[0] is victim or dice.random() < 0.5:
                place[0] = hubs[1 - number % 2]
            victim.kill()
            victim.start()
        sender.join(300.0)
        assert len(sender.sent) == len(set(sender.sent)) == count
        wait_until(lambda: gateway.reported >= set(sender.sent), timeout_s=60.0, what="each command has a receipt")
        for identifier in sender.sent:
            assert command(dice.choice(hubs), identifier)["state"] == "delivered"
    assert set(gateway.taken) == set(sender.sent)
    return gateway


@pytest.mark.timeout(400)
def test_command_sent_at_one_hub_reaches_the_gateway_at_the_other(hubs: list[Waypost]) -> None:
    here, there = hubs
    with CommandGateway("hall", lambda: there.port("amqp")) as gateway:
        wait_until(lambda: shows_connected(here), timeout_s=WAIT_S, what="each hub shows the gateway")
        body = json.dumps({"gateway": "hall", "device": DEVICE, "name": "on"}).encode()
        sent = ask(here, "POST", "/api/v1/commands", body, {"Content-Type": "application/json"}).document
        over = command(here, sent["id"], "?wait=15")
        assert over["state"] == "delivered"
        assert list(gateway.taken) == [sent["id"]]
    send_while_restarting(hubs, 20, 1, random.Random(1))


@pytest.mark.slow
def test_waiting_request_ends_within_a_second_of_the_receipt(hubs: list[Waypost]) -> None:
    here, there = hubs
    late_s = []
    with CommandGateway("hall", lambda: there.port("amqp")) as gateway:
        wait_until(lambda: shows_connected(here), timeout_s=WAIT_S, what="each hub shows the gateway")
        for number in range(100):
            body = json.dumps({"gateway": "hall", "device": DEVICE, "name": f"on{number}"}).encode()
            sent = ask(here, "POST", "/api/v1/commands", body, {"Content-Type": "application/json"}).document
            over = command(here, sent["id"], f"?wait={WAIT_S:g}")
            ended = time.monotonic()
            assert over["state"] == "delivered"
            late_s.append(ended - gateway.taken[sent["id"]])
    print(f"request ends after the command is at the gateway: max {max(late_s):.3f} s")
    assert max(late_s) < AT_ONCE_S
