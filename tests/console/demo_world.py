"""Plant of the pictures in the docs: a hub with three gateways, devices that send, and something on each page."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import paho.mqtt.client as paho

from tests.console import gold_world
from tests.support import campaign_world
from tests.support.configured_gateway import basic
from tests.support.enrolled import EnrolledFleet
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.operator import HubOperator
from tests.support.paho_loop import close_client
from tests.support.processes import Waypost, wait_until

PUMPS: Final = 6
SENDING_S: Final = 45.0
EVERY_S: Final = 0.15
JOBS: Final = """
apiVersion: waypost/v1
kind: Address
metadata: {name: jobs}
spec: {address: jobs, type: queue, deadletter: dead}
---
apiVersion: waypost/v1
kind: Address
metadata: {name: dead}
spec: {address: dead, type: deadletter}
"""
SPRING: Final = b"""
apiVersion: waypost/v1
kind: Address
metadata: {name: recipes}
spec: {address: "recipes/#", type: topic}
"""


class DemoWorld(NamedTuple):
    """Running plant."""

    hub: Waypost
    operator: HubOperator
    gateway: Waypost
    """Gateway `north-hall`, which the pictures show."""


@contextlib.contextmanager
def demo_world(folder: Path) -> Iterator[DemoWorld]:
    """Run the plant; it has sent for `SENDING_S` when the body begins, and goes on."""
    with EnrolledFleet(folder) as fleet, contextlib.ExitStack() as stack:
        operator = HubOperator(fleet.hub)
        for name, site in (("north-hall", "lyon"), ("south-yard", "lyon"), ("mast-7", "bern")):
            fleet.enrol(name, f"site={site}")
        hall = fleet.gateways["north-hall"]
        fleet.here("north-hall", "apply", "-f", fleet.written("jobs.yaml", JOBS))
        for each in fleet.gateways.values():
            each.start()
        wait_until(lambda: operator.get("status")["gateways"]["connected"] == 3, timeout_s=60, what="all are connected")
        fleet.gateways["mast-7"].stop()
        gold_world.fill(fleet.lake, "north-hall", hostile=False)
        devices = stack.enter_context(_devices(hall))
        stack.enter_context(_sending(devices))
        _prepare_hub(operator)
        _fail_a_job(hall)
        time.sleep(SENDING_S)
        yield DemoWorld(fleet.hub, operator, hall)


def _prepare_hub(operator: HubOperator) -> None:
    for method, path, body in (
        ("PATCH", "alert-rules/WaypostUplinkAway", {"for_s": 0}),
        ("POST", "tokens", {"count": 2, "labels": {"site": "bern"}, "expires_s": 86_400}),
        ("PUT", "views/Lyon", {"page": "fleet", "query": "show=all&selector=site%3Dlyon"}),
        ("POST", "commands", {"device": "pump3", "name": "setpoint", "gateway": "north-hall", "payload": "22.5"}),
        ("PUT", "receivers/shift", {"settings": {"kind": "webhook", "url": "https://chat.example/hook"}}),
    ):
        answer = operator.send(method, path, body)
        assert 200 <= answer.status < 300, answer
    query = "selector=site%3Dlyon&waves=1,100%25"
    made = operator.send("POST", f"rollouts?{query}", SPRING, "application/yaml")
    assert 200 <= made.status < 300, made
    campaign_world.start_campaign(operator)


def _as_operator(server: Waypost, method: str, path: str, body: Mapping[str, Any]) -> Any:
    token = (server.data / "operator.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    answer = ask(server, method, f"/api/v1/{path}", json.dumps(body).encode(), headers)
    assert 200 <= answer.status < 300, answer
    return answer.document


@contextlib.contextmanager
def _devices(hall: Waypost) -> Iterator[list[paho.Client]]:
    """Yield connected pumps; one press has a wrong password."""
    clients = []
    for number in range(1, PUMPS + 1):
        name = f"pump{number}"
        made = _as_operator(hall, "POST", "users", {"name": name, "profile": "sensor", "allow": ["send:plant/#"]})
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        client.username_pw_set(name, made["password"])
        client.connect("127.0.0.1", hall.port("mqtt"))
        client.loop_start()
        clients.append(client)
    _as_operator(hall, "POST", "users", {"name": "press1", "profile": "sensor"})
    for _ in range(3):
        with contextlib.closing(Raw(hall)) as press, contextlib.suppress(AssertionError):
            press.connect("press1", username="press1", password=b"of last year")
    try:
        yield clients
    finally:
        for client in clients:
            close_client(client)


def _fail_a_job(hall: Waypost) -> None:
    allow = ["send:jobs", "recv:jobs"]
    made = _as_operator(hall, "POST", "users", {"name": "worker", "allow": allow})
    login = basic("worker", made["password"])
    for number in range(3):
        body = json.dumps({"job": 4_711 + number, "press": "press1"}).encode()
        sent = ask(hall, "POST", "/t/jobs", body, {**login, "Content-Type": "application/json"})
        assert sent.status == 202, sent
        lock = ask(hall, "GET", "/c/jobs?wait=10", None, login).lock
        ask(hall, "PUT", f"/c/jobs?lock={quote(lock)}&outcome=rejected", None, login)


@contextlib.contextmanager
def _sending(devices: list[paho.Client]) -> Iterator[None]:
    """Let the devices send while the body runs."""
    over = threading.Event()

    def send() -> None:
        for number in itertools.count():
            for place, client in enumerate(devices, start=1):
                body = json.dumps({"temperature": round(21 + (number % 17) / 10 + place / 4, 2)}).encode()
                client.publish(f"plant/hall/pump{place}/values", body, 1)
            if over.wait(EVERY_S):
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
