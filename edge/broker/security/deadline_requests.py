"""HTTP requests that follow no redirect and end by a deadline, for `urllib.request`. They block.

The timeout of `OpenerDirector.open` is one of each read, so that a server which sends a header byte by byte would hold
a thread for ever. Here it is one of the whole answer, after the connection is made: a name server or an address that
does not answer takes the time of the system's resolver, or the timeout again for each address.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could lead from TLS to plain HTTP, or to a host that is not configured."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _DeadlineReads(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, reads: io.RawIOBase, sock: socket.socket) -> None:
        """`reads`: file of the socket. The timeout of the socket is the time until the deadline."""
        self._reads = reads
        self._sock = sock
        self._deadline = _deadline(sock.gettimeout())

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _limit(self._sock, self._deadline)
        return self._reads.readinto(buffer)

    def close(self) -> None:
        self._reads.close()
        super().close()


class _DeadlineResponse(http.client.HTTPResponse):
    """Response that is read until the deadline of its connection."""

    def __init__(self, sock: socket.socket, *options: Any, **named: Any) -> None:
        super().__init__(sock, *options, **named)
        self.fp = io.BufferedReader(_DeadlineReads(self.fp.detach(), sock))


class _DeadlineConnection(http.client.HTTPConnection):
    """HTTP connection with a deadline."""

    response_class = _DeadlineResponse

    def connect(self) -> None:
        deadline = _deadline(self.timeout)
        super().connect()
        _limit(self.sock, deadline)


class _DeadlineTlsConnection(http.client.HTTPSConnection):
    """HTTPS connection with a deadline."""

    response_class = _DeadlineResponse

    def connect(self) -> None:
        deadline = _deadline(self.timeout)
        super().connect()
        _limit(self.sock, deadline)


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_DeadlineConnection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__(context=tls)
        self._tls = tls

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_DeadlineTlsConnection, req, context=self._tls)


def deadline_opener(tls: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Return an opener with its `timeout` as the deadline of the whole answer. `tls`: trusted authorities, by default
    those of the system."""
    return urllib.request.build_opener(_NoRedirect(), _HttpHandler(), _HttpsHandler(tls))


def _deadline(timeout_s: float | None) -> float:
    return time.monotonic() + timeout_s if timeout_s is not None else float("inf")


def _limit(sock: socket.socket, deadline: float) -> None:
    """Set the timeout of a socket to the time that is left. Raises TimeoutError."""
    left_s = deadline - time.monotonic()
    if left_s <= 0.0:
        raise TimeoutError("timed out")
    sock.settimeout(left_s if left_s != float("inf") else None)
