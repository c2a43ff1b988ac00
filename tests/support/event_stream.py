"""Stream of events of a hub, read with Python's own HTTP client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any, Final

EVENTS: Final = "/api/v1/events"
WITHIN_S: Final = 60.0


@contextmanager
def stream(port: int, query: str = "", last: int | None = None) -> Iterator[HTTPResponse]:
    """Open a stream of the hub at a port; `last`: number of the last event that was seen."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    fields = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": str(last)})}
    try:
        connection.request("GET", EVENTS + query, headers=fields)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        yield answer
    finally:
        connection.close()


def read_messages(answer: HTTPResponse, until: str) -> list[tuple[int, str, Any]]:
    """Read (id, type, document) up to the first message of a type."""
    found: list[tuple[int, str, Any]] = []
    fields: dict[str, str] = {}
    while not found or found[-1][1] != until:
        text = answer.readline().decode()
        assert text, "the stream ended"
        name, _, value = text.rstrip("\n").partition(":")
        if text != "\n":
            fields[name] = value.strip()
        elif "event" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
            fields = {}
    return found
