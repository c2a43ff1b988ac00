"""HTTP gateway that offers any manifest and image to a device, also wrong ones, and keeps its reports."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class ScriptedGateway:
    """Server on a free port of this machine; a context manager."""

    def __init__(self) -> None:
        self.offer: dict[str, object] = {}
        """Entry of the list, until the device refuses it; empty: no artefact."""
        self.manifest = b""
        self.image = b""
        self.reports: list[tuple[str, str]] = []
        """State and reason of each report."""
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                gateway._answer(self)

            def do_POST(self) -> None:
                report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                gateway.reports.append((report["state"], report["reason"]))
                if report["state"] == "rolled-back":
                    gateway.offer = {}  # one try
                gateway._send(self, 202, b"")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in its base
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        if request.path == "/artefacts":
            found = [self.offer] if self.offer else []
            self._send(request, 200, json.dumps({"artefacts": found}).encode())
        elif request.path.endswith("/manifest"):
            self._send(request, 200, self.manifest)
        else:
            first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
            part = self.image[first : last + 1]
            self._send(request, 206 if part else 416, part)

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
