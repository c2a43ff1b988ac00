"""Batches to an HTTP server: the effect of each answer on the messages, and the form of a repeated request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from bridge.client_attempt import ConnectorError
from bridge.connectors.http.client import HttpClient
from bridge.connectors.settings import ClientIdentity, Format, HttpSettings
from edge.broker.message.translation import mqtt_runs
from tests.support.feeding import Bench, running
from tests.support.loop_wait import until
from tests.support.web_peer import Reply, Request, WebPeer

KEY = bytes(range(32))


def client(**settings: Any) -> HttpClient:
    identity = ClientIdentity("me", settings.pop("username", None), settings.pop("password", None))
    return HttpClient(identity, HttpSettings(**{"batch_age_s": 0.0, **settings}), translate=mqtt_runs)


def always(reply: Reply) -> Callable[[Request], Reply]:
    return lambda _request: reply


def bodies(request: Request) -> list[Any]:
    return [item["body"] for item in json.loads(request.body)]


async def one_run(bench: Bench, peer: WebPeer, using: HttpClient) -> str:
    """Run one connection that is expected to end by itself; return its error."""
    async with asyncio.timeout(20):
        await bench.connect(using, peer.port)
    error = bench.errors.pop()
    assert isinstance(error, ConnectorError), repr(error)
    return str(error)


@running
async def test_batch_is_signed_named_and_settled() -> None:
    bench, using = (
        Bench(),
        client(signing_secret="whsec_" + base64.b64encode(KEY).decode(), path="/in?x=1", username="me", password="pw"),
    )
    feed = bench.feed(*(b'{"n":%d}' % n for n in range(5)))
    async with WebPeer(always(Reply(200))).serving() as peer, bench.connected(using, peer.port):
        await until(lambda: len(feed.accepted) == 5, "accepted")
    (request,) = peer.requests
    assert request.line == "POST /in?x=1 HTTP/1.1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == "Basic " + base64.b64encode(b"me:pw").decode()
    name = "gw/e1/plant%2F7/0-4"
    assert (request.headers["idempotency-key"], request.headers["webhook-id"]) == (name, name)
    signed = f"{name}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert json.loads(request.body)[3] == {
        "address": "cloud/7", "body": {"n": 3}, "gateway": "gw", "epoch": "e1", "source": "plant/7", "sequence": 3,
        "device": "dev", "receivedAt": "2026-09-21T14:13:20Z",
    }  # fmt: skip


@pytest.mark.parametrize("failure", [Reply(503), Reply(408), Reply(429), Reply(500), Reply(hang_up=True)])
@running
async def test_repeat_is_the_same_request(failure: Reply) -> None:
    """A repeated request leaves out messages that arrived in between."""
    bench, using, replies = Bench(), client(batch_messages=10), [failure, failure]
    feed = bench.feed(*(b"%d" % n for n in range(3)))
    async with WebPeer(lambda _: replies.pop() if replies else Reply()).serving() as peer:
        await one_run(bench, peer, using)
        assert feed.outcomes == {}
        later = bench.feed(*(b"%d" % n for n in range(90, 95)), address="plant/8", remote="cloud/8")
        await one_run(bench, peer, using)
        async with bench.connected(using, peer.port):
            await until(lambda: len(feed.accepted) == 3 and len(later.accepted) == 5, "accepted")
    first, second, third, *rest = peer.requests
    assert first.body == second.body == third.body
    assert len({each.headers["idempotency-key"] for each in (first, second, third)}) == 1
    assert [body for request in rest for body in bodies(request)] == [90, 91, 92, 93, 94]


@pytest.mark.parametrize(("said", "wait_s"), [("7", 7.0), ("99999999999999", 3600.0), ("soon", 0.0), (None, 0.0)])
@running
async def test_retry_after_of_the_server_is_respected(said: str | None, wait_s: float) -> None:
    bench, using = Bench(), client()
    bench.feed(b"1")
    async with WebPeer(always(Reply(429, () if said is None else (("Retry-After", said),)))).serving() as peer:
        await bench.connect(using, peer.port)
    (error,) = bench.errors
    assert isinstance(error, ConnectorError)
    assert error.wait_s == wait_s


@running
async def test_one_bad_message_is_isolated_and_the_others_are_delivered() -> None:
    bench, using = Bench(), client(batch_messages=16)
    feed = bench.feed(*(b"%d" % n for n in range(16)))
    answer = lambda request: Reply(422, body=b"no 11\nhere") if 11 in bodies(request) else Reply()  # noqa: E731
    async with WebPeer(answer).serving() as peer, bench.connected(using, peer.port):
        await until(lambda: len(feed.outcomes) == 16, "every message has its outcome")
    assert feed.rejected == [11]
    taken = [body for request in peer.requests if 11 not in bodies(request) for body in bodies(request)]
    assert taken == [n for n in range(16) if n != 11]
    assert len({request.headers["idempotency-key"] for request in peer.requests}) == len(peer.requests)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(401), "the server answers 401 Unauthorized; check the connector's credentials and signing secret"),
        (Reply(404, body=b"nothing\nhere"), "the server answers 404 Not Found (nothing here); check http.path"),
        (Reply(302, (("Location", "http://127.0.0.1:1/"),)), "redirects are not followed"),
    ],
)
@running
async def test_configuration_error_costs_no_message(reply: Reply, said: str) -> None:
    bench, using = Bench(), client()
    feed = bench.feed(b"1", b"2")
    async with WebPeer(always(reply)).serving() as peer:
        assert said in await one_run(bench, peer, using)
    assert feed.outcomes == {}
    assert len(peer.requests) == 1


@running
async def test_messages_accepted_before_a_failure_are_not_sent_again() -> None:
    """The server takes the first half of a batch and fails on the second."""
    bench, using = Bench(), client(batch_messages=4)
    feed = bench.feed(*(b"%d" % n for n in range(4)))
    replies = [Reply(413), Reply(), Reply(503), Reply()]
    async with WebPeer(lambda _: replies.pop(0)).serving() as peer:
        await one_run(bench, peer, using)
        assert feed.accepted == [0, 1]
        async with bench.connected(using, peer.port):
            await until(lambda: len(feed.accepted) == 4, "the rest")
    assert [bodies(request) for request in peer.requests] == [[0, 1, 2, 3], [0, 1], [2, 3], [2, 3]]


@running
async def test_forwarder_removed_during_a_request_gets_no_answer() -> None:
    bench, using = Bench(), client()
    feed = bench.feed(b"1")

    def answer(_request: Request) -> Reply:
        feed.end()
        return Reply()

    async with WebPeer(answer).serving() as peer, bench.connected(using, peer.port):
        await until(lambda: bench.outbox.in_flight == 0 and bool(peer.requests), "the answer was taken")
    assert feed.outcomes == {}


@running
async def test_batch_waits_its_full_time_for_more_messages() -> None:
    bench, using = Bench(), client(batch_age_s=0.3)
    first = bench.feed(b"1")
    async with WebPeer(always(Reply())).serving() as peer, bench.connected(using, peer.port):
        await until(lambda: bench.outbox.in_flight == 1, "the first is taken")
        second = bench.feed(b"2", address="plant/8", remote="cloud/8")
        await until(lambda: len(first.accepted) == len(second.accepted) == 1, "both")
    assert [bodies(request) for request in peer.requests] == [[1, 2]]


@running
async def test_unreachable_server_takes_no_message() -> None:
    bench, using = Bench(), client()
    feed = bench.feed(b"1")
    async with WebPeer(always(Reply())).serving() as peer:
        port = peer.port
    await bench.connect(using, port)
    assert isinstance(bench.errors[0], OSError)
    assert feed.outcomes == {}
    assert bench.outbox.in_flight == 0


@pytest.mark.parametrize("form", list(Format))
@running
async def test_each_format_is_sent(form: Format) -> None:
    bench, using = Bench(), client(format=form)
    feed = bench.feed(b'{"a":\n1}', b"text", b"\xff\xfe", b"[1]", b"{broken", b"")
    async with WebPeer(always(Reply())).serving() as peer, bench.connected(using, peer.port):
        await until(lambda: len(feed.accepted) == 6, "accepted")
    (request,) = peer.requests
    if form is Format.NDJSON:
        items = [json.loads(line) for line in request.body.splitlines()]
    else:
        items = json.loads(request.body)
    data, encoded = ("data", "data_base64") if form is Format.CLOUDEVENTS else ("body", "base64")
    binary = items.pop(2)
    assert base64.b64decode(binary[encoded]) == b"\xff\xfe"
    assert data not in binary
    assert [item[data] for item in items] == [{"a": 1}, "text", [1], "{broken", ""]
    if form is Format.CLOUDEVENTS:
        assert items[0] == {
            "id": "0", "source": "/waypost/gw/e1/plant/7", "subject": "cloud/7", "time": "2026-09-21T14:13:20Z",
            "datacontenttype": "application/json", "data": {"a": 1}, "device": "dev", "sequence": "0",
            "specversion": "1.0", "type": "io.waypost.message",
        }  # fmt: skip
