"""Receivers of notifications for tests: an HTTP server that keeps requests, and an SMTP server that keeps mails."""

from __future__ import annotations

import json
import socketserver
import threading
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class ReceivedRequest(NamedTuple):
    """Request that a webhook received."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class WebhookServer:
    """HTTP server on loopback; a context manager. It answers with `status`."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.status = 204
        self.fields: dict[str, str] = {}
        """Fields of the answers."""
        self.held: threading.Event | None = None
        """Requests are answered when it is set; None: at once."""
        received, server = self.requests, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                received.append(ReceivedRequest(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                held = server.held
                if held is not None:
                    held.wait(30)
                self.send_response(server.status)
                for name, value in server.fields.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def events(self) -> list[str]:
        """Return the events received, in order."""
        return [each.document["event"] for each in self.requests]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class MailServer:
    """SMTP server on loopback without TLS and login; a context manager."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        mails = self.mails

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 test ESMTP\r\n")
                while line := self.rfile.readline():
                    verb = line.split()[0].upper()
                    if verb == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        lines = []
                        while (data := self.rfile.readline()) not in (b".\r\n", b""):
                            lines.append(data[1:] if data.startswith(b"..") else data)
                        mails.append(message_from_bytes(b"".join(lines)))
                    self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
                    if verb == b"QUIT":
                        return

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
