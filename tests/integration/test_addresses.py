"""Figures and details of addresses over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from proton import Message

from edge.appliance.main import run
from tests.support.amqp_client import connect_amqp
from tests.support.configured_gateway import basic, gateway_with, user
from tests.support.http_client import ask
from tests.support.paho_client import PahoClient, mqtt_client
from tests.support.processes import Waypost, edge, wait_until

RESOURCES = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: hall}
spec:
  listeners: {mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0", http: "127.0.0.1:0"}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {name: default}
spec: {type: brokered, authenticationService: {name: standard}}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {name: default.jobs}
spec:
  address: jobs/#
  type: queue
  quota: {bytes: 2000000}
  whenFull: dropOldest
  deadletter: dead
  messageRedelivery: {maximumDeliveryAttempts: 3}
---
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {name: default.dead}
spec: {address: dead, type: deadletter}
"""


@pytest.fixture(scope="module")
def open_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with edge(tmp_path_factory.mktemp("addresses"), "gw") as server:
        yield server


def rows(server: Waypost, query: str = "") -> dict[str, dict[str, Any]]:
    document = ask(server, "GET", f"/api/v1/addresses?limit=500{query}").document
    return {row["id"]: row for row in document["addresses"]}


def detail(server: Waypost, address: str, headers: Mapping[str, str] | None = None) -> Any:
    return ask(server, "GET", f"/api/v1/addresses/{quote(address)}", headers=headers).document


def count(server: Waypost, rule: str, name: str) -> int:
    found: int = next(row[name] for row in detail(server, rule)["rows"] if row["id"] == f"rule/{rule}")
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_a_topic_are_counted_once(open_gateway: Waypost, qos: int) -> None:
    """Most of them come on the fast path, which learns a topic after its first message."""
    before = [count(open_gateway, "topic/#", name) for name in ("received", "delivered")]
    with mqtt_client(open_gateway, f"sub{qos}") as sub, mqtt_client(open_gateway, f"pub{qos}") as pub:
        assert sub.subscribe(f"topic/count/{qos}", 0) == [0]
        for number in range(50):
            pub.publish(f"topic/count/{qos}", b"%d" % number, qos)
        for _ in range(50):
            sub.get()
        after = [count(open_gateway, "topic/#", name) for name in ("received", "delivered")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [50, 50]


def test_messages_over_amqp_are_counted(open_gateway: Waypost) -> None:
    before = count(open_gateway, "topic/#", "received")
    connection = connect_amqp(open_gateway)
    sender = connection.create_sender("topic/amqp")
    for number in range(7):
        sender.send(message_of(number))
    connection.close()
    assert count(open_gateway, "topic/#", "received") - before == 7


def test_queue_has_its_figures(open_gateway: Waypost) -> None:
    began = time.time()
    with mqtt_client(open_gateway, "producer") as pub:
        for number in range(5):
            pub.publish("queue/figures", b"%d" % number)
        row = rows(open_gateway)["queue/queue/figures"]
        assert (row["type"], row["received"], row["delivered"], row["waiting"]) == ("queue", 5, 0, 5)
        assert began - 1 <= row["oldest_at"] <= time.time() + 1
        with mqtt_client(open_gateway, "consumer") as sub:
            sub.subscribe("queue/figures")
            for _ in range(5):
                sub.get()
            wait_until(
                lambda: detail(open_gateway, "queue/figures")["rows"][0]["waiting"] == 0,
                timeout_s=60,
                what="all are settled",
            )
            shown = detail(open_gateway, "queue/figures")
            assert (shown["rows"][0]["delivered"], shown["rows"][0]["oldest_at"]) == (5, None)
            assert [(each["name"], each["subscription"]) for each in shown["consumers"]] == [("consumer", "")]


def test_rates_come_with_the_second_list_and_sort_it(open_gateway: Waypost) -> None:
    with mqtt_client(open_gateway, "busy") as pub:
        pub.publish("queue/quiet", b"x")
        rows(open_gateway)

        def busiest() -> Any:
            for _ in range(20):
                pub.publish("queue/busy", b"x")
            return next(iter(rows(open_gateway, "&q=queue/").values()))

        wait_until(lambda: busiest()["address"] == "queue/busy", timeout_s=60, what="the busy queue is first")
        wait_until(lambda: (busiest()["received_per_s"] or 0) > 1, timeout_s=60, what="it has a rate")


def test_pages_follow_each_other_without_repetition(open_gateway: Waypost) -> None:
    with mqtt_client(open_gateway, "pages") as pub:
        for number in range(25):
            pub.publish(f"queue/page/{number:02}", b"x")
    wait_until(lambda: len(rows(open_gateway, "&q=queue/page/")) == 25, timeout_s=60, what="the list is read again")
    found, after = [], ""
    while after is not None:
        path = f"/api/v1/addresses?q=queue/page/&sort=address&limit=10&after={after}"
        page = ask(open_gateway, "GET", path).document
        assert page["total"] == 25
        found += [row["address"] for row in page["addresses"]]
        after = page["next"]
    assert found == [f"queue/page/{number:02}" for number in range(25)]


@pytest.mark.parametrize("query", ["sort=odd", "limit=0", "limit=501", "after=odd", "after=bm8"])
def test_wrong_parameters_are_refused(open_gateway: Waypost, query: str) -> None:
    answer = ask(open_gateway, "GET", f"/api/v1/addresses?{query}")
    assert (answer.status, "error" in answer.document) == (400, True)


def test_detail_says_what_happens_and_who_may(tmp_path: Path) -> None:
    users = user("pump7", "send", '"jobs/%u/#"') + user("worker", "recv", '"jobs/#"') + user("boss", "manage, view")
    with gateway_with(tmp_path, RESOURCES + users) as server:
        shown = detail(server, "jobs/pump7/1", basic("boss", "boss"))
        assert (shown["type"], shown["rule"], shown["everyone"]) == ("queue", "jobs/#", False)
        assert shown["policy"][1] == "Keeps up to 2.0 MB; then the oldest messages are dropped."
        assert "Undeliverable messages go to dead." in shown["policy"]
        assert (shown["senders"]["names"], shown["receivers"]["names"]) == (["pump7"], ["worker"])
        assert detail(server, "jobs/pump8/1", basic("boss", "boss"))["senders"]["names"] == []
        assert (shown["deadletter"], shown["dead_letters"]) == ("dead", 0)


def test_metrics_have_counts_by_rule(open_gateway: Waypost) -> None:
    text = ask(open_gateway, "GET", "/metrics").body.decode()
    assert 'waypost_address_received_messages_total{address="topic/#"}' in text
    assert 'received_messages_total{address="queue/busy"}' not in text, "names of clients are not bounded"


def message_of(number: int) -> Message:
    return Message(body=f"{number}", durable=True)


def why(server: Waypost, address: str, headers: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    document = ask(server, "GET", f"/api/v1/why?address={quote(address)}", headers=headers).document
    return {step["part"]: (step["state"], step["text"]) for step in document["steps"]}


def test_way_of_a_message_is_explained(open_gateway: Waypost) -> None:
    with mqtt_client(open_gateway, "sender") as pub:
        pub.publish("topic/lost", b"x")
        pub.publish("queue/lonely", b"x")
        lost, lonely = why(open_gateway, "topic/lost"), why(open_gateway, "queue/lonely")
    assert lost["subscribers"] == ("wrong", "No client subscribes to it: its messages are dropped.")
    assert lost["arrivals"] == ("wrong", "1 message had no subscriber, and were dropped.")
    assert lonely["subscribers"] == ("wrong", "No consumer is connected.")
    assert lonely["waiting"][1].startswith("1 message in the queue, the oldest for ")
    assert lonely["forwarders"][0] == "note"
    with mqtt_client(open_gateway, "reader") as sub, mqtt_client(open_gateway, "writer") as pub:
        sub.subscribe("topic/fine")
        pub.publish("topic/fine", b"x")
        document = ask(open_gateway, "GET", "/api/v1/why?address=topic/fine").document
    assert document["verdict"] == "Nothing stands in the way: messages to this address arrive."


def test_missing_rights_and_refusals_are_named(tmp_path: Path) -> None:
    users = user("pump7", "send", '"plant/pump7/#"') + user("boss", "manage, view")
    boss = basic("boss", "boss")
    with gateway_with(tmp_path, RESOURCES + users) as server:
        client = paho.Client(CallbackAPIVersion.VERSION2, "pump7", protocol=paho.MQTTv5)
        client.username_pw_set("pump7", "pump7")
        with PahoClient(client).connect(server.port("mqtt")) as pub:
            pub.publish_code("jobs/1")
        found = why(server, "jobs/1", boss)
        assert found["senders"] == ("wrong", "No user may send it.")
        assert found["arrivals"][0] == "wrong"
        assert ask(server, "GET", "/api/v1/why?address=", headers=boss).status == 400


def test_command_prints_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with edge(tmp_path, "gw") as server, mqtt_client(server, "sender") as pub:
        pub.publish("queue/lonely", b"x")
        assert run(["trace", "queue/lonely", "--data", str(tmp_path / "gw")]) == 1
        shown = capsys.readouterr().out
    assert "WRONG subscribers: No consumer is connected." in shown
    assert "next: connect one" in shown
