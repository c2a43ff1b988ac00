"""Connection of a live view to the console of a gateway, signed in as its operator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from edge.appliance.errors import CommandError
from edge.appliance.running import ask, connect, console, token_of

SILENCE_S: Final = 60.0
"""Longest pause in a stream of events; the gateway sends a comment every 15 s."""
EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest event that is read."""


class ServerEvent(NamedTuple):
    """One server-sent event."""

    name: str
    data: Any


class OperatorConnection:
    """Requests to one gateway. Each looks up the address again: a restarted gateway may have another port."""

    def __init__(self, data: Path | None, http: str | None) -> None:
        self._data = data
        self._http = http

    def get(self, path: str, **query: str | int) -> Any:
        """Return the document of a route below `/api/v1/`. Raises CommandError."""
        return ask(self._url(path, **query), token_of(self._data))

    def events(self, topics: str) -> Iterator[ServerEvent]:
        """Yield the events of topics until the gateway ends the stream. Raises CommandError."""
        url = self._url("events", topics=topics)
        with connect(url, token_of(self._data), answer_s=SILENCE_S) as answer:
            name, data = "", b""
            try:
                while text := answer.readline(EVENT_BYTES_MAX):
                    field, _, value = text.rstrip(b"\r\n").partition(b":")
                    if field == b"event":
                        name = value.strip().decode()
                    elif field == b"data":
                        data = value.strip()
                    elif not field and not value and name:
                        yield ServerEvent(name, msgspec.json.decode(data))
                        name, data = "", b""
            except (OSError, ValueError) as error:
                raise CommandError(f"{url}: the stream ended: {error}") from None

    def _url(self, path: str, **query: str | int) -> str:
        url = f"http://{console(self._data, self._http)}/api/v1/{path}"
        return f"{url}?{urlencode(query)}" if query else url
