"""The device API over a router and a store in memory: refusals of the store, limits, and permissions."""

from __future__ import annotations

import asyncio
import base64
import gzip
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from bridge.message import Run, Stored
from edge.broker.configuration import AuthenticationMode
from edge.broker.http import api as module
from edge.broker.http import locks, polls
from edge.broker.http.access import HttpAccess
from edge.broker.http.api import HttpDeviceApi
from edge.broker.http.exchange import PublishRequest
from edge.broker.http.limits import HTTP_BATCH_MAX, HTTP_GZIP_MEMBERS_MAX
from edge.broker.http.messages import CORRELATION_BYTES_MAX, BadRequest, parse_batch, parse_single
from edge.broker.limits import ACCOUNT_SHARE_MAX, ADDRESS_BYTES_MAX, Limits
from edge.broker.message.mqtt_properties import NONE, decode_run, encode_run
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.model.budget import Budget
from edge.broker.model.interfaces import DeliveryOutcome, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator, Work
from edge.broker.security.credentials import CredentialSnapshot, new_user, with_secret
from edge.broker.security.limits import VERIFICATION_WAIT_S_MAX
from edge.broker.store.errors import StoreError, StoreFull
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer

NDJSON = {"Content-Type": "application/x-ndjson"}


class Rig:
    """The API inside a loop; `client` sends requests."""

    def __init__(self, gate: Authenticator | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.store = MemoryStore(post=loop.call_soon)
        rules = [AddressRule("queue/#", AddressType.QUEUE), AddressRule("anycast/#", AddressType.ANYCAST)]
        table = AddressTable(rules, AddressRule("#", AddressType.TOPIC))
        self.router = Router(
            self.store, table, clock_ns=time.time_ns, flush_soon=lambda: loop.call_soon(self.router.flush)
        )
        self.budget = Budget(Limits().memory_bytes_max, "default")
        self.api = HttpDeviceApi(self.router, Limits(packet_bytes_max=1000), HttpAccess(gate), self.budget)
        transport = httpx.ASGITransport(Starlette(routes=self.api.routes))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://gateway")


def run(test: Callable[[Rig], Coroutine[Any, Any, None]], gate: Callable[[], Authenticator] | None = None) -> None:
    async def main() -> None:
        rig = Rig(gate() if gate is not None else None)
        async with rig.client:
            await test(rig)
        assert (rig.api.publishing, rig.api.polls.count, rig.budget.gateway.bytes) == (0, 0, 0)

    asyncio.run(main())


@pytest.mark.parametrize(("failure", "status"), [(StoreFull("no space"), 507), (StoreError("broken"), 503)])
def test_failing_store_is_answered(failure: StoreError, status: int) -> None:
    async def test(rig: Rig) -> None:
        rig.store.failure = failure
        answer = await rig.client.post("/t/queue/a", content=b"x")
        assert answer.status_code == status
        lines = b'{"address": "queue/a", "body": 1}\n' * 2 + b'{"address": "queue/b", "body": 1}'
        answer = await rig.client.post("/t", content=lines, headers=NDJSON)
        assert answer.status_code == status
        assert answer.json()["results"] == [{"status": status}] * 3
        rig.store.failure = None
        assert (await rig.client.post("/t/queue/a", content=b"x")).status_code == 202

    run(test)


class GivingBack(RunConsumer):
    """Consumer that returns every message with the same outcome."""

    name = "worker"
    credit = 10

    def __init__(self, outcome: DeliveryOutcome) -> None:
        self.outcome = outcome
        self.got = 0

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.got += 1
        subscription.settle(self, stored.position, stored.position, self.outcome)


@pytest.mark.parametrize(
    "outcome", [DeliveryOutcome.RELEASED, DeliveryOutcome.MODIFIED_FAILED, DeliveryOutcome.MODIFIED_UNDELIVERABLE]
)
def test_message_released_by_the_only_consumer_was_not_consumed(outcome: DeliveryOutcome) -> None:
    async def test(rig: Rig) -> None:
        consumer = GivingBack(outcome)
        rig.router.subscriptions.subscribe(consumer, "anycast/a", SubscribeOptions())
        assert (await rig.client.post("/t/anycast/a", content=b"x")).status_code == 503
        assert consumer.got == 1

    run(test)


def test_bodies_are_bounded() -> None:
    async def test(rig: Rig) -> None:
        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 100

        assert (await rig.client.post("/t/a", content=b"x" * 1000)).status_code == 202
        assert (await rig.client.post("/t/a", content=b"x" * 1001)).status_code == 413
        assert (await rig.client.post("/t/a", content=endless())).status_code == 413

    run(test)


def test_gzip_is_decompressed_within_the_bound() -> None:
    async def test(rig: Rig) -> None:
        async def send(body: bytes, coding: str = "gzip", path: str = "/t/queue/a") -> httpx.Response:
            return await rig.client.post(path, content=body, headers={"Content-Encoding": coding, **NDJSON})

        for body in (gzip.compress(b"x" * 1000), gzip.compress(b"x" * 500) * 2):
            assert (await send(body, "X-GZip")).status_code == 202
            assert (await rig.client.get("/c/queue/a?settle=auto")).content == b"x" * 1000
        assert (await send(b"plain", "identity")).status_code == 202
        assert (await rig.client.get("/c/queue/a?settle=auto")).content == b"plain"
        line = b'{"address": "queue/a", "body": "z"}'
        assert (await send(gzip.compress(line), path="/t")).status_code == 202
        assert (await rig.client.get("/c/queue/a?settle=auto")).content == b"z"
        whole = gzip.compress(b"x" * 1001)
        for body, coding, status in (
            (whole, "gzip", 413),
            (gzip.compress(b"x" * 600) * 2, "gzip", 413),
            (gzip.compress(bytes(10_000_000))[:1000], "gzip", 413),
            (gzip.compress(b"", mtime=0) * (HTTP_GZIP_MEMBERS_MAX + 1), "gzip", 413),
            (gzip.compress(b"x" * 10)[:-1], "gzip", 400),
            (gzip.compress(b"x") + b"rest", "gzip", 400),
            (b"x", "gzip", 400),
            (b"x", "br", 415),
            (whole, "gzip, gzip", 415),
        ):
            answer = await send(body, coding)
            assert answer.status_code == status, (coding, body[:20])
            assert (answer.headers.get("accept-encoding") == "gzip") is (status == 415)
        assert (await rig.client.get("/c/queue/a")).status_code == 204, "nothing of that was taken"

    run(test)


def test_requests_in_progress_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        monkeypatch.setattr(module, "HTTP_REQUESTS_MAX", 0)
        answer = await rig.client.post("/t/a", content=b"x")
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        monkeypatch.setattr(module, "HTTP_REQUESTS_MAX", 1)
        rig.budget.bodies.bytes_max = 10 * ACCOUNT_SHARE_MAX
        assert (await rig.client.post("/t/a", content=b"x" * 11)).status_code == 503
        assert (await rig.client.post("/t/a", content=b"x" * 10)).status_code == 202
        monkeypatch.setattr(polls, "HTTP_POLLS_MAX", 0)
        assert (await rig.client.get("/c/queue/a")).status_code == 503
        monkeypatch.setattr(polls, "HTTP_POLLS_OF_ONE_MAX", 0)
        answer = await rig.client.get("/c/queue/a")
        assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
        assert "waiting requests of" in answer.json()["error"]

    run(test)


def test_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        monkeypatch.setattr(locks, "HTTP_LOCKS_OF_ONE_MAX", 2)
        for i in range(3):
            assert (await rig.client.post("/t/queue/a", content=b"%d" % i)).status_code == 202
        first, second = [await rig.client.get("/c/queue/a") for _ in range(2)]
        full = await rig.client.get("/c/queue/a")
        assert (full.status_code, "retry-after" in full.headers, rig.api.locks.count) == (429, True, 2)
        assert (await rig.client.get("/c/queue/a?settle=auto")).content == b"2", "it needs no lock"
        assert await settled(rig, first) == 204
        monkeypatch.setattr(locks, "HTTP_LOCKS_MAX", 1)
        assert (await rig.client.get("/c/queue/a")).status_code == 503
        assert await settled(rig, second) == 204

    run(test)


def test_settled_locks_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        monkeypatch.setattr(locks, "HTTP_SETTLED_REMEMBERED_MAX", 1)
        for i in range(2):
            assert (await rig.client.post("/t/queue/a", content=b"%d" % i)).status_code == 202
        first, second = [await rig.client.get("/c/queue/a") for _ in range(2)]
        assert [await settled(rig, each) for each in (first, second, second, first)] == [204, 204, 204, 410]

    run(test)


def test_settlement_is_confirmed_only_when_on_disk() -> None:
    async def test(rig: Rig) -> None:
        assert (await rig.client.post("/t/queue/a", content=b"x")).status_code == 202
        fetched = await rig.client.get("/c/queue/a")
        rig.store.failure = StoreFull("no space")
        assert await settled(rig, fetched) == 507
        rig.store.failure = None
        assert await settled(rig, fetched) == 204, "asked again"
        assert (await rig.client.get("/c/queue/a")).status_code == 204, "nothing is there"

    run(test)


def test_lock_belongs_to_the_user_that_fetched() -> None:
    async def test(rig: Rig) -> None:
        alice, carol = httpx.BasicAuth("alice", "secret"), httpx.BasicAuth("carol", "secret")
        rig.router.publish(
            Publication(PublishRequest("x", 1), Run("queue/alice", "x", 1, encode_run(NONE), [b"x"]), ())
        )
        fetched = await rig.client.get("/c/queue/alice?wait=10", auth=alice)
        assert (fetched.status_code, fetched.content) == (200, b"x")
        assert await settled(rig, fetched, "queue/alice", carol) == 410, "she may receive from it, too"
        assert await settled(rig, fetched, "queue/bob", alice) == 403
        assert await settled(rig, fetched, "queue/alice", alice) == 204

    run(test, gate)


async def settled(rig: Rig, fetched: httpx.Response, address: str = "queue/a", auth: Any = None) -> int:
    lock = fetched.headers["waypost-lock"]
    return (await rig.client.delete(f"/c/{address}?lock={lock}", auth=auth)).status_code


def test_times_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        async def stalled() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.Event().wait()

        monkeypatch.setattr(module, "HTTP_BODY_S_MAX", 0.05)
        assert (await rig.client.post("/t/a", content=stalled())).status_code == 408
        monkeypatch.setattr(module, "HTTP_ANSWER_S_MAX", 0.05)
        monkeypatch.setattr(rig.router, "flush", lambda: None)  # a commit that never ends
        answer = await rig.client.post("/t/queue/a", content=b"x")
        assert answer.status_code == 504
        assert "may have been accepted" in answer.json()["error"]

    run(test)
    assert module._wait_s("0") == 0.25
    assert module._wait_s("99999") == 300.0


def test_batches_are_bounded() -> None:
    line = b'{"address": "a", "body": 1}\n'
    assert len(parse_batch(line * HTTP_BATCH_MAX, NDJSON["Content-Type"])) == HTTP_BATCH_MAX
    with pytest.raises(BadRequest) as caught:
        parse_batch(line * (HTTP_BATCH_MAX + 1), NDJSON["Content-Type"])
    assert caught.value.status == 413
    with pytest.raises(BadRequest, match="20000 lines"):
        parse_batch(b"\n" * (2 * HTTP_BATCH_MAX + 1), NDJSON["Content-Type"])


def test_array_of_other_values_is_not_parsed() -> None:
    """2 million numbers in 4 MiB would become 2 million objects."""
    body = b"[" + b"1," * (2 << 20) + b"1]"
    begin = time.process_time()
    with pytest.raises(BadRequest, match="item 0"):
        parse_batch(body, "application/json")
    assert time.process_time() - begin < 0.05


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'[{"address": "a"}]', "item 0: exactly one of body and base64"),
        (b'[{"address": "a", "body": 1, "base64": ""}]', "item 0: exactly one of body and base64"),
        (b'[{"address": "a", "base64": "%"}]', "item 0: base64 is not valid"),
        (b'[{"address": "a", "body": 1, "qoss": 1}]', "item 0: Object contains unknown field `qoss`"),
        (b'[{"address": "a", "body": 1, "qos": 3}]', "item 0: Expected `int` <= 2"),
        (b'[{"body": 1}]', "item 0: Object missing required field `address`"),
        (b'{"address": "a"}', "not a JSON array"),
        (b"[1, ", "item 0: Expected `object`"),
        (b"[", "not a JSON array"),
    ],
)
def test_invalid_batches_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_batch(body, "application/json; charset=utf-8")
    assert words in str(caught.value)


def test_longest_address_is_accepted() -> None:
    parse_single("a" * ADDRESS_BYTES_MAX, b"", {}, {})
    with pytest.raises(BadRequest, match="1024 bytes"):
        parse_single("a" * (ADDRESS_BYTES_MAX + 1), b"", {}, {})


def test_batch_of_another_type_is_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_batch(b"[]", "text/plain")
    assert caught.value.status == 415


def test_query_overrides_headers() -> None:
    headers = {"content-type": "text/plain", "qos-level": "0", "hono-ttl": "5"}
    assert parse_single("a", b"", {}, headers).content_type == "text/plain"
    assert (parse_single("a", b"", {}, headers).qos, parse_single("a", b"", {}, headers).ttl_s) == (0, 5)
    message = parse_single("a", b"", {"qos": "2", "ttl": "9", "content-type": "x/y"}, headers)
    assert (message.qos, message.ttl_s, message.content_type) == (2, 9, "x/y")


def test_response_to_a_command_is_accepted() -> None:
    message = parse_single("a", b"", {}, {"waypost-correlation-data": "YzE=", "waypost-status": "204"})
    own = decode_run(message.properties)
    assert (own.correlation_data, own.user_property) == (b"c1", (("status", "204"),))
    assert parse_single("a", b"", {"correlation-data": "+/8=", "status": "0"}, {}).correlation_data == b"\xfb\xff"
    assert parse_single("a", b"", {"correlation-data": " /8="}, {}).correlation_data == b"\xfb\xff", "as a query has +"
    largest = base64.b64encode(b"x" * CORRELATION_BYTES_MAX).decode()
    assert parse_single("a", b"", {"correlation-data": largest}, {}).correlation_data == b"x" * CORRELATION_BYTES_MAX
    beyond = base64.b64encode(b"x" * (CORRELATION_BYTES_MAX + 1)).decode()
    for query in ({"correlation-data": "%"}, {"correlation-data": beyond}, {"status": "1000"}, {"status": "ok"}):
        with pytest.raises(BadRequest):
            parse_single("a", b"", query, {})


def gate() -> Authenticator:
    """Return a gate for `alice` and `carol` with `secret`: they may send to `plant/#` and receive from
    `queue/alice`."""
    rules = (
        AccessRule(("plant/#",), frozenset((Operation.SEND,))),
        AccessRule(("queue/alice",), frozenset((Operation.RECV,))),
    )
    users = {name: with_secret(new_user(name, rules), "secret", at_s=0.0) for name in ("alice", "carol")}
    return Authenticator(
        AuthenticationMode.STANDARD,
        CredentialSnapshot(users),
        worker=lambda work, done: done(work()),
        clock=time.monotonic,
    )


def test_login_that_waits_too_long_is_answered_503() -> None:
    now, works = 0.0, list[Work]()
    users = {"alice": with_secret(new_user("alice"), "secret", at_s=0.0)}
    waiting = Authenticator(
        AuthenticationMode.STANDARD,
        CredentialSnapshot(users),
        worker=lambda work, _: works.append(work),
        clock=lambda: now,
    )

    async def test(rig: Rig) -> None:
        nonlocal now
        request = rig.client.post("/t/plant/1", content=b"x", auth=httpx.BasicAuth("alice", "secret"))
        asked = asyncio.create_task(request)
        async with asyncio.timeout(20):
            while not works:
                await asyncio.sleep(0.01)
        now = VERIFICATION_WAIT_S_MAX
        waiting.expire()
        assert (await asked).status_code == 503

    run(test, lambda: waiting)


def test_permissions_are_checked() -> None:
    async def test(rig: Rig) -> None:
        alice = httpx.BasicAuth("alice", "secret")
        assert (await rig.client.post("/t/plant/1", content=b"x", auth=alice)).status_code == 202
        assert (await rig.client.post("/t/queue/1", content=b"x", auth=alice)).status_code == 403
        assert (await rig.client.get("/c/queue/alice", auth=alice)).status_code == 204
        assert (await rig.client.get("/c/queue/bob", auth=alice)).status_code == 403
        lines = b'{"address": "plant/1", "body": 1}\n{"address": "queue/1", "body": 1}'
        assert (await rig.client.post("/t", content=lines, headers=NDJSON, auth=alice)).status_code == 403
        for auth in (httpx.BasicAuth("alice", "wrong"), httpx.BasicAuth("mallory", "secret"), None):
            answer = await rig.client.post("/t/plant/1", content=b"x", auth=auth)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Basic ")
        for broken in ("Basic %", "Bearer x", "Basic " + "YQ=="):
            answer = await rig.client.post("/t/plant/1", content=b"x", headers={"Authorization": broken})
            assert answer.status_code == 401

    run(test, gate)
