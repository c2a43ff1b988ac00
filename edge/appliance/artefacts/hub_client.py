"""Client of the artefacts at a gateway's hub, over HTTP on the port of the uplink and with its certificate.

One connection serves all requests to an endpoint. It blocks: use it from one thread at a time.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from ssl import SSLContext, create_default_context
from typing import Final
from urllib.parse import quote

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from bridge.artefacts.limits import ENVELOPE_BYTES_MAX
from bridge.proxy import PeerRoute
from edge.appliance.artefacts.limits import READ_BYTES
from edge.appliance.update.bundle_server import BundleServer
from edge.appliance.update.hub_source import hub_context
from edge.broker.configuration import Connector, TlsFiles

PATH: Final = "/uplink/artefacts"
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)


class HubAway(Exception):
    """The hub did not answer, or the connection broke."""


class HubRefused(Exception):
    """The hub answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status: Final = status


class ArtefactHub:
    """Client of one hub at one of its endpoints. Methods raise `HubAway` and `HubRefused`."""

    def __init__(self, connector: Connector, way: int = 0) -> None:
        """`connector`: of the uplink to the hub. `way`: place of the endpoint; beyond the last one it begins again."""
        self.connector: Final = connector
        self._way = way
        """Place of the endpoint in use among those of the connector."""
        self.received = 0
        """Bytes of the last answer that were received."""
        self._aborted = False
        self._server: BundleServer | None = None

    def use_way(self, way: int) -> None:
        """Use another endpoint of the hub."""
        self.close()
        self._way = way

    def abort(self) -> None:
        """End the request in progress, and refuse further ones; for another thread."""
        self._aborted = True
        server = self._server
        if server is not None:
            server.abort()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def manifest(self, name: str, version: str) -> bytes:
        """Return the signed manifest of an artefact; one byte more than allowed for a larger one."""
        answer, content = self._get(f"{_path(name, version)}/manifest", {}, ENVELOPE_BYTES_MAX + 1)
        stated = answer.headers.get("Content-Length", "")
        if stated.isdecimal() and len(content) < min(int(stated), ENVELOPE_BYTES_MAX + 1):
            raise HubAway("the connection broke within a manifest")
        return content

    def image(self, name: str, version: str, start: int, stop: int, size: int) -> bytes:
        """Return the bytes of an image of `size` bytes from `start` on, up to `stop`: fewer when the connection broke.
        Raises `ArtefactRefused` for an image of another size."""
        wanted = {"Range": f"bytes={start}-{stop - 1}"}
        answer, content = self._get(f"{_path(name, version)}/image", wanted, stop - start)
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status != HTTPStatus.PARTIAL_CONTENT or found is None:
            raise HubAway("the hub's answer is not the part that was requested")
        if int(found[3]) != size:
            fault = ArtefactFault.TRUNCATED if int(found[3]) < size else ArtefactFault.TOO_LARGE
            raise ArtefactRefused(fault, f"the image at the hub has {found[3]} bytes, and its manifest says {size}")
        if (int(found[1]), int(found[2]) + 1) != (start, stop) or not content:
            raise HubAway("the hub's answer is not the part that was requested, or the connection broke")
        return content

    # --- inside -----------------------------------------------------------------------------------------------------

    def _get(self, path: str, headers: dict[str, str], most: int) -> tuple[http.client.HTTPResponse, bytes]:
        """Return an answer and up to `most` bytes of it: fewer when the connection broke."""
        self.received = 0
        way = self.connector.ways[self._way % len(self.connector.ways)]
        if self._server is None:
            self._server = BundleServer(way.proxy, _context(self.connector.tls))
        if self._aborted:  # looked at when there is a client that `abort` finds
            raise HubAway("fetching has ended")
        url = f"{self._scheme}://{way.endpoint}{path}"
        try:
            with self._server.get(url, headers) as answer:
                if answer.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                    raise HubRefused(f"{_at(way)} answers {answer.status} {answer.reason}", answer.status)
                return answer, self._read(answer, most)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise HubAway(f"{_at(way)}: {error or type(error).__name__}") from None

    def _read(self, answer: http.client.HTTPResponse, most: int) -> bytes:
        """Read up to `most` bytes, or those that came before the connection broke."""
        parts = []
        while self.received < most:
            try:
                part = answer.read1(min(READ_BYTES, most - self.received))
            except (OSError, http.client.HTTPException):
                break
            if not part:
                break
            self.received += len(part)
            parts.append(part)
        return b"".join(parts)

    @property
    def _scheme(self) -> str:
        return "http" if self.connector.tls is None else "https"


def _path(name: str, version: str) -> str:
    return f"{PATH}/{name}/{quote(version, safe='+')}"


def _at(way: PeerRoute) -> str:
    return f"the hub at {way}"


def _context(files: TlsFiles | None) -> Callable[[], SSLContext]:
    """Return what makes the TLS context of a connection, from the files as they are then."""
    return create_default_context if files is None else partial(hub_context, files)
