"""Events of two hubs of one registry: the same at both, and a stream that goes on at the other one after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.batch import CAPABILITY
from tests.support.amqp_sender import AmqpSender
from tests.support.event_stream import EVENTS, read_messages, stream
from tests.support.http_client import document
from tests.support.hub_replicas import hub_replicas
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, wait_until

WAIT_S = 60.0
QUERY = "?type=gateway&after=0"


def events(hub: Waypost) -> list[tuple[int, str, str]]:
    page: Any = document(hub, f"{EVENTS}{QUERY}&limit=500")
    return [(each["number"], each["type"], each["gateway"]) for each in page["events"]]


def connect(hub: Waypost, name: str) -> None:
    """Let a gateway connect to a hub, and leave it."""
    before = len(events(hub))
    with AmqpSender(hub.port("amqp"), name, "telemetry", [CAPABILITY]):
        wait_until(lambda: len(events(hub)) > before, timeout_s=WAIT_S, what=f"{name} is connected")
    wait_until(lambda: events(hub)[-1][1:] == ("gateway.disconnected", name), timeout_s=WAIT_S, what="it has left")


def test_stream_goes_on_at_the_other_hub(tmp_path: Path, postgres: Postgres) -> None:
    with hub_replicas(tmp_path, postgres.url(postgres.schema()), 10) as (first, second):
        with stream(first.port("http"), QUERY) as answer:
            connect(second, "gw1")
            seen = read_messages(answer, "gateway.connected")
        wait_until(lambda: events(first) == events(second), timeout_s=WAIT_S, what="both have the same events")
        first.kill()
        connect(second, "gw2")
        with stream(second.port("http"), "?type=gateway", last=seen[-1][0]) as answer:
            rest = read_messages(answer, "gateway.disconnected")
            rest += read_messages(answer, "gateway.disconnected")
        found = [(number, kind, each["gateway"]) for number, kind, each in [*seen, *rest]]
        assert found == events(second)[: len(found)], "no event is left out or comes twice"
        assert {each[2] for each in found} == {"gw1", "gw2"}
