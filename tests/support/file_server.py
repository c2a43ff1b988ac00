"""HTTP server of one file and its index, with ranges, aborted answers and changes of the file."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from bridge.block_index import SUFFIX


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
        self.index: bytes | None = None
        """Index of the file's blocks, if it has one."""
        self.index_asked: list[str] = []
        """Requested ranges of the index."""
        self.index_status: list[int] = []
        """Status of the next answers to requests of the index."""
        self.index_cuts: list[int] = []
        """Bytes after which the connections of the next answers with the index break."""
        self.sent = 0
        """Bytes of all bodies."""
        self.keeps = False
        """Connections stay open for further requests."""
        self.connections = 0
        """Accepted connections."""
        self.redirects: list[str] = []
        """URLs that the next answers lead to."""
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
        if request.path.partition("?")[0].endswith(SUFFIX):
            self.index_asked.append(asked)
            content, status, cuts = self.index, self.index_status, self.index_cuts
        else:
            self.asked.append(asked)
            content, status, cuts = self.content, self.status, self.cuts
        if self.redirects:
            request.send_response(302)
            request.send_header("Location", self.redirects.pop(0))
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if status or content is None:
            request.send_error(status.pop(0) if status else 404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked) if self.ranges else None
        first = int(found[1]) if found is not None else 0
        if first >= len(content) > 0:
            request.send_error(416)
            return
        last = min(int(found[2]), len(content) - 1) if found is not None and found[2] else len(content) - 1
        body = content[first : last + 1]
        request.send_response(206 if found is not None else 200)
        if found is not None:
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        sent = body[: cuts.pop(0)] if cuts else body
        self.sent += len(sent)
        request.close_connection = not self.keeps or len(sent) < len(body)
        with contextlib.suppress(ConnectionError):  # the client may have read enough
            request.wfile.write(sent[: len(sent) // 2])
            self.while_sending()
            request.wfile.write(sent[len(sent) // 2 :])
        request.close_connection |= not self.keeps

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            @property
            def protocol_version(self) -> str:  # type: ignore[override]
                return "HTTP/1.1" if server.keeps else "HTTP/1.0"

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        return Handler
