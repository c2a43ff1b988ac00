"""The configuration of a running gateway over HTTP, as its console changes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.hostile.web import gateway_of
from tests.support.configured_gateway import basic, gateway_with, user
from tests.support.http_client import Answer, ask
from tests.support.processes import Waypost, edge, wait_until

JOBS = """apiVersion: waypost/v1
kind: Address
metadata: {name: jobs}
spec: {address: "jobs/#", type: queue}
"""
MORE = """---
apiVersion: waypost/v1
kind: Address
metadata: {name: orders}
spec: {address: orders, type: queue, quota: {bytes: 1000000}}
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with edge(tmp_path, "gw") as server:
        yield server


def send(server: Waypost, method: str, path: str, document: Any = None) -> Answer:
    body = None if document is None else json.dumps(document).encode()
    return ask(server, method, f"/api/v1/{path}", body, {"Content-Type": "application/json"})


def shown(server: Waypost) -> Any:
    return send(server, "GET", "configuration").document


def change(server: Waypost, text: str, **more: Any) -> Answer:
    return send(server, "PUT", "configuration", {"text": text, "version": shown(server)["version"], **more})


def type_of(server: Waypost, address: str) -> str:
    return str(send(server, "GET", f"addresses/{address}").document["type"])


def test_change_is_in_force_at_once(gateway: Waypost) -> None:
    assert (shown(gateway)["version"], shown(gateway)["text"], type_of(gateway, "jobs/1")) == (0, "", "topic")
    answer = change(gateway, JOBS)
    assert answer.status == 200, answer.body
    assert type_of(gateway, "jobs/1") == "queue"
    assert [(each["name"], each["change"]) for each in answer.document["changes"]] == [("jobs", "created")]
    assert "jobs/#" in shown(gateway)["text"]


def test_resource_that_is_left_out_is_deleted(gateway: Waypost) -> None:
    change(gateway, JOBS + MORE)
    answer = change(gateway, JOBS)
    assert [(each["name"], each["change"]) for each in answer.document["changes"]] == [("orders", "deleted")]
    assert type_of(gateway, "orders") == "topic"


def test_mistake_is_named_and_nothing_is_applied(gateway: Waypost) -> None:
    change(gateway, JOBS)
    wrong = JOBS + MORE.replace("1000000", "plenty")
    check = send(gateway, "POST", "configuration/check", {"text": wrong}).document
    assert (check["ok"], [(each["line"], each["path"]) for each in check["errors"]]) == (
        False,
        [(9, "spec.quota.bytes")],
    )
    answer = change(gateway, wrong)
    assert (answer.status, answer.document["errors"][0]["line"]) == (400, 9)
    assert (shown(gateway)["version"], type_of(gateway, "orders")) == (1, "topic")


def test_check_says_what_would_change(gateway: Waypost) -> None:
    check = send(gateway, "POST", "configuration/check", {"text": JOBS}).document
    assert check["ok"]
    assert "+  type: queue" in check["changes"][0]["diff"]
    assert shown(gateway)["version"] == 0


def test_change_of_an_old_version_is_refused(gateway: Waypost) -> None:
    change(gateway, JOBS)
    answer = send(gateway, "PUT", "configuration", {"text": MORE, "version": 0})
    assert (answer.status, "version 1 is in force" in answer.document["error"]) == (409, True)


def test_trial_that_is_not_kept_goes_back(gateway: Waypost) -> None:
    change(gateway, JOBS)
    tried = change(gateway, JOBS + MORE, try_s=5)
    assert tried.document["trial"]["version"] == 2
    assert type_of(gateway, "orders") == "queue"
    wait_until(lambda: type_of(gateway, "orders") == "topic", timeout_s=60, what="the change is taken back")
    assert (shown(gateway)["trial"], "orders" in shown(gateway)["text"]) == (None, False)


def test_trial_that_is_kept_stays(gateway: Waypost) -> None:
    change(gateway, JOBS, try_s=60)
    assert send(gateway, "POST", "configuration/keep").document["trial"] is None
    assert send(gateway, "POST", "configuration/keep").status == 409
    assert type_of(gateway, "jobs/1") == "queue"


def test_trial_can_be_taken_back(gateway: Waypost) -> None:
    change(gateway, JOBS, try_s=60)
    assert change(gateway, MORE, try_s=60).status == 409
    assert send(gateway, "POST", "configuration/revert").status == 200
    assert type_of(gateway, "jobs/1") == "topic"


def test_trial_ends_with_the_program(gateway: Waypost) -> None:
    change(gateway, JOBS, try_s=600)
    gateway.stop()
    gateway.start()
    assert (shown(gateway)["trial"], type_of(gateway, "jobs/1")) == (None, "topic")


def test_earlier_version_returns(gateway: Waypost) -> None:
    change(gateway, JOBS)
    change(gateway, MORE)
    versions = send(gateway, "GET", "configuration/history").document["versions"]
    assert [each["version"] for each in versions] == [2, 1]
    earlier = send(gateway, "GET", "configuration/1").document
    assert ("jobs/#" in earlier["text"], [each["change"] for each in earlier["check"]["changes"]]) == (
        True,
        ["created", "deleted"],
    )
    assert send(gateway, "PUT", "configuration", {"restore": 1, "version": 2}).document["version"] == 3
    assert (type_of(gateway, "jobs/1"), type_of(gateway, "orders")) == ("queue", "topic")
    assert send(gateway, "GET", "configuration/9").status == 404


def test_only_managers_change_and_a_file_is_not_changed(tmp_path: Path) -> None:
    text = gateway_of(extra="".join((user("viewer", "view"), user("boss", "manage"))))
    with gateway_with(tmp_path, text) as server:
        for method, path in (("PUT", "configuration"), ("POST", "configuration/check"), ("POST", "addresses")):
            body = b'{"text": "", "version": 0}'
            answers = [
                ask(server, method, f"/api/v1/{path}", body, {"Content-Type": "application/json", **basic(name, name)})
                for name in ("viewer", "boss")
            ]
            assert [answer.status for answer in answers] == [403, 400 if path == "addresses" else 409]
        shown = ask(server, "GET", "/api/v1/configuration", headers=basic("viewer", "viewer")).document
        assert "--config" in shown["fixed"]


class TestAddresses:
    """Single addresses, as the wizard makes them."""

    def test_created_changed_and_deleted(self, gateway: Waypost) -> None:
        made = send(gateway, "POST", "addresses", {"address": "jobs/#", "spec": {"type": "queue"}})
        assert (made.status, made.document["spec"]) == (201, {"type": "queue", "address": "jobs/#"})
        assert type_of(gateway, "jobs/1") == "queue"
        assert send(gateway, "PUT", "addresses/jobs/%23", {"whenFull": "dropOldest"}).status == 200
        assert "whenFull: dropOldest" in shown(gateway)["text"]
        assert send(gateway, "DELETE", "addresses/jobs/%23").status == 200
        assert type_of(gateway, "jobs/1") == "topic"

    def test_mistakes_are_refused(self, gateway: Waypost) -> None:
        answer = send(gateway, "POST", "addresses", {"address": "jobs", "spec": {"type": "pile"}})
        assert (answer.status, "spec.type" in answer.document["error"]) == (400, True)
        assert send(gateway, "DELETE", "addresses/none").status == 404
        send(gateway, "POST", "addresses", {"address": "jobs", "spec": {"type": "queue"}})
        assert send(gateway, "POST", "addresses", {"address": "jobs", "spec": {"type": "queue"}}).status == 409
        assert send(gateway, "POST", "addresses", {"address": 1}).status == 400
