"""Report each HTTP request to a packet trace: path, sizes and answer, never a body or credentials."""

from __future__ import annotations

import base64
import json
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.broker.http.peer import KEY, HttpPeer
from edge.broker.model.tracing import HttpRequest, Tracer

UNTRACED_PATHS: Final = frozenset(("/api/v1/trace",))
"""Paths that are not traced: the trace itself."""
_ERROR_BYTES_MAX: Final = 1_024
"""Bytes of an error answer that are kept for the trace."""


class TracedRequests:
    """ASGI middleware that reports requests."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._tracer.active or scope["type"] != "http" or scope["path"] in UNTRACED_PATHS:
            await self._app(scope, receive, send)
            return
        exchange = _TracedExchange(receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self._tracer.requested(exchange.request(scope))


class _TracedExchange:
    """Counts the bytes of one request and its answer."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._received_bytes = self._sent_bytes = self._status = 0
        self._error = b""
        self._note = ""

    async def receive(self) -> Message:
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if (b"waypost-subscribers", b"0") in message["headers"]:
                self._note = "no subscriber: discarded"
        else:
            body = message.get("body", b"")
            self._sent_bytes += len(body)
            if self._status >= 400 and len(self._error) + len(body) <= _ERROR_BYTES_MAX:
                self._error += body
        await self._send(message)

    def request(self, scope: Scope) -> HttpRequest:
        """Return the request for the trace."""
        client = scope.get("client")
        return HttpRequest(
            method=scope["method"],
            path=scope["raw_path"].decode("ascii", "replace"),
            remote=f"{client[0]}:{client[1]}" if client else "-",
            user=_user(scope),
            received_bytes=self._received_bytes,
            sent_bytes=self._sent_bytes,
            status=self._status,
            error=_words(self._error) or self._note,
        )


def _user(scope: Scope) -> str:
    """Return the authenticated user of the connection, else the user name of the request.

    The user name of the Basic scheme (RFC 7617) is public; the password is dropped.
    """
    peer = scope.get("state", {}).get(KEY)
    if isinstance(peer, HttpPeer) and peer.user:
        return peer.user
    fields: dict[bytes, bytes] = dict(scope["headers"])
    scheme, _, value = fields.get(b"authorization", b"").partition(b" ")
    try:
        shown = base64.b64decode(value.strip(), validate=True) if scheme.lower() == b"basic" else b""
    except ValueError:
        return ""
    user, colon, _ = shown.partition(b":")
    return user.decode("utf-8", "replace") if colon else ""


def _words(answer: bytes) -> str:
    """Return the error text of an answer, empty if it has none."""
    try:
        document = json.loads(answer)
    except ValueError:
        return ""
    error = document.get("detail") if isinstance(document, dict) else None
    return error if isinstance(error, str) else ""
