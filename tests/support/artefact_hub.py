"""Hub that serves artefacts to gateways over HTTP, with failures on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

from tests.support.artefacts import IMAGE, sealed

_RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")


class ArtefactHubServer:
    """Server on a free port of this machine."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """Content by path below ``/uplink/artefacts/``."""
        self.asked: list[tuple[str, str]] = []
        """Path and range of each request."""
        self.statuses: list[int] = []
        """Statuses of the next answers, instead of the content."""
        self.broken: set[str] = set()
        """Paths that are answered with 500."""
        self.cuts: list[int] = []
        """Bytes after which the next answers with a range end."""
        self.hook: Callable[[str], None] = lambda _: None
        """Called with the path of each request."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in its base
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, image: bytes = IMAGE, envelope: bytes | None = None, **fields: object) -> None:
        """Store an artefact; `fields` replace those of its manifest."""
        place = f"{fields.get('name', 'blinker')}/{fields.get('version', '1.2.0')}"
        self.files[f"{place}/manifest"] = sealed(image, **fields) if envelope is None else envelope
        self.files[f"{place}/image"] = image

    def ranges(self, place: str = "blinker/1.2.0/image") -> list[str]:
        """Return the requested ranges of a file."""
        return [part for path, part in self.asked if path == place]

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path, wanted = request.path.removeprefix("/uplink/artefacts/"), request.headers.get("Range", "")
        self.asked.append((path, wanted))
        self.hook(path)
        content = self.files.get(path)
        status = self.statuses.pop(0) if self.statuses else 404 if content is None else 200
        if path in self.broken:
            status = 500
        if content is None or status != 200:
            request.send_response(status)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        found = _RANGE.fullmatch(wanted)
        if found is None:
            request.send_response(200)
            part = content
        else:
            start, stop = int(found[1]), min(int(found[2]) + 1, len(content))
            part = content[start:stop]
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(part)))
        request.end_headers()
        if found is not None and self.cuts:
            part = part[: self.cuts.pop(0)]
            request.close_connection = True
        request.wfile.write(part)
