"""Webhooks of hubs that are killed in the middle of a request: every event arrives, in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from bridge.batch import CAPABILITY
from cloud.hub.data import writer_id
from cloud.hub.registry.location import parse
from cloud.hub.webhooks.limits import CLAIM_SILENT_S
from tests.support.amqp_sender import AmqpSender
from tests.support.event_stream import EVENTS
from tests.support.http_client import ask, document
from tests.support.hub_replicas import hub_replicas
from tests.support.notified import WebhookServer
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, hub, wait_until

WAIT_S = 60.0

pytestmark = pytest.mark.timeout(360)
"""Two hubs start, and several waits of a minute follow each other."""


def events(hub_: Waypost) -> list[int]:
    page: Any = document(hub_, f"{EVENTS}?type=gateway&after=0&limit=500")
    return [each["number"] for each in page["events"]]


def connect(hub_: Waypost, names: Sequence[str]) -> None:
    """Let gateways connect to a hub, and leave it: two events each."""
    before = len(events(hub_))
    for name in names:
        AmqpSender(hub_.port("amqp"), name, "telemetry", [CAPABILITY]).close()
    wanted = before + 2 * len(names)
    wait_until(lambda: len(events(hub_)) >= wanted, timeout_s=WAIT_S, what="their events")


def add_webhook(hub_: Waypost, url: str) -> str:
    body = json.dumps({"url": url, "types": ["gateway"], "after": 0}).encode()
    answer = ask(hub_, "POST", "/api/v1/webhooks", body, {"Content-Type": "application/json"})
    assert answer.status == 201, answer
    return str(answer.document["id"])


def hold_third(server: WebhookServer) -> None:
    """Let the server take two requests, and keep the third one without an answer."""
    wait_until(lambda: len(server.requests) >= 2, timeout_s=WAIT_S, what="two requests")
    server.held = threading.Event()


def numbers(server: WebhookServer) -> list[int]:
    """Return the numbers of the events that were delivered, each at its first time."""
    return list(dict.fromkeys(each.document["data"]["number"] for each in server.requests))


def test_killed_hub_goes_on_when_it_starts_again(tmp_path: Path) -> None:
    with WebhookServer() as server, hub(tmp_path) as running:
        add_webhook(running, server.url)
        connect(running, ["gw1", "gw2"])
        hold_third(server)
        connect(running, ["gw3"])
        running.kill()
        assert server.held is not None
        server.held.set()
        server.held = None
        running.start()
        connect(running, ["gw4"])
        wait_until(lambda: all_arrived(server, running), timeout_s=WAIT_S, what="all events, in order")


@pytest.mark.slow
def test_other_hub_goes_on_for_a_killed_one(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.url(postgres.schema())
    with WebhookServer() as server, hub_replicas(tmp_path, url, 10) as hubs:
        add_webhook(hubs[0], server.url)
        connect(hubs[0], ["gw1"])
        connect(hubs[1], ["gw2"])
        hold_third(server)
        connect(hubs[0], ["gw3"])
        found: list[str] = []
        wait_until(lambda: bool(found.extend(holders(url)) or found), timeout_s=WAIT_S, what="a hub sends")
        sending = 0 if writer_id(tmp_path / "first") == found[0] else 1
        hubs[sending].kill()
        assert server.held is not None
        server.held.set()
        server.held = None
        other = hubs[1 - sending]
        connect(other, ["gw4"])
        wait_until(lambda: all_arrived(server, other), timeout_s=CLAIM_SILENT_S + WAIT_S, what="all events, in order")


def all_arrived(server: WebhookServer, hub_: Waypost) -> bool:
    """Return True when the server has got all events of the hub, in order; a hub that starts makes more of them."""
    return len(numbers(server)) >= 8 and numbers(server) == events(hub_)


def holders(url: str) -> list[str]:
    """Return the writer id of the hub that sends, if one does."""
    engine = sa.create_engine(parse(url), poolclass=sa.NullPool)
    with engine.begin() as tx:
        return [each for each in tx.execute(sa.text("SELECT holder FROM webhooks")).scalars() if each is not None]
