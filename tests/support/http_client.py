"""One HTTP request to a running gateway, with Python's own client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tests.support.processes import Waypost

WAIT_S: Final = 20.0


class Answer(NamedTuple):
    """Response of a gateway. Names of header fields are in lower case."""

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
    gateway: Waypost, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send a request on its own connection, and return the response."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port("http"), timeout=WAIT_S)
    connection.request(method, path, body, dict(headers or {}))
    answer = read_answer(connection)
    connection.close()
    return answer


def read_answer(connection: http.client.HTTPConnection) -> Answer:
    """Return the response to the pending request."""
    answer = connection.getresponse()
    return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})
