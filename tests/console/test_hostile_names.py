"""Names, topics, payloads and notes that are meant to break a page: every page shows them as text.

The pages come from the lists of the apps. A page has to show a hostile text, unless `WITHOUT` says why it has none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import paho.mqtt.client as paho
import pytest
from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as NotShown

from bridge.hub_addresses import STATUS
from bridge.plain import data_section
from edge.broker.mqtt import packets
from tests.console import gold_world
from tests.console.apps import GATEWAY, HOSTILE, HUB, ConsoleApp
from tests.console.visit import Visit, visiting
from tests.support.amqp_sender import AmqpSender
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.hostile import Raw
from tests.support.hostile_gateway import HostileGateway
from tests.support.http_client import ask, document, status
from tests.support.paho_client import mqtt_client
from tests.support.paho_loop import close_client
from tests.support.processes import Waypost, edge, hub, wait_until

SHOWN_MS: Final = 20_000
"""Longest wait for a name, in milliseconds."""
MARKUP: Final = "<img src=x onerror=alert(1)>"
"""Part of hostile names that every list has to show as it is."""
WITHOUT: Final = {
    "gateway": {
        "configuration": "it is in a file, which the page does not show",
        "bridge": "names of connectors come from the configuration, which permits letters only",
        "overview": "counts, no names",
        "store": "counts, no names",
        "system": "counts, no names",
        "addresses?new=1": "a form",
        "addresses/plant%2Ftemp": "one name, which is usual",
        "devices?follow=pump7": "a trace that has not started",
        "devices?show=silent": "no device is silent yet",
        "messages?show=try": "a form",
        "messages?show=browse": "a form",
        "messages?show=browse&address=%23": "no queue has that name",
        "users/pump7": "one name, which is usual",
    },
    "hub": {
        "people": "names permit letters only",
        **{
            f"commands?show={state}": "the list of all has the command; its state changes"
            for state in ("waiting", "sent", "queued", "delivered", "expired", "rejected")
        },
        "alerts?show=pending": "a condition without a delay fires at once",
        "alerts?show=resolved": "no alert is over yet",
        "alerts?show=rules": "the rules of this version",
        "fleet/default%2Fgw1?tab=configuration": "a development hub has none",
        "fleet/default%2Fgw1?tab=identity": "a development hub has none",
        "alerts?show=receivers": "names and addresses of receivers permit no such text",
        "alerts?show=webhooks": "addresses of webhooks permit no such text",
        "system": "counts, no names",
        "enrolment": "labels and names of gateways permit letters only",
        "log?show=events": "the table of the log, which has one; no event of a development hub names a gateway",
        "rollouts": "a development hub has none",
        "campaigns": "names of artefacts permit no such text; notes are shown as texts",
        "configuration": "a development hub has none",
    },
}
"""Pages without a hostile text, and the reason."""
JSON: Final = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a gateway with hostile users, devices, addresses, messages, dead letters and refusals."""
    jobs = """
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},
  spec: {address: jobs, type: queue, deadletter: dead}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.dead}, spec: {address: dead, type: deadletter}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.queue},
  spec: {address: "queue/#", type: queue, deadletter: dead}}
"""
    users = user("boss", "manage, recv, send") + user("pump7", "send, recv")
    folder = tmp_path_factory.mktemp("gateway")
    with gateway_with(folder, resources(jobs, users)) as server, contextlib.ExitStack() as stack:
        boss = basic("boss", "boss")
        put(server, "POST", "/api/v1/users", boss, name=MARKUP, allow=[f"send:{MARKUP}"])
        refused = Raw(server, 4)
        refused.send(packets.Connect("pump", 4, username=HOSTILE, password=b"wrong"))
        refused.rest()
        refused.close()
        with Raw(server, 4).connect(f"{HOSTILE} away", clean_start=False, username="boss", password=b"boss") as away:
            away.subscribe(f"plant/{HOSTILE}/+", HOSTILE, qos=1)
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=HOSTILE, protocol=paho.MQTTv5)
        client.username_pw_set("pump7", "pump7")
        client.connect("127.0.0.1", server.port("mqtt"))
        client.loop_start()
        stack.callback(close_client, client)
        client.subscribe(f"plant/{HOSTILE}/#", 1)
        for topic in (f"plant/{HOSTILE}", f"queue/{HOSTILE}", "jobs"):
            client.publish(topic, HOSTILE.encode(), qos=1, retain=topic.startswith("plant")).wait_for_publish(10)
        client.publish(f"queue/{HOSTILE}", b"rejected", qos=1).wait_for_publish(10)
        path = f"/c/{quote(f'queue/{HOSTILE}')}"
        lock = ask(server, "GET", f"{path}?wait=10", None, boss).lock
        assert ask(server, "PUT", f"{path}?lock={lock}&outcome=rejected", None, boss).status == 204
        wrong = json.dumps({"user": MARKUP, "password": "wrong"}).encode()
        assert ask(server, "POST", "/api/v1/session", wrong, JSON).status == 401
        yield server


@pytest.fixture(scope="module")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a hub with a hostile gateway, commands, views, mutes, receivers, tables and unreadable deliveries."""
    folder = tmp_path_factory.mktemp("hub")
    with hub(folder) as server, contextlib.ExitStack() as stack:
        gold_world.fill(folder / "hub" / "lake", MARKUP)
        options = ("--hub", f"amqp://127.0.0.1:{server.port('amqp')}", "--gateway", MARKUP, "--forward", "plant/#")
        site = stack.enter_context(edge(folder, "gw", *options))
        connected = "the gateway is connected"  # the hub takes no command for it before
        wait_until(lambda: status(server)["gateways"]["connected"] >= 1, timeout_s=60, what=connected)
        client = stack.enter_context(mqtt_client(site, "pump7"))
        client.publish(f"plant/{HOSTILE}", HOSTILE.encode())
        put(server, "PATCH", "/api/v1/alert-rules/WaypostUplinkAway", for_s=0)
        with HostileGateway(server.port("amqp"), f"{MARKUP}2") as away:
            away.send(HOSTILE.encode()).settled()
        sick = stack.enter_context(AmqpSender(server.port("amqp"), f"{MARKUP}3", STATUS))
        problem = {"name": HOSTILE, "severity": "error", "what": HOSTILE, "since": "2026-11-30T10:00:00Z"}
        sick.send(data_section(json.dumps({"version": HOSTILE, "problems": [problem]}).encode())).settled()
        put(server, "POST", "/api/v1/commands", device=MARKUP, name=MARKUP, gateway=MARKUP, payload=HOSTILE, ttl_s=600)
        put(server, "PUT", f"/api/v1/views/{quote(MARKUP)}", page="fleet", query="show=all")
        put(server, "POST", "/api/v1/mutes", minutes=60, reason=HOSTILE, gateway=MARKUP)
        wait_until(lambda: document(server, "/api/v1/alerts")["alerts"], timeout_s=60, what="a gateway is away")
        wait_until(lambda: status(server)["totals"]["rows"] > 0, timeout_s=60, what="its message has landed")
        problems = "/api/v1/problems"
        wait_until(lambda: document(server, problems)["problems"], timeout_s=60, what="the registry has its problem")
        yield server


def put(
    server: Waypost, method: str, path: str, login: Mapping[str, str] = MappingProxyType({}), **document: Any
) -> None:
    """Send a document, which has to be accepted."""
    answer = ask(server, method, path, json.dumps(document).encode(), {**JSON, **login})
    assert 200 <= answer.status < 300, answer


def base_of(server: Waypost) -> str:
    return f"http://127.0.0.1:{server.port('http')}/"


def look_for_markup(visit: Visit, app: ConsoleApp) -> list[str]:
    """Open every page; return what is wrong."""
    found = []
    for each in app.addresses:
        address = each.replace("gw1", quote(MARKUP, safe="")) if app is HUB else each
        visit.open(f"#/{address}")
        is_expected = not {each, each.partition("?")[0]} & WITHOUT[app.name].keys()
        if is_expected:
            with contextlib.suppress(NotShown):
                visit.page.get_by_text(MARKUP).first.wait_for(timeout=SHOWN_MS, state="attached")
        body = visit.page.locator("body")
        if body.locator("img, script:not([src]), iframe, object, embed").count():
            found.append(f"{address}: a name became an element")
        text = body.inner_text()
        if set(text) & set("\u202e\u2066\u200b\x1b"):
            found.append(f"{address}: a name turns or hides text")
        if MARKUP not in text and is_expected:
            found.append(f"{address}: shows no hostile name: add one, or give the reason in WITHOUT")
    return found


def test_gateway_shows_hostile_texts_as_text(browser: Browser, gateway: Waypost) -> None:
    with visiting(browser, base_of(gateway)) as visit:
        visit.page.goto(visit.base)
        visit.page.get_by_label("User").fill("boss")
        visit.page.get_by_label("Password", exact=True).fill("boss")
        visit.page.get_by_role("button", name="Sign in").click()
        visit.see("Messages a second")
        found = look_for_markup(visit, GATEWAY)
        assert not found, "\n".join(found)


def test_hub_shows_hostile_texts_as_text(browser: Browser, hub_server: Waypost) -> None:
    with visiting(browser, base_of(hub_server)) as visit:
        found = look_for_markup(visit, HUB)
        assert not found, "\n".join(found)
