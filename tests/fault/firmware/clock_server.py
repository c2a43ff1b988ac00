"""HTTP server with a clock that is ahead of this machine: the gateway of a device that requests the time."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate


@contextlib.contextmanager
def clock_server(ahead_s: float) -> Iterator[int]:
    """Serve any path with a field Date that is ahead of this machine's clock; yield the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + ahead_s, usegmt=True)

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
