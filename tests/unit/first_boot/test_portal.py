"""A network with a sign-in page is named when the hub cannot be reached."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from edge.appliance.first_boot import enrolling
from edge.appliance.first_boot import portal as portal_module
from edge.appliance.first_boot.journal import FirstBootSettings
from edge.appliance.first_boot.portal import find_portal
from tests.support.processes import free_port

HOST = "127.0.0.1"


class Answering(BaseHTTPRequestHandler):
    """Answers each request with the status and `Location` of the server."""

    def do_GET(self) -> None:
        status, location = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.server.kind is not None:  # type: ignore[attr-defined]
            self.send_header("Content-Type", self.server.kind)  # type: ignore[attr-defined]
        if location is not None:
            self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Do not write to the output of the tests."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer((HOST, 0), Answering) as made:
        made.asked, made.kind = [], None  # type: ignore[attr-defined]
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "location", "portal"), [
    (302, "http://portal.example/login?next=1", "portal.example"),
    (307, "https://Portal.example:8443/", "portal.example"),
    (511, None, HOST),
    (511, "http://portal.example/", "portal.example"),
    (302, f"https://{HOST}/", None),
    (302, "/login", None),
    (302, "http://[broken/", None),
    (302, "http://portal\u2028.example/", None),
    (200, None, None),
    (404, "http://portal.example/", None),
])  # fmt: skip
def test_redirect_to_another_host_is_a_portal(
    server: ThreadingHTTPServer, status: int, location: str | None, portal: str | None
) -> None:
    encoded = None if location is None else location.encode().decode("latin-1")
    server.answer = (status, encoded)  # type: ignore[attr-defined]
    assert find_portal(HOST, port=server.server_port) == portal


@pytest.mark.parametrize(("status", "kind", "found"), [
    (200, "text/html; charset=utf-8", True), (200, "Text/HTML", True), (200, "application/json", False),
    (200, "text/plain", False), (404, "text/html", False), (204, "text/html", False),
])  # fmt: skip
def test_page_for_any_address_is_a_portal(server: ThreadingHTTPServer, status: int, kind: str, found: bool) -> None:
    """Such a network answers in place of the hub. Two requests are for different pages, which no server has."""
    server.answer, server.kind = (status, None), kind  # type: ignore[attr-defined]
    for _ in range(2):
        assert find_portal(HOST, port=server.server_port) == (HOST if found else None)
    assert len(set(server.asked)) == 2  # type: ignore[attr-defined]


def test_answer_that_drips_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its headers are cut somewhere: a host in them may be half a name."""
    monkeypatch.setattr(portal_module, "ANSWER_S", 0.2)
    stopped = threading.Event()
    with socket.create_server((HOST, 0)) as listener:

        def drip() -> None:
            stream, _ = listener.accept()
            with stream, contextlib.suppress(OSError):
                stream.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://portal.exam")
                while not stopped.wait(0.05):
                    stream.sendall(b"p")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert find_portal(HOST, port=listener.getsockname()[1]) is None
        finally:
            stopped.set()
            dripping.join()


def test_host_that_does_not_answer_is_no_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_portal(HOST, port=free_port()) is None

    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", fail)
    assert find_portal("hub.example", port=80) is None


def test_next_step_names_the_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def found(host: str) -> str | None:
        asked.append(host)
        return "portal.example"

    monkeypatch.setattr(enrolling, "find_portal", found)
    wanted = FirstBootSettings(
        settings="", name="hall", url="amqps://hub.example", token=None, forward=(), keep_free=None
    )
    step = enrolling.portal_step(wanted, "check the hub")
    assert "leads to portal.example" in step
    assert asked == ["hub.example"]
    monkeypatch.setattr(enrolling, "find_portal", lambda host: host)
    step = enrolling.portal_step(wanted, "check the hub")
    assert "answers any address" in step
    assert step.endswith("check the hub"), "such a web server hides no other cause"
    monkeypatch.setattr(enrolling, "find_portal", lambda _: None)
    assert enrolling.portal_step(wanted, "check the hub") == "check the hub"
