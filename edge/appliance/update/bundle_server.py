"""HTTP client of the server that has a bundle: one connection for all ranges, through a proxy if there is one.

An update asks for hundreds of ranges. A connection for each would cost a TLS handshake each, in bytes and round trips.
It blocks.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from bridge.proxy import Proxy
from edge.appliance.update.limits import ANSWER_S

REDIRECTS_MAX: Final = 5
"""Redirects of one request: one to HTTPS, one to a storage service, and some to spare."""
_REDIRECTS: Final = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)


class BundleServer:
    """Client of one server; `get` raises OSError and HTTPException."""

    def __init__(
        self, proxy: Proxy | None, context: Callable[[], ssl.SSLContext], redirects_max: int = REDIRECTS_MAX
    ) -> None:
        """`context`: TLS context for HTTPS servers. With a client certificate in it, `redirects_max` is 0: no other
        server is to see the certificate."""
        self.proxy: Final = proxy
        self._redirects_max = redirects_max
        self._context = context
        self._connection: http.client.HTTPConnection | None = None
        self._to: tuple[str, str] = ("", "")
        """Scheme and authority of the connection."""
        self._aborted = False

    @contextlib.contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Request a file, and follow redirects. The connection is kept if the answer is read to its end."""
        answer = self._ask(url, headers)
        for _ in range(self._redirects_max):
            place = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or place is None:
                break
            self.close()  # without reading its page
            url = urljoin(url, place)
            answer = self._ask(url, headers)
        try:
            yield answer
        finally:
            done = answer.isclosed() or answer.length == 0
            answer.close()
            if not done or answer.will_close:
                self.close()

    def abort(self) -> None:
        """End the request in progress, and refuse further ones; for another thread."""
        self._aborted = True
        connection = self._connection
        used = connection.sock if connection is not None else None
        if used is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(used, socket.SHUT_RDWR)  # of an SSLSocket too: its state belongs to its thread

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a request; once more if the server has closed the connection meanwhile."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise http.client.HTTPException(f"it leads to {url[:200]}, which is not HTTP")
        if self._to != (parts.scheme, parts.netloc):
            self.close()
        if self._connection is not None:
            try:
                return self._send(self._connection, parts, headers)
            except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError):
                self.close()
                if self._aborted:
                    raise
        self._connection, self._to = self._connect(parts), (parts.scheme, parts.netloc)
        try:
            return self._send(self._connection, parts, headers)
        except BaseException:
            self.close()
            raise

    def _send(
        self, connection: http.client.HTTPConnection, parts: SplitResult, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = {"User-Agent": "Waypost", **headers}
        if self.proxy is not None and parts.scheme == "http":
            target = f"http://{parts.netloc}{target}"
            sent |= self._credentials()
        if connection.sock is None:
            connection.connect()
        if self._aborted:  # before there was a socket to shut down
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
        connection.request("GET", target, headers=sent)
        return connection.getresponse()

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        """Return a connection that is opened with its first request."""
        host = parts.hostname or ""
        if parts.scheme == "http":
            there = (host, parts.port) if self.proxy is None else (self.proxy.host, self.proxy.port)
            return http.client.HTTPConnection(*there, timeout=ANSWER_S)
        if self.proxy is None:
            return http.client.HTTPSConnection(host, parts.port, timeout=ANSWER_S, context=self._context())
        made = http.client.HTTPSConnection(self.proxy.host, self.proxy.port, timeout=ANSWER_S, context=self._context())
        made.set_tunnel(host, parts.port, headers=self._credentials())
        return made

    def _credentials(self) -> dict[str, str]:
        if self.proxy is None or self.proxy.username is None:
            return {}
        known = f"{self.proxy.username}:{self.proxy.password or ''}"
        return {"Proxy-Authorization": f"Basic {base64.b64encode(known.encode()).decode()}"}
