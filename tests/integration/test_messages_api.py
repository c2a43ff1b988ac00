"""Messages of a running gateway for people: browsed, published, followed, with the rights of the user."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import paho.mqtt.client as paho
import pytest
from proton import Message

from edge.appliance.messages.limits import LIVE_STREAMS_MAX, SHOWN_PER_S
from edge.remote.client import read_events
from tests.support.amqp_client import amqp_client
from tests.support.command import document_of, error_of, output_of, run_waypost
from tests.support.configured_gateway import address, basic, gateway_with, resources, user
from tests.support.http_client import Answer, ask
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, wait_until

RESOURCES = resources(
    address("jobs", "jobs", "queue"),
    address("any", "any", "anycast"),
    user("machine", "send, recv"),
    user("narrow", "send, recv", '"plant/#"'),
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with gateway_with(tmp_path_factory.mktemp("messages"), RESOURCES) as running:
        yield running


def publish(gateway: Waypost, document: dict[str, Any], name: str = "machine") -> Answer:
    return ask(gateway, "POST", "/api/v1/messages", json.dumps(document).encode(), basic(name, name))


def browse(gateway: Waypost, name: str = "machine", **query: Any) -> Answer:
    return ask(gateway, "GET", f"/api/v1/messages?{urlencode(query)}", headers=basic(name, name))


def bodies(gateway: Waypost, **query: Any) -> list[str]:
    answer = browse(gateway, **query)
    assert answer.status == 200, answer.body
    return [each["body"] for each in answer.document["messages"]]


@contextlib.contextmanager
def following(gateway: Waypost, wanted: str, name: str = "machine") -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port("http"), timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", f"/api/v1/messages/live?filter={quote(wanted, safe='')}", headers=basic(name, name))
        yield connection.getresponse()


def test_queue_is_browsed_without_consuming(gateway: Waypost) -> None:
    for number in range(5):
        assert publish(gateway, {"address": "jobs", "body": f"job {number}"}).document == {"subscribers": True}
    assert bodies(gateway, address="jobs") == [f"job {number}" for number in (4, 3, 2, 1, 0)]
    assert bodies(gateway, address="jobs", order="oldest", limit=2) == ["job 0", "job 1"]
    first = browse(gateway, address="jobs", limit=2).document
    assert bodies(gateway, address="jobs", limit=2, after=first["next"]) == ["job 2", "job 1"]
    assert bodies(gateway, address="jobs", q="job 3") == ["job 3"]
    assert bodies(gateway, address="jobs", until="1h") == []
    assert len(bodies(gateway, address="jobs", since="1h", order="oldest")) == 5
    login = basic("machine", "machine")
    assert ask(gateway, "GET", "/c/jobs?settle=auto&wait=10", headers=login).body == b"job 0"
    wait_until(lambda: len(bodies(gateway, address="jobs")) == 4, timeout_s=60, what="accepted messages are left out")
    assert bodies(gateway, address="jobs", order="oldest")[0] == "job 1"


def test_topic_shows_what_its_log_keeps(gateway: Waypost) -> None:
    durable = paho.Client(paho.CallbackAPIVersion.VERSION2, "durable", protocol=paho.MQTTv311, clean_session=False)
    durable.username_pw_set("machine", "machine")
    with PahoClient(durable).connect(gateway.port("mqtt")) as client:
        client.subscribe("plant/#", 1)
    for number in range(30):
        publish(gateway, {"address": f"plant/{number % 3}", "body": str(number), "properties": {"unit": "K"}})
    assert bodies(gateway, address="plant/1", limit=3) == ["28", "25", "22"]
    assert bodies(gateway, address="plant/+", limit=500)[-1] == "0"
    (message,) = browse(gateway, address="plant/2", limit=1).document["messages"]
    assert (message["properties"], message["device"], message["qos"]) == ([["unit", "K"]], "machine", 1)


def test_bodies_are_text_or_hexadecimal_and_bounded(gateway: Waypost) -> None:
    publish(gateway, {"address": "jobs", "base64": base64.b64encode(b"\x00\xff\x10").decode()})
    publish(gateway, {"address": "jobs", "body": "ä" * 1_000})
    text, digits = browse(gateway, address="jobs", limit=2, bytes=101).document["messages"]
    assert (text["body"], text["shown"], text["size"]) == ("ä" * 50, 100, 2_000)
    assert (digits["body"], digits["form"]) == ("00ff10", "hex")


def test_rights_are_those_of_the_user(gateway: Waypost) -> None:
    assert publish(gateway, {"address": "jobs", "body": "x"}, "narrow").status == 403
    assert browse(gateway, "narrow", address="jobs").status == 403
    assert browse(gateway, "narrow", address="#").status == 403
    assert browse(gateway, "narrow", address="plant/#").status == 200
    with following(gateway, "#", "narrow") as answer:
        assert answer.status == 403


def test_wrong_requests_are_refused(gateway: Waypost) -> None:
    assert publish(gateway, {"address": "a/#", "body": "x"}).status == 400
    assert publish(gateway, {"address": "a", "body": "{", "content_type": "application/json"}).status == 400
    assert publish(gateway, {"address": "a", "base64": "?"}).status == 400
    assert publish(gateway, {"address": "a", "properties": {str(i): "" for i in range(21)}}).status == 400
    assert publish(gateway, {"address": "a", "properties": {"n": "\0"}}).status == 400
    assert publish(gateway, {"address": "a", "properties": {"n": "x" * 1_025}}).status == 400
    assert publish(gateway, {"address": "a", "content_type": "a\nb"}).status == 400
    assert publish(gateway, {"address": "nobody/listens", "body": "x"}).document == {"subscribers": False}
    assert browse(gateway, address="any").status == 409
    assert browse(gateway, address="jobs", since="yesterday").status == 400
    assert browse(gateway).status == 400
    assert browse(gateway, address="a/#/b").status == 400
    for wanted, status in (("jobs", 409), ("a/#/b", 400), ("$share/g/a", 400), ("", 400)):
        with following(gateway, wanted) as answer:
            assert answer.status == status, wanted


def test_followed_messages_come_and_the_others_are_counted(gateway: Waypost) -> None:
    with following(gateway, "live/#") as answer:
        events = ((event.name, event.data) for event in read_events(answer))
        wait_until(
            lambda: publish(gateway, {"address": "live/a", "body": "first"}).document["subscribers"],
            timeout_s=60,
            what="a subscription",
        )
        name, content = next(events)
        assert (name, content["body"]) == ("message", "first")
        with amqp_client(gateway, user="machine", password="machine", allow_insecure_mechs=True) as connection:
            sender = connection.create_sender("live/many")
            for number in range(3 * SHOWN_PER_S):
                sender.send(Message(body=str(number)))
        shown = skipped = 0
        deadline = time.monotonic() + 20
        while shown + skipped < 3 * SHOWN_PER_S and time.monotonic() < deadline:
            name, content = next(events)
            shown += name == "message"
            skipped += content["skipped"] if name == "counts" else 0
        assert shown + skipped == 3 * SHOWN_PER_S
        assert shown >= SHOWN_PER_S - 1  # the first one counts too if it came in the same second


def test_number_of_followers_is_bounded(gateway: Waypost) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(LIVE_STREAMS_MAX):
            assert stack.enter_context(following(gateway, "bounded/#")).status == 200
        with following(gateway, "bounded/#") as answer:
            assert answer.status == 503

    def follows_again() -> bool:
        with following(gateway, "bounded/#") as answer:
            return answer.status == 200

    wait_until(follows_again, timeout_s=60, what="closed pages make room")


def test_commands_publish_browse_and_follow(gateway: Waypost) -> None:
    data = ("--data", str(gateway.data))
    output_of("message", "pub", "jobs", '{"cut": 3}', "--content-type", "application/json", *data)
    assert '{"cut": 3}' in output_of("message", "browse", "jobs", "--limit", "1", *data)
    found = document_of("message", "browse", "jobs", "--oldest", "--limit", "1", *data)
    assert found["address"] == "jobs"
    http = ("--http", f"127.0.0.1:{gateway.port('http')}", "--user", "narrow", "--password-stdin")
    assert "must not send" in error_of("message", "pub", "jobs", "x", *http, code=1, stdin="narrow\n")
    assert "not JSON" in error_of("message", "pub", "jobs", "{", "--content-type", "application/json", *data, code=1)
    ended = threading.Event()

    def keep_sending() -> None:
        while not ended.wait(0.2):
            publish(gateway, {"address": "plant/followed", "body": "here"}, "narrow")

    sending = threading.Thread(target=keep_sending)
    sending.start()
    try:
        done = run_waypost("message", "sub", "plant/followed", "--count", "1", *http, stdin="narrow\n")
    finally:
        ended.set()
        sending.join()
    assert "plant/followed  here" in done.stdout, done.stderr
