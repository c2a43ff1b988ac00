"""HTTP server of one file, with ranges, aborted answers and changes of the file."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class FileServer:
    """Runs on a free port of this machine; its fields may change while it serves."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.ranges = True
        """The server supports ranges (RFC 9110 section 14)."""
        self.cuts: list[int] = []
        """Bytes after which the connections of the next answers break."""
        self.status: list[int] = []
        """Status of the next answers, instead of the file."""
        self.asked: list[str] = []
        """Requested ranges, in order; empty for the whole file."""
        self.while_sending: Callable[[], None] = lambda: None
        """Called in the middle of each answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/waypost.raucb"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a GET."""
        asked = request.headers.get("Range", "")
        self.asked.append(asked)
        if self.status:
            request.send_error(self.status.pop(0))
            return
        found = re.fullmatch(r"bytes=(\d+)-", asked) if self.ranges else None
        first = int(found[1]) if found is not None else 0
        body = self.content[first:]
        request.send_response(206 if found is not None else 200)
        if found is not None:
            request.send_header("Content-Range", f"bytes {first}-{len(self.content) - 1}/{len(self.content)}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        sent = body[: self.cuts.pop(0)] if self.cuts else body
        request.close_connection = True
        with contextlib.suppress(ConnectionError):  # the client may have read enough
            request.wfile.write(sent[: len(sent) // 2])
            self.while_sending()
            request.wfile.write(sent[len(sent) // 2 :])

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        return Handler
