"""Users of a running gateway through the API: added, changed, tested and removed, in force at once."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from edge.broker.mqtt.names import SHARE
from tests.support.command import document_of, output_of
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.http_client import Answer, ask
from tests.support.processes import Waypost

USERS = "".join((user("viewer", "view"), user("boss", "manage"), user("fixed", "send", '"plant/#"')))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with gateway_with(tmp_path_factory.mktemp("users"), resources(USERS)) as running:
        yield running


def call(gateway: Waypost, method: str, path: str = "", body: Any = None, name: str = "boss") -> Answer:
    sent = None if body is None else json.dumps(body).encode()
    return ask(gateway, method, f"/api/v1/users{path}", sent, basic(name, name))


def add(gateway: Waypost, name: str, **more: Any) -> dict[str, Any]:
    answer = call(gateway, "POST", body={"name": name, **more})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.document
    return found


def publish(gateway: Waypost, name: str, password: str, address: str) -> int:
    return ask(gateway, "POST", f"/t/{address}", b"1", basic(name, password)).status


def test_added_user_may_do_what_its_profile_says_at_once(gateway: Waypost) -> None:
    made = add(gateway, "pump1", profile="sensor", allow=["send:alarm/%u"])
    assert publish(gateway, "pump1", made["password"], "plant/pump1/temp") == 202
    assert publish(gateway, "pump1", made["password"], "alarm/pump1") == 202
    assert publish(gateway, "pump1", made["password"], "plant/pump2/temp") == 403
    assert made["uri"] == f"mqtt://pump1:{made['password']}@127.0.0.1:{gateway.port('mqtt')}"
    assert made["qr"].startswith("data:image/svg+xml")
    shown = call(gateway, "GET", "/pump1", name="viewer").document
    assert (shown["kind"], shown["origin"]) == ("device", "device")
    assert "may send to plant/pump1 and everything below it" in shown["words"]
    assert shown["last_login_at"] is not None
    assert made["password"] not in gateway.log.read_text()


def test_changes_need_the_right_to_manage(gateway: Waypost) -> None:
    assert call(gateway, "POST", body={"name": "x"}, name="viewer").status == 403
    assert call(gateway, "GET", name="viewer").status == 200
    assert call(gateway, "GET", name="fixed").status == 403


def test_wrong_changes_are_refused(gateway: Waypost) -> None:
    assert call(gateway, "POST", body={"name": "boss"}).status == 409
    assert call(gateway, "POST", body={"name": "y", "profile": "king"}).status == 400
    assert call(gateway, "POST", body={"name": "y", "allow": ["fly:#"]}).status == 400
    assert call(gateway, "POST", body={"name": ""}).status == 400
    assert call(gateway, "POST", "/nobody/password", {}).status == 404
    assert call(gateway, "POST", "/fixed/rights", {"allow": ["send:x"]}).status == 409
    assert call(gateway, "POST", "/fixed/rights", {"allow": ["send:x"] * 101}).status == 400
    assert call(gateway, "POST", "/fixed/password", {"overlap_s": 1e9}).status == 400


def test_pages_follow_each_other(gateway: Waypost) -> None:
    for number in range(3):
        add(gateway, f"page{number}")
    first = call(gateway, "GET", "?q=page&limit=2").document
    assert ([each["name"] for each in first["users"]], first["total"]) == (["page0", "page1"], 3)
    last = call(gateway, "GET", f"?q=page&limit=2&after={first['next']}").document
    assert ([each["name"] for each in last["users"]], last["next"]) == (["page2"], None)


def test_old_password_stays_valid_for_the_overlap(gateway: Waypost) -> None:
    old = add(gateway, "pump3", profile="sensor")["password"]
    made = call(gateway, "POST", "/pump3/password", {"overlap_s": 60}).document
    assert made["old_end_at"] is not None
    assert publish(gateway, "pump3", old, "plant/pump3/a") == 202
    newest = call(gateway, "POST", "/pump3/password", {"overlap_s": 0}).document["password"]
    assert publish(gateway, "pump3", newest, "plant/pump3/a") == 202
    assert publish(gateway, "pump3", old, "plant/pump3/a") == 401


def test_right_is_added_without_the_others_being_replaced(gateway: Waypost) -> None:
    password = add(gateway, "pump4", allow=["send:a/b"])["password"]
    assert call(gateway, "POST", "/pump4/rights", {"allow": ["send:c/d", "send:a/b"]}).document["allow"] == [
        "send:a/b",
        "send:c/d",
    ]
    assert publish(gateway, "pump4", password, "c/d") == 202
    done = document_of("user", "allow", "pump4", "--add", "--allow", "recv:e", "--data", str(gateway.data))
    assert done["allow"] == ["send:a/b", "send:c/d", "recv:e"]
    assert call(gateway, "PUT", "/pump4/rights", {"allow": ["send:z"]}).document["allow"] == ["send:z"]


def test_rights_that_somebody_else_has_changed_are_not_overwritten(gateway: Waypost) -> None:
    add(gateway, "tab", allow=["send:a"])
    shown = call(gateway, "GET", "/tab")
    tag = shown.headers["etag"]
    assert shown.document["etag"] == tag

    def replaced(right: str, tag: str) -> int:
        sent = json.dumps({"allow": [right]}).encode()
        fields = {**basic("boss", "boss"), "If-Match": tag}
        return ask(gateway, "PUT", "/api/v1/users/tab/rights", sent, fields).status

    assert [replaced("send:b", tag), replaced("send:c", tag)] == [200, 412]
    assert call(gateway, "GET", "/tab").document["allow"] == ["send:b"]


def test_removed_user_may_not_log_in(gateway: Waypost) -> None:
    password = add(gateway, "a/b c", profile="sensor")["password"]
    assert call(gateway, "DELETE", "/a%2Fb%20c").status == 200
    assert publish(gateway, "a/b c", password, "x") == 401
    assert call(gateway, "GET", "/a%2Fb%20c").status == 404


@pytest.mark.parametrize(
    ("operation", "address", "allowed", "right"),
    [
        ("send", "plant/pump5/temp", True, "send:plant/pump5/temp"),
        ("send", "plant/pump6/temp", False, "send:plant/pump6/temp"),
        ("recv", "command/pump5/#", True, "recv:command/pump5/#"),
        ("recv", "command/#", False, "recv:command/#"),
        ("recv", f"{SHARE}group/command/pump5/x", True, "recv:command/pump5/x"),
        ("send", "odd/%u", False, ""),
    ],
)
def test_verdict_has_the_reason_and_the_missing_right(
    gateway: Waypost, operation: str, address: str, allowed: bool, right: str
) -> None:
    if call(gateway, "GET", "/pump5").status == 404:
        add(gateway, "pump5", profile="sensor")
    path = f"/pump5/rights?operation={operation}&address={address.replace('%', '%25').replace('#', '%23')}"
    verdict = call(gateway, "GET", path, name="viewer").document
    assert (verdict["allowed"], verdict["right"]) == (allowed, right)
    assert ("allows it" if allowed else "no right covers") in verdict["why"]


def test_refusal_names_the_right_that_is_missing(gateway: Waypost) -> None:
    password = add(gateway, "pump8")["password"]
    assert publish(gateway, "pump8", password, "hall/8") == 403
    refusals = ask(gateway, "GET", "/api/v1/refusals?q=hall/8", headers=basic("boss", "boss")).document["refusals"]
    assert [each["right"] for each in refusals] == ["send:hall/8"]
    call(gateway, "POST", "/pump8/rights", {"allow": [refusals[0]["right"]]})
    assert publish(gateway, "pump8", password, "hall/8") == 202


def test_operator_of_the_machine_may_send_and_receive(gateway: Waypost) -> None:
    token = (gateway.data / "operator.token").read_text().strip()
    login = {"Authorization": f"Bearer {token}"}
    assert ask(gateway, "POST", "/t/by/hand", b"1", login).status == 202
    assert "users" in ask(gateway, "GET", "/api/v1/users", headers=login).document
    assert base64.b64encode(token.encode()).decode() not in output_of("user", "list", "--data", str(gateway.data))
