"""Webhooks of a real hub: over HTTP and on the command line, with conditions, keys and the audit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from cloud.hub.webhooks.limits import WEBHOOKS_TENANT_MAX
from tests.support.command import item_in, run_waypost
from tests.support.http_client import Answer, ask, document
from tests.support.notified import WebhookServer
from tests.support.processes import Waypost, hub


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with WebhookServer() as running:
        yield running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with hub(tmp_path_factory.mktemp("hub")) as started:
        yield started


def send(hub_: Waypost, method: str, path: str, body: Any = None, **fields: str) -> Answer:
    content = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return ask(hub_, method, f"/api/v1/webhooks{path}", content, {"Content-Type": "application/json", **named})


def command(hub_: Waypost, *words: str, code: int = 0) -> str:
    done = run_waypost("hub", "webhook", *words, "--hub", f"http://127.0.0.1:{hub_.port('http')}")
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip()


def test_command_adds_tests_pauses_and_removes(running: Waypost, server: WebhookServer) -> None:
    made = item_in(command(running, "add", server.url, "--type", "rollout", "--json"))
    assert made["secret"].startswith("whsec_")
    identifier = made["id"]
    command(running, "test", identifier)
    assert [each.document["type"] for each in server.requests] == ["test"]
    server.status = 500
    command(running, "test", identifier, code=1)
    assert identifier in command(running, "list")
    command(running, "pause", identifier)
    assert item_in(command(running, "show", identifier, "--json"))["state"] == "paused"
    command(running, "change", identifier, "--all-events", "--gateway", "hall")
    shown = document(running, f"/api/v1/webhooks/{identifier}")
    assert (shown["types"], shown["gateways"], shown["secret"]) == ([], ["hall"], None)
    command(running, "resume", identifier)
    renewed = item_in(command(running, "secret", identifier, "--overlap", "1h", "--json"))
    assert renewed["secret"] != made["secret"]
    assert renewed["older_secret_until"]
    command(running, "remove", identifier)
    command(running, "show", identifier, code=1)
    command(running, "change", identifier, code=2)
    audit = document(running, "/api/v1/audit?action=webhook")
    actions = {each["action"] for each in audit["lines"]}
    assert {"webhook.create", "webhook.change", "webhook.secret", "webhook.remove", "webhook.test"} <= actions
    assert made["secret"] not in json.dumps(audit)


def test_changes_have_conditions_and_keys(running: Waypost) -> None:
    wanted = {"url": "https://example.com/hook"}
    first = send(running, "POST", "", wanted, Idempotency_Key="once")
    assert first.status == HTTPStatus.CREATED
    again = send(running, "POST", "", wanted, Idempotency_Key="once")
    assert again.status == HTTPStatus.CONFLICT, "the answer has a secret, so it is not kept"
    one, etag = f"/{first.document['id']}", first.document["etag"]
    changed = send(running, "PATCH", one, {"selector": "site=lyon"}, If_Match=etag)
    assert changed.status == HTTPStatus.OK
    assert send(running, "PATCH", one, {"paused": True}, If_Match=etag).status == HTTPStatus.PRECONDITION_FAILED
    assert send(running, "DELETE", one, If_Match=etag).status == HTTPStatus.PRECONDITION_FAILED
    assert send(running, "DELETE", one, If_Match=changed.document["etag"]).status == HTTPStatus.OK
    assert send(running, "DELETE", one).status == HTTPStatus.NOT_FOUND


def test_pages_follow_each_other_and_a_tenant_has_a_limit(running: Waypost) -> None:
    body = {"url": "http://192.0.2.1/hook", "tenant": "acme"}
    made = [send(running, "POST", "", body).document["id"] for _ in range(WEBHOOKS_TENANT_MAX)]
    assert send(running, "POST", "", body).status == HTTPStatus.CONFLICT
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = send(running, "GET", f"?tenant=acme&limit=9&after={after}").document
        assert page["total"] == WEBHOOKS_TENANT_MAX
        found += [each["id"] for each in page["webhooks"]]
        after = page["next"]
    assert found == sorted(made)
    for each in made:
        assert send(running, "DELETE", f"/{each}").status == HTTPStatus.OK


@pytest.mark.parametrize(
    ("method", "path", "body", "wanted"),
    [
        ("POST", "", {}, 400),
        ("POST", "", {"url": "ftp://x/"}, 400),
        ("POST", "", {"url": "https://user@x/"}, 400),
        ("POST", "", {"url": "https://x/a b"}, 400),
        ("POST", "", {"url": "https://x/", "types": ["weather"]}, 400),
        ("POST", "", {"url": "https://x/", "selector": "=x"}, 400),
        ("POST", "", {"url": "https://x/", "tenant": "A B"}, 400),
        ("POST", "", {"url": "https://x/", "after": -1}, 400),
        ("POST", "", {"url": "https://x/", "gateways": ["g"] * 51}, 400),
        ("POST", "", {"url": "https://x/" + "x" * 20_000}, 413),
        ("GET", "/unknown", None, 404),
        ("PATCH", "/unknown", {}, 404),
        ("POST", "/unknown/test", {}, 404),
        ("POST", "/unknown/secret", {"overlap_s": 86_400 * 8}, 404),
        ("GET", "?limit=0", None, 400),
    ],
)
def test_mistakes_are_refused(running: Waypost, method: str, path: str, body: Any, wanted: int) -> None:
    answer = send(running, method, path, body)
    assert answer.status == wanted, answer
    assert answer.document["error"]
