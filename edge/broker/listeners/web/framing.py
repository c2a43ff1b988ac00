"""Strict HTTP/1.1 framing, against request smuggling.

h11 follows RFC 9112, which allows lenient parsing. If a proxy and this server disagree about where a request ends, a
client can send requests in the name of another one (section 11.2). So ambiguous requests are refused.
"""

from __future__ import annotations

import re
from typing import Final

import h11

_HEAD_END: Final = b"\r\n\r\n"
_LOOSE_LINE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends without CR (section 2.2), or continues in the next one (obs-fold, section 5.2)."""
_LENGTH: Final = re.compile(rb"\ncontent-length[ \t]*:([^\r\n]*)", re.IGNORECASE)
VERSIONS: Final = (b"1.0", b"1.1")


class Framing:
    """State machine of one connection, with the members of `h11.Connection` that uvicorn and we use."""

    def __init__(self, head_bytes_max: int) -> None:
        self._connection = connection = h11.Connection(h11.SERVER, head_bytes_max)
        self.receive_data = connection.receive_data
        self.send = connection.send
        self.start_next_cycle = connection.start_next_cycle

    @property
    def our_state(self) -> object:
        return self._connection.our_state

    @property
    def their_state(self) -> object:
        return self._connection.their_state

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        return self._connection.they_are_waiting_for_100_continue

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """Unprocessed bytes, and True after the end of the stream."""
        return self._connection.trailing_data

    def next_event(self) -> object:
        """Return the next event. Raises `h11.RemoteProtocolError`, also for ambiguous requests."""
        if self.their_state is h11.IDLE:
            _check_head(self.trailing_data[0])
        event = self._connection.next_event()
        if isinstance(event, h11.Request):
            _check_body_length(event)
        return event


def _check_head(data: bytes) -> None:
    end = data.find(_HEAD_END)
    head = data if end < 0 else data[: end + len(_HEAD_END)]
    if _LOOSE_LINE.search(head):
        raise h11.RemoteProtocolError("a header line does not end with CR LF, or continues in the next line")
    lengths = _LENGTH.findall(head)
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        raise h11.RemoteProtocolError("more than one Content-Length")


def _check_body_length(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if request.http_version not in VERSIONS:
        raise h11.RemoteProtocolError("neither HTTP/1.0 nor HTTP/1.1", error_status_hint=505)
    chunked = b"transfer-encoding" in names
    if chunked and (b"content-length" in names or request.http_version == b"1.0"):
        raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or in HTTP/1.0")
