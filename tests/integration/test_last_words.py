"""A client that is still sending reads why it is refused, and half-closed requests are answered."""

from __future__ import annotations

import contextlib
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from edge.broker.http.limits import HTTP_BODY_BYTES_MAX
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets
from tests.support.configured_gateway import basic, gateway_with, resources, user
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge, hub

RESOURCES = resources(user("joe", "send", '"plant/#"', password="secret"), listeners=("http", "mqtt"))
LARGE = bytes(12_000_000)
JOE = basic("joe", "secret")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with gateway_with(tmp_path_factory.mktemp("guarded"), RESOURCES) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/t/plant/a", LARGE, {}, 401),
        ("/t/elsewhere", b"1", JOE, 403),
        ("/t/plant/a", bytes(HTTP_BODY_BYTES_MAX + 1), JOE, 413),
        ("/t/plant/a", LARGE, {**JOE, "Content-Encoding": "br"}, 415),
        ("/nowhere", LARGE, JOE, 404),
        ("/healthz", LARGE, JOE, 405),
    ],
)
def test_urllib_reads_each_refusal(
    guarded: Waypost, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    """Python's urllib requests `Connection: close`, and sends the whole body before it reads."""
    for _ in range(3):
        request = urllib.request.Request(f"http://127.0.0.1:{guarded.port('http')}{path}", body, headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        refused.value.close()
        assert refused.value.code == status


def test_client_that_closes_its_half_gets_its_answer(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        for head in (b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /healthz HTTP/1.0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", gateway.port("http")), timeout=20) as client:
                client.sendall(head)
                client.shutdown(socket.SHUT_WR)
                answer = b""
                while part := client.recv(65_536):
                    answer += part
            assert b" 200 OK\r\n" in answer[:20]
            assert answer.endswith(b"}")


@pytest.mark.parametrize("version", [4, 5])
def test_client_that_sends_its_whole_backlog_first_reads_its_answers(tmp_path: Path, version: int) -> None:
    """The client sends everything before it reads, against the standard, as Paho's test flow_control2 does."""
    backlog = b"".join(packets.Publish("queue/a", bytes(2_000), 0).encode(version) for _ in range(2_000))
    with edge(tmp_path, "gw") as gateway, Raw(gateway, version) as client:
        client.connect("eager")
        client.send(b"\x80\x00", backlog)
        last = client.receive()
        if version == 5:
            assert isinstance(last, packets.Disconnect)
            assert last.reason is ReasonCode.MALFORMED_PACKET
            last = client.receive()
        assert last is None
        assert client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "no reset"


def test_open_requests_are_answered_when_the_gateway_stops_and_its_log_has_no_traceback(tmp_path: Path) -> None:
    waiting = b"GET /c/queue/a?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    half = b"POST /t/queue/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"
    with edge(tmp_path, "gw") as gateway, contextlib.ExitStack() as stack:
        clients = []
        for head in (waiting, half) * 10:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port("http")), timeout=20))
            client.sendall(head)
            clients.append(client)
        assert ask(gateway, "GET", "/healthz").status == 200
        assert gateway.stop() == 0
        answers = [client.recv(4_096) for client in clients]
    assert all(answer.startswith((b"HTTP/1.1 503 ", b"HTTP/1.1 204 ")) for answer in answers), answers
    _require_one_line(gateway, sum(answer.startswith(b"HTTP/1.1 503 ") for answer in answers))


def test_open_requests_are_answered_when_the_hub_stops_and_one_line_counts_them(tmp_path: Path) -> None:
    half = b"POST /api/v1/commands HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with hub(tmp_path) as running, contextlib.ExitStack() as stack:
        clients = []
        for _ in range(20):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port("http")), timeout=20))
            client.sendall(half)
            clients.append(client)
        assert ask(running, "GET", "/healthz").status == 200
        assert running.stop() == 0
        answers = [client.recv(4_096) for client in clients]
    assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in answers), answers
    _require_one_line(running, len(answers))


@pytest.mark.parametrize("start", [partial(edge, name="gw"), hub], ids=["gateway", "hub"])
def test_open_console_does_not_delay_the_stop(start: Callable[[Path], Waypost], tmp_path: Path) -> None:
    stream = b"GET /api/v1/events?topics=status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with start(tmp_path) as running:
        with socket.create_connection(("127.0.0.1", running.port("http")), timeout=20) as page:
            page.sendall(stream)
            answer = b""
            while b"event: status\n" not in answer:
                answer += page.recv(65_536)
            assert running.stop() == 0
            while page.recv(65_536):
                pass
        assert "http: cancelled" not in running.log.read_text(), "the stream ended by itself"


def _require_one_line(stopped: Waypost, aborted: int) -> None:
    """The log counts the aborted requests once and has no traceback."""
    text = stopped.log.read_text()
    assert "Traceback" not in text
    assert "Exception" not in text
    assert "uvicorn" not in text
    lines = [line for line in text.splitlines() if "http: cancelled" in line]
    assert len(lines) == 1, text
    assert f"cancelled {aborted} requests" in lines[0]
