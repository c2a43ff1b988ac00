"""Ambiguous or invalid HTTP bytes are refused, and the next client is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.hostile.web import ask, send_raw, statuses
from tests.support.ambiguous_heads import AMBIGUOUS
from tests.support.processes import Waypost, edge, hub

SMUGGLED = b"GET /c/queue/secret HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HOST = b"Host: 127.0.0.1\r\n"
CHUNKED = b"POST /t/queue/a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
BODIES = {
    "a length in another base": CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
    "a chunk of 2^84": CHUNKED + b"f" * 21 + b"\r\na",
    "a chunk that ends elsewhere": CHUNKED + b"1\r\nabc\r\n0\r\n\r\n",
    "a chunk line that ends with LF": CHUNKED + b"1\na\r\n0\r\n\r\n",
    "an endless chunk extension": CHUNKED + b"1;" + b"a" * 100_000,
    "endless trailers": CHUNKED + b"0\r\n" + b"A: b\r\n" * 20_000,
    "an endless head": b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 20_000,
}


@pytest.fixture(scope="module", params=["gateway", "hub"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    folder = tmp_path_factory.mktemp(request.param)
    with edge(folder, "gw") if request.param == "gateway" else hub(folder) as running:
        yield running


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_request_is_refused_once(served: Waypost, name: str) -> None:
    """An ambiguous request gets one refusal; the bytes after it never count as a request."""
    port = served.port("http")
    data = AMBIGUOUS[name].replace(b"Host: x", b"Host: 127.0.0.1")
    answer = send_raw(port, data + SMUGGLED)
    assert statuses(answer) == [400]
    assert ask(port, "GET", "/healthz").status == 200


@pytest.mark.parametrize("name", BODIES)
def test_invalid_body_is_refused_once(served: Waypost, name: str) -> None:
    port = served.port("http")
    answer = send_raw(port, BODIES[name] + SMUGGLED)
    assert all(status in (400, 404, 405) for status in statuses(answer)), answer
    assert len(statuses(answer)) <= 1
    assert ask(port, "GET", "/healthz").status == 200


def test_each_pipelined_request_is_checked(served: Waypost) -> None:
    """Each pipelined request is checked like the first."""
    port = served.port("http")
    good, foreign = (
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    )
    answer = send_raw(port, good + foreign + good + b"GET /\n\n" + good)
    assert statuses(answer) == [200, 421, 200, 400]


PATHS = {
    "/t/queue/%ff": 400, "/t/queue/%": 400, "/t/queue/%4": 400, "/t/queue/%zz": 400, "/t/queue/%c3%28": 400,
    "/t/queue/%ed%a0%80": 400, "/t/queue/%c0%af": 400, "/t/queue/%f8%88%80%80%80": 400, "/t/queue/a?ttl=%ff": 400,
    "/t/queue/a?qos=%": 400, "/t/queue/a?%fe=1": 400, "/t/queue/%00": 400, "/t/queue/%23": 400, "/t/%24SYS/a": 400,
    "/%ff": 400, "/telemetry/%ff/4711": 400, "/event/DEFAULT/%80": 400, "/command/res/%e2%28%a1": 400,
    "/%2e%2e/%2e%2e/etc/passwd": 404, "/..%2f..%2fetc/passwd": 404, "/t/queue/%c3%bc": 202, "/t/queue/a%20b": 202,
    "/t/queue/a%252f": 202, "/t/queue/a%2fb": 202,
}  # fmt: skip
FIELDS = {
    "Content-Type: \xff": 400, "Device-Id: \xe2\x28\xa1": 400, "hono-ttl: \xc0\xaf": 400, "X: \xed\xa0\x80": 400,
    "Device-Id: pumpe-\xc3\xbc": 202, "X: \xc3\xbc": 202,
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_path_is_accepted_or_refused_by_its_bytes(gateway: Waypost, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
    assert statuses(send_raw(gateway.port("http"), head.encode("ascii"))) == [PATHS[path]]


@pytest.mark.parametrize("field", FIELDS)
def test_header_field_is_accepted_or_refused_by_its_bytes(gateway: Waypost, field: str) -> None:
    head = f"POST /t/queue/f HTTP/1.1\r\nHost: 127.0.0.1\r\n{field}\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
    assert statuses(send_raw(gateway.port("http"), head.encode("latin-1"))) == [FIELDS[field]]


@pytest.mark.parametrize("target", ["http://127.0.0.1/metrics", "http://evil.example/metrics", "*", "evil.example:80"])
def test_target_that_is_no_path_is_refused(served: Waypost, target: str) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert statuses(send_raw(served.port("http"), head.encode())) == [400]


def test_invalid_requests_do_not_fill_the_log(tmp_path: Path) -> None:
    """A thousand invalid requests, and upgrades to unknown protocols, leave at most a few log lines."""
    with edge(tmp_path, "gw") as running:
        before = len(running.log.read_text().splitlines())
        upgrade = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"
        for _ in range(10):
            send_raw(running.port("http"), upgrade * 50 + b"\0\r\n\r\n")
        for _ in range(200):
            send_raw(running.port("http"), b"\0\r\n\r\n")
        assert len(running.log.read_text().splitlines()) - before < 10
