"""The console's API on a running gateway: uplink check, packet trace, import of users, tree of addresses, journal."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import paho.mqtt.client as paho
import pytest

from edge.appliance.accounts.importing import STEP_USERS_MAX
from edge.remote.client import read_events
from tests.support.command import output_of
from tests.support.configured_gateway import address, basic, gateway_with, resources, user
from tests.support.http_client import Answer, ask
from tests.support.openapi import OpenApiContract, address_of, check_openapi
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, free_port, wait_until

ADDRESSES = """
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},
  spec: {address: jobs, type: queue, deadletter: dead}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.dead}, spec: {address: dead, type: deadletter}}
"""
USERS = "".join(
    (
        user("machine", "send, recv", '"plant/#", "a/#", jobs'),
        user("forger", "send", "dead"),
        user("viewer", "view"),
        user("boss", "manage"),
        user("chief", "manage, recv, send"),
    )
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    queues = "".join(address(f"q{number}", name, "queue") for number, name in enumerate(("a/b/c", "a/b/d", "a/e")))
    hub = f"connectors: [{{name: hub, endpointHosts: [{{host: 127.0.0.1, port: {free_port()}}}]}}]"
    text = resources(ADDRESSES, queues, USERS, space=f"authenticationService: {{name: standard}}, {hub}")
    with gateway_with(tmp_path_factory.mktemp("console"), text) as running:
        yield running


def call(gateway: Waypost, name: str, method: str, path: str, body: Any = None) -> Answer:
    sent = None if body is None else json.dumps(body).encode()
    return ask(gateway, method, f"/api/v1/{path}", sent, basic(name, name))


def publish(gateway: Waypost, where: str, body: str) -> None:
    answer = ask(gateway, "POST", f"/t/{where}", body.encode(), basic("machine", "machine"))
    assert answer.status == 202, answer.body


def logged(gateway: Waypost, text: str) -> None:
    """Wait for a line of the log, which a thread writes."""
    wait_until(lambda: text in gateway.log.read_text(), timeout_s=20, what=text)


# --- OpenAPI ---------------------------------------------------------------------------------------------------------

VALUES = {
    "name": "viewer",
    "address": "jobs",
    "queue": "dead",
    "id": "nobody",
    "version": "1",
    "topics": "status",
    "filter": "plant/#",
    "seconds": "1",
    "controller": "chief",
    "action": "1",
    "file": "image",
}
"""Parameters of operations."""
STREAMS = {
    "/",
    "/ui/{name}",
    "/c/{address}",
    "/api/v1/events",
    "/api/v1/messages/live",
    "/api/v1/trace",
    "/api/v1/session/oidc",
    "/api/v1/session/oidc/callback",
}
"""Paths that answer with no document."""


def test_every_answer_follows_the_openapi_document(gateway: Waypost) -> None:
    publish(gateway, "jobs", "21.5")
    call(gateway, "chief", "GET", "messages?address=dead")
    document = call(gateway, "viewer", "GET", "openapi.json").document
    check_openapi(document)
    contract, found = (
        OpenApiContract(document, {"BridgeSummary", "ConnectorSummary", "ProblemDocument"}),
        Counter[int](),
    )
    for operation in contract.operations("get"):
        if operation.path not in STREAMS:
            answer = ask(gateway, "GET", address_of(operation, VALUES), None, basic("chief", "chief"))
            contract.check(operation, answer)
            found[answer.status] += 1
    assert found[200] >= 20, found
    assert set(found) <= {200, 403, 404, 409}, found


# --- uplink check ----------------------------------------------------------------------------------------------------


def test_uplink_check_shows_each_step_up_to_the_failure(gateway: Waypost) -> None:
    assert call(gateway, "viewer", "POST", "bridge/check").status == 403
    assert call(gateway, "viewer", "GET", "bridge/check").document["started_at"] is None
    assert call(gateway, "boss", "POST", "bridge/check").document["running"]
    wait_until(
        lambda: not call(gateway, "viewer", "GET", "bridge/check").document["running"], timeout_s=20, what="the check"
    )
    steps = call(gateway, "viewer", "GET", "bridge/check").document["steps"]
    assert [each["step"] for each in steps] == ["clock", "name resolution", "TCP"]
    assert (steps[1]["connector"], steps[1]["level"], steps[2]["level"]) == ("hub", "ok", "fail")
    assert "no firewall blocks it" in steps[2]["next_step"]


# --- packet trace ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tracing(gateway: Waypost, name: str, **query: Any) -> Iterator[Iterator[tuple[str, Any]]]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port("http"), timeout=20)
    with contextlib.closing(connection):
        fields = {**basic(name, name), "Accept": "text/event-stream"}
        connection.request("GET", f"/api/v1/trace?{urlencode(query)}", headers=fields)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        yield ((event.name, event.data) for event in read_events(answer))


def test_trace_in_a_page_ends_by_itself(gateway: Waypost) -> None:
    with tracing(gateway, "boss", client="machine", events=3) as events:
        event, (started,) = next(events)
        assert (event, started["kind"], started.get("count", 0)) == ("trace", "started", 0)
        for number in range(4):
            publish(gateway, "jobs", str(number))
        rest = list(events)
    assert rest[-1] == ("end", {"why": "it has as many events as it may"})
    lines = [line for event, lines in rest if event == "trace" for line in lines]
    assert (len(lines), lines[0]["sign"], "/t/jobs" in lines[0]["text"]) == (3, "<>", True)
    with tracing(gateway, "boss", client="nobody", seconds=1) as events:
        assert list(events)[-1] == ("end", {"why": "1 s are over"})


@pytest.mark.parametrize(("name", "payload"), [("boss", ""), ("chief", "21.5")])
def test_payloads_are_shown_on_request_to_those_who_may_receive(gateway: Waypost, name: str, payload: str) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "meter7", protocol=paho.MQTTv5)
    client.username_pw_set("machine", "machine")
    with tracing(gateway, name, client="meter7", events=50, seconds=30, payload=1) as events:
        next(events)
        with PahoClient(client).connect(gateway.port("mqtt")):
            client.publish("plant/7", b"21.5", qos=1).wait_for_publish(10)
        lines = (line for event, lines in events if event == "trace" for line in lines)
        found = next(line for line in lines if line["text"].startswith("PUBLISH") and line["sign"] == "<-")
    assert found.get("payload", "") == payload


def test_trace_is_for_those_who_manage(gateway: Waypost) -> None:
    assert call(gateway, "viewer", "GET", "trace?client=machine").status == 403
    assert call(gateway, "boss", "GET", "trace?client=machine&seconds=0").status == 400
    assert call(gateway, "boss", "GET", "trace?client=machine&events=many").status == 400


# --- users -----------------------------------------------------------------------------------------------------------


def bring_in(gateway: Waypost, table: str, **more: Any) -> Answer:
    return call(gateway, "boss", "POST", "user-import", {"csv": table, **more})


def test_users_are_imported_after_a_plan(gateway: Waypost) -> None:
    table = "name,profile,allow\npump1,sensor,\npress1,,send:plant/press1/#\n"
    plan = bring_in(gateway, table, dry_run=True).document
    assert (plan["added"], plan["changed"], plan["passwords"], plan["left"]) == (["pump1", "press1"], [], [], 0)
    assert call(gateway, "viewer", "GET", "users/pump1").status == 404
    made = bring_in(gateway, table).document
    passwords = {each["name"]: each["password"] for each in made["passwords"]}
    assert ask(gateway, "POST", "/t/plant/press1/x", b"1", basic("press1", passwords["press1"])).status == 202
    logged(gateway, "POST /api/v1/user-import -> 200")
    assert gateway.log.read_text().count("/user-import") == 1  # a rehearsal is no change
    assert passwords["pump1"] not in gateway.log.read_text()
    again = bring_in(gateway, table).document
    assert (again["added"], again["changed"], again["unchanged"]) == ([], [], 2)
    (change,) = bring_in(gateway, "name;allow\npress1;send:plant/# recv:jobs\n").document["changed"]
    assert (change["before"], sorted(change["after"])) == (["send:plant/press1/#"], ["recv:jobs", "send:plant/#"])
    assert ask(gateway, "POST", "/t/plant/x", b"1", basic("press1", passwords["press1"])).status == 202


def test_import_continues_in_steps(gateway: Waypost) -> None:
    table = "name,profile\n" + "".join(f"many{number},sensor\n" for number in range(STEP_USERS_MAX + 1))
    first = bring_in(gateway, table).document
    assert (len(first["passwords"]), first["left"]) == (STEP_USERS_MAX, 1)
    second = bring_in(gateway, table).document
    assert (len(second["passwords"]), second["left"], second["unchanged"]) == (1, 0, STEP_USERS_MAX)


def test_wrong_table_changes_nothing(gateway: Waypost) -> None:
    table = "name,profile\ngood,sensor\nbad,wizard\nviewer,sensor\n"
    plan = bring_in(gateway, table, dry_run=True).document
    assert [fault["line"] for fault in plan["faults"]] == [3, 4]
    assert "comes from a MessagingUser resource" in plan["faults"][1]["error"]
    answer = bring_in(gateway, table)
    assert (answer.status, "line 3: profile is one of" in answer.document["error"]) == (400, True)
    assert call(gateway, "viewer", "GET", "users/good").status == 404
    assert call(gateway, "viewer", "POST", "user-import", {"csv": table}).status == 403


# --- addresses -------------------------------------------------------------------------------------------------------


def test_tree_of_addresses_is_read_a_level_at_a_time(gateway: Waypost) -> None:
    for name in ("a/b/c", "a/b/d", "a/e"):
        publish(gateway, name, "1")

    def level(under: str = "", **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = call(
            gateway, "viewer", "GET", f"address-tree?{urlencode({'under': under, **more})}"
        ).document
        return found

    wait_until(lambda: "a" in {each["name"] for each in level()["levels"]}, timeout_s=20, what="a fresh list")
    found = {each["name"]: (each["rows"], each["deeper"], each["waiting"]) for each in level("a")["levels"]}
    assert found == {"b": (2, 2, 2), "e": (1, 0, 1)}
    page = level("a/b", limit=1)
    assert ([each["path"] for each in page["levels"]], page["next"], page["total"]) == (["a/b/c"], "c", 2)
    page = level("a/b", limit=1, after="c")
    assert ([each["path"] for each in page["levels"]], page["next"]) == (["a/b/d"], None)
    assert level("nothing")["levels"] == []


# --- messages --------------------------------------------------------------------------------------------------------


def test_messages_are_browsed_by_properties_and_json(gateway: Waypost) -> None:
    for number, unit in enumerate("KCK"):
        body = json.dumps({"t": 20 + number})
        message = {"address": "jobs", "body": body, "properties": {"unit": unit}, "content_type": "application/json"}
        assert call(gateway, "machine", "POST", "messages", message).status == 200

    def browse(**query: str) -> list[str]:
        answer = call(gateway, "machine", "GET", f"messages?{urlencode({'address': 'jobs', **query})}")
        return [each["body"] for each in answer.document["messages"]]

    assert browse(where="unit = 'K'") == ['{"t": 22}', '{"t": 20}']
    assert browse(where="unit = 'K' AND message.size > 5 AND message.device = 'machine'", json="$.t > 20") == [
        '{"t": 22}'
    ]
    assert browse(where="properties.content_type = 'application/json'", json="$.t == 21") == ['{"t": 21}']
    assert call(gateway, "machine", "GET", "messages?address=jobs&where=unit+%3D").status == 400
    assert call(gateway, "machine", "GET", "messages?address=jobs&json=t").status == 400


def test_forged_origin_of_a_dead_letter_is_not_believed(gateway: Waypost) -> None:
    """A client that may send to the dead letter address must not have an operator send elsewhere for it."""
    for name, origin in (("chief", "plant/x"), ("chief", "jobs"), ("forger", "jobs")):
        marks = {"x-opt-waypost-dead-reason": "rejected", "x-opt-waypost-dead-from": origin}
        sent = call(gateway, name, "POST", "messages", {"address": "dead", "body": origin, "properties": marks})
        assert sent.status == 200, sent.body
    done = call(gateway, "boss", "POST", "dead-letters/retry", {"queue": "dead"}).document
    assert (done["done"], done["kept"]) == (1, 2)  # `chief` may send to `jobs`, and its dead letters come here
    why = "dead letters of plant/x do not come here: move them; forger may not send to jobs: move them"
    assert done["why"] == why


def test_rehearsals_of_dead_letters_are_not_in_the_audit(gateway: Waypost) -> None:
    assert call(gateway, "boss", "POST", "dead-letters/delete", {"queue": "dead", "dry_run": True}).status == 200
    assert call(gateway, "boss", "POST", "dead-letters/delete", {"queue": "dead"}).status == 200
    logged(gateway, "POST /api/v1/dead-letters/delete -> 200")
    assert gateway.log.read_text().count("/dead-letters/delete") == 1


# --- journal: the last test, as it restarts the gateway --------------------------------------------------------------


def test_events_are_kept_over_a_restart(gateway: Waypost) -> None:
    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = call(gateway, "viewer", "GET", "journal?limit=500").document["lines"]
        return found

    before = events()
    gateway.stop()
    gateway.start()
    after = events()
    assert [each["number"] for each in after[: len(before)]] == [each["number"] for each in before]
    assert sum(each["event"] == "start" for each in after) == 2
    assert after == sorted(after, key=lambda each: each["number"])
    page = call(gateway, "viewer", "GET", f"journal?after={before[0]['number']}").document
    assert page["missed"] == 0
    assert "start: version" in output_of("events", "--last", "500", "--data", str(gateway.data))
