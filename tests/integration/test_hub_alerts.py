"""Alerts of a real hub: rules, mutes and receivers over HTTP and on the command line, across a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.alerts.limits import EVALUATION_PAUSE_S
from tests.support.command import item_in, run_waypost
from tests.support.http_client import Answer, ask, document, status
from tests.support.notified import WebhookServer
from tests.support.processes import Waypost, edge, hub, wait_until

WITHIN_S = 60.0


@pytest.fixture
def webhook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


def send(server: Waypost, method: str, path: str, body: Any = None) -> Answer:
    content = None if body is None else json.dumps(body).encode()
    return ask(server, method, f"/api/v1/{path}", content, {"Content-Type": "application/json"})


def alert(server: Waypost, *words: str, code: int = 0) -> str:
    done = run_waypost("alert", *words, "--data", str(server.data))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip()


def evaluated(server: Waypost) -> None:
    """Wait until the hub has evaluated its rules twice; an evaluation that began before this moment may be the first.

    Changed rules are evaluated soon.
    """
    for for_s in (1, 2):
        seen = status(server)["alerts"]["evaluations"]
        assert send(server, "PATCH", "alert-rules/WaypostLakeTwice", {"for_s": for_s}).status == 200
        wait_until(lambda seen=seen: evaluations(server) > seen, timeout_s=WITHIN_S, what="an evaluation")


def evaluations(server: Waypost) -> int:
    """Return the number of evaluations since the hub started."""
    return int(status(server)["alerts"]["evaluations"])


def test_changed_rules_and_mutes_are_evaluated_soon(hub_server: Waypost) -> None:
    """Many changes in a row are evaluated together, within seconds and not at the next interval."""
    wait_until(lambda: evaluations(hub_server) > 0, timeout_s=WITHIN_S, what="the first evaluation")
    began = time.monotonic()
    seen = evaluations(hub_server)
    for number in range(20):
        assert send(hub_server, "PATCH", "alert-rules/WaypostLakeTwice", {"for_s": number}).status == 200
    mute = send(hub_server, "POST", "mutes", {"minutes": 5, "reason": "works", "gateway": "nowhere"})
    assert send(hub_server, "DELETE", f"mutes/{mute.document['id']}").status == 200
    wait_until(lambda: evaluations(hub_server) > seen, timeout_s=WITHIN_S, what="an evaluation")
    assert evaluations(hub_server) - seen <= 1 + (time.monotonic() - began) / EVALUATION_PAUSE_S


def test_gateway_that_is_away_fires_once_across_a_restart(tmp_path: Path, webhook: WebhookServer) -> None:
    with hub(tmp_path) as server:
        made = send(server, "PUT", "receivers/ops", {"settings": {"kind": "webhook", "url": webhook.url}})
        assert made.status == 201
        assert made.document["secret"]
        assert send(server, "POST", "receivers/ops/test").status == 200
        options = ("--hub", f"amqp://127.0.0.1:{server.port('amqp')}", "--gateway", "hall", "--forward", "plant/#")
        with edge(tmp_path, "gw", *options) as gateway:
            wait_until(lambda: status(server)["gateways"]["connected"] == 1, timeout_s=WITHIN_S, what="it is connected")
            gateway.stop()
        wait_until(lambda: status(server)["gateways"]["connected"] == 0, timeout_s=WITHIN_S, what="it is gone")
        assert send(server, "PATCH", "alert-rules/WaypostUplinkAway", {"for_s": 0}).document["for_s"] == 0
        wait_until(lambda: webhook.events() == ["test", "firing"], timeout_s=WITHIN_S, what="the webhook is told")
        [found] = document(server, "/api/v1/alerts")["alerts"]
        assert (found["rule"], found["gateway"], found["state"]) == ("WaypostUplinkAway", "hall", "firing")
        assert document(server, f"/api/v1/alerts/{found['id']}")["members"][0]["gateway"] == "hall"
        server.stop()
        server.start()
        evaluated(server)
        assert webhook.events() == ["test", "firing"]
        acknowledged = send(server, "POST", f"alerts/{found['id']}/acknowledge", {"note": "on it"})
        assert acknowledged.document["state"] == "acknowledged"
        assert found["id"] in alert(server, "list", "--state", "acknowledged")


def test_command_line_mutes_and_tests(tmp_path: Path, webhook: WebhookServer) -> None:
    with hub(tmp_path) as server:
        assert alert(server, "list") == "no alerts (open)"
        words = ("--for", "4h", "--reason", "works", "--selector", "site=lyon", "--json")
        made = item_in(alert(server, "mute", *words))
        assert document(server, "/api/v1/mutes")["mutes"] == [made]
        assert made["id"] in alert(server, "unmute")
        alert(server, "unmute", made["id"])
        assert document(server, "/api/v1/mutes")["mutes"] == []
        alert(server, "unmute", made["id"], code=1)
        alert(server, "mute", "--for", "31d", "--reason", "long", code=2)
        alert(server, "test", code=1)
        send(server, "PUT", "receivers/ops", {"settings": {"kind": "webhook", "url": webhook.url}})
        assert alert(server, "test") == "ops  delivered"
        webhook.status = 500
        assert "500" in alert(server, "test", "ops", code=1)
        assert "500" in document(server, "/api/v1/receivers")["receivers"][0]["failure"]
        alert(server, "ack", "0" * 16, code=1)


@pytest.mark.parametrize(
    ("method", "path", "body", "wanted"),
    [
        ("GET", "alerts?state=strange", None, 400),
        ("GET", "alerts?limit=501", None, 400),
        ("GET", "alerts?after=x", None, 400),
        ("GET", "alerts/unknown", None, 404),
        ("POST", "alerts/unknown/acknowledge", {}, 404),
        ("PATCH", "alert-rules/Unknown", {}, 404),
        ("PATCH", "alert-rules/WaypostUplinkAway", {"for_s": -1}, 400),
        ("PATCH", "alert-rules/WaypostUplinkAway", {"selector": "=x"}, 400),
        ("POST", "mutes", {"minutes": 5}, 400),
        ("POST", "mutes", {"minutes": 5, "reason": "x", "rule": "Unknown"}, 400),
        ("POST", "mutes", {"minutes": 50_000, "reason": "x"}, 400),
        ("DELETE", "mutes/unknown", None, 404),
        ("PUT", "receivers/a b", {"settings": {"kind": "webhook", "url": "http://x/"}}, 400),
        ("PUT", "receivers/ops", {"settings": {"kind": "webhook", "url": "ftp://x/"}}, 400),
        ("PUT", "receivers/ops", {"settings": {"kind": "ping", "url": "http://x/", "every_s": 1}}, 400),
        ("DELETE", "receivers/unknown", None, 404),
        ("POST", "receivers/unknown/test", None, 404),
    ],
)
def test_mistakes_are_refused(hub_server: Waypost, method: str, path: str, body: Any, wanted: int) -> None:
    answer = send(hub_server, method, path.replace(" ", "%20"), body)
    assert answer.status == wanted, answer
    assert answer.document["error"]


@pytest.fixture(scope="module")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with hub(tmp_path_factory.mktemp("hub")) as server:
        yield server
