"""Proxy of an object store that acts just before or after the put of an object."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

ANSWER_S: Final = 30.0


class PutGate:
    """Forwards requests from its own `port` to the store at another one; a context manager.

    The next put of an object with a given end of its path triggers `before`, which may put an object through this gate.
    Or the store completes it, but its answer is lost or replaced by an error.
    """

    def __init__(self, store_port: int) -> None:
        self.store_port = store_port
        self._lock = threading.Lock()
        self._end: str | None = None
        self._before: Callable[[], object] | None = None
        self._instead = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Passing)
        self._server.gate = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, name="gate", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(ANSWER_S)

    def before_put_of(self, end: str, act: Callable[[], object]) -> None:
        """Call `act` just before the next put of a path with this end reaches the store."""
        with self._lock:
            self._end, self._before = end, act

    def lose_answer_to_put_of(self, end: str) -> None:
        """Let the store complete the next put of a path with this end, but drop the answer."""
        with self._lock:
            self._end, self._before = end, None

    def fail_answer_to_put_of(self, end: str) -> None:
        """Let the store complete the next put of a path with this end, but answer with an error."""
        with self._lock:
            self._end, self._before, self._instead = end, None, 500

    def passes(self, method: str, path: str) -> int | None:
        """Act before a request; return the answer instead of the store's: None for no change, an error, or 0
        for none.
        """
        with self._lock:
            if self._end is None or method != "PUT" or not path.partition("?")[0].endswith(self._end):
                return None
            act, self._end, self._before = self._before, None, None
            instead, self._instead = self._instead, 0
        if act is None:
            return instead
        act()
        return None


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = ANSWER_S

    def _pass(self) -> None:
        gate: PutGate = self.server.gate  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        instead = gate.passes(self.command, self.path)
        store = http.client.HTTPConnection("127.0.0.1", gate.store_port, timeout=ANSWER_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        store.request(self.command, self.path, body, headers)
        answer = store.getresponse()
        content = answer.read()
        store.close()
        if instead is not None:
            self.close_connection = True
            if instead:
                self.send_error(instead)
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - the names http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""
