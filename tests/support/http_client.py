"""One HTTP request to a running gateway or hub, with Python's own client."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

WAIT_S: Final = 20.0


class HttpServer(Protocol):
    """Process on this machine with a listener named ``http`` or ``https``."""

    def port(self, name: str, /) -> int: ...


class Answer(NamedTuple):
    """Response of a server. Names of header fields are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def document(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)

    @property
    def lock(self) -> str:
        """Return the token by which the client settles the message."""
        return self.headers["waypost-lock"]

    @property
    def failed(self) -> int:
        """Return the failed deliveries of the message before this one."""
        return int(self.headers["waypost-delivery-count"])


def ask(
    server: HttpServer,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float = WAIT_S,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send a request on its own connection, and return the response. `tls`: to the listener ``https``."""
    port = server.port("http" if tls is None else "https")
    return ask_port(port, method, path, body, headers, timeout_s=timeout_s, tls=tls)


def ask_port(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float = WAIT_S,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send a request to a port of this machine, and return the response."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        if tls is None
        else http.client.HTTPSConnection("localhost", port, timeout=timeout_s, context=tls)
    )
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers or {}))
        return read_answer(connection)


def document(server: HttpServer, path: str) -> Any:
    """Return a JSON document of a gateway or hub."""
    answer = ask(server, "GET", path)
    assert answer.status == HTTPStatus.OK, answer
    return answer.document


def status(server: HttpServer) -> Any:
    """Return the status of a gateway or hub."""
    return document(server, "/api/v1/status")


def read_answer(connection: http.client.HTTPConnection) -> Answer:
    """Return the response to the pending request."""
    answer = connection.getresponse()
    return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})
